"""Any text is an id or `MessageError`, and an offset id is written back as it was, in capitals."""

from __future__ import annotations

import contextlib
from datetime import UTC

from cometmq.proto.errors import MessageError
from cometmq.proto.message_id import (
    decode_offset_id,
    decode_unique_id,
    encode_offset_id,
    unique_id_time_ms,
)

NOW_MS = 1_795_253_436_625


def check(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    with contextlib.suppress(MessageError):
        offset_id = decode_offset_id(text)
        assert encode_offset_id(*offset_id) == text.upper()
        assert offset_id.address.address
    unique_id = decode_unique_id(text)
    assert 0 <= unique_id.counter < 1 << 16
    assert 0 < unique_id_time_ms(text, NOW_MS, UTC) < NOW_MS + (1 << 32)
