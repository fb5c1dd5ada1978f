"""Looks into queues that never wait for the disk: they ask for what only the disk has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.proto.errors import MessageError
from cometmq.proto.message import read_message
from cometmq.store.disk.cold import Cold, ColdError
from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue

if TYPE_CHECKING:
    from cometmq.store.messages.reading import Fetched, QueueReader
    from cometmq.store.queues.consume_queue import Boundary, ConsumeQueue


def offset_by_time(
    reader: QueueReader,
    queue: ConsumeQueue | BatchConsumeQueue,
    log: range,
    timestamp: int,
    boundary: Boundary,
    fetched: Fetched | None,
) -> int | Cold:
    """Return the queue offset for a store timestamp; `log` is the range that may be read."""

    def store_time(physical_offset: int, size: int) -> int:
        if not log.start <= physical_offset <= log.stop - size:
            return -1
        piece = reader.piece(physical_offset, size, fetched)
        if isinstance(piece, Cold):
            raise ColdError(piece)
        if piece is None:
            return -1
        try:
            return read_message(bytes(piece)).store_timestamp
        except MessageError:
            return -1

    def look() -> int:
        if isinstance(queue, BatchConsumeQueue):
            return queue.offset_by_time(timestamp, boundary)
        return queue.offset_by_time(timestamp, boundary, store_time)

    return queue.without_waiting(look, fetched or ())
