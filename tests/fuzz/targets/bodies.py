"""Any bytes are a body of each class or `BodyError`, and a body read survives a round trip.

The first byte chooses the class, so that a mutated body keeps its class.
"""

from __future__ import annotations

import contextlib
import zlib

from cometmq.proto.bodies import (
    REQUEST_BODIES,
    RESPONSE_BODIES,
    TopicRouteData,
    decode_registration,
    decode_reset_offsets,
)
from cometmq.proto.errors import RemoteProtocolError

BODIES = sorted({*REQUEST_BODIES.values(), *RESPONSE_BODIES.values()}, key=lambda c: c.__name__)


def check(data: bytes) -> None:
    which, text = data[:1] or b"\0", data[1:]
    body = BODIES[which[0] % len(BODIES)]
    with contextlib.suppress(RemoteProtocolError):
        value = body.decode(text)
        assert body.decode(value.encode()) == value
        if isinstance(value, TopicRouteData):
            assert body.decode(value.encode_standard()) == value
    with contextlib.suppress(RemoteProtocolError):
        decode_reset_offsets(text or b"{}")
    for version in (1, 401, 413):
        with contextlib.suppress(RemoteProtocolError):
            decode_registration(zlib.compress(text), version=version, compressed=True)
