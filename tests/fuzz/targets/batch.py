"""Any bytes are a batch or `MessageError`, and the messages read have the size of the bytes."""

from __future__ import annotations

from cometmq.proto.batch import decode_batch


def check(data: bytes) -> None:
    items = list(decode_batch(data))
    assert sum(22 + len(item.body) + len(item.properties) for item in items) == len(data)
