"""Any bytes are a properties text or `BodyError`, and properties read survive a round trip."""

from __future__ import annotations

import contextlib

from cometmq.proto.bodies import decode_settings, encode_settings
from cometmq.proto.errors import RemoteProtocolError


def check(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        properties = decode_settings(data)
        assert decode_settings(encode_settings(properties)) == properties
