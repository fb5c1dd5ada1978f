"""Recall handles: base64 of five words."""

from __future__ import annotations

from cometmq.proto.commands.recall import RecallHandle


def check(data: bytes) -> None:
    """Read the text, and check that its value survives a round trip."""
    handle = RecallHandle.decode(data.decode("utf-8", "replace"))
    assert RecallHandle.decode(handle.encode()) == handle
