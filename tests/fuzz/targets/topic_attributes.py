"""The text of a topic's attribute changes."""

from __future__ import annotations

from cometmq.proto.commands.topic_attributes import decode_attributes, encode_attributes


def check(data: bytes) -> None:
    """Read the text, and check that its value survives a round trip."""
    changes = decode_attributes(data.decode("utf-8", "replace"))
    assert decode_attributes(encode_attributes(changes)) == changes
