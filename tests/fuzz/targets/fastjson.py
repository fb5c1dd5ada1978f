"""Any bytes are a body in the dialect or `BodyError`, and a body read survives a round trip."""

from __future__ import annotations

import contextlib

from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.fastjson import dumps, loads


def check(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        tree = loads(data, depth_max=16, members_max=10_000)
        written = dumps(tree)
        assert dumps(loads(written, depth_max=16)) == written
