"""The four texts of POP, chosen by the first byte."""

from __future__ import annotations

from cometmq.proto.commands.pop_handle import (
    PopHandle,
    decode_message_offsets,
    decode_order_counts,
    decode_start_offsets,
    encode_message_offsets,
    encode_order_counts,
    encode_start_offsets,
)


def check(data: bytes) -> None:
    """Read the text, and check that its value survives a round trip."""
    text = data[1:].decode("utf-8", "replace")
    which = data[0] % 4 if data else 0
    if which == 0:
        handle = PopHandle.decode(text)
        assert PopHandle.decode(handle.encode()) == handle
    elif which == 1:
        starts = decode_start_offsets(text)
        assert decode_start_offsets(encode_start_offsets(starts)) == starts
    elif which == 2:
        offsets = decode_message_offsets(text)
        assert decode_message_offsets(encode_message_offsets(offsets)) == offsets
    else:
        counts = decode_order_counts(text)
        assert decode_order_counts(encode_order_counts(counts)) == counts
