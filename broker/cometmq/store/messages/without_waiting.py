"""Looks into queues that never wait for the disk: what it alone has is asked for instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from cometmq.proto.errors import MessageError
from cometmq.proto.message import read_message
from cometmq.store.log.commit_log import Cold
from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
from cometmq.store.queues.readable_entries import ColdEntriesError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.messages.reading import Fetched, QueueReader
    from cometmq.store.queues.consume_queue import Boundary, ConsumeQueue

    T = TypeVar("T")


class _ColdRecordError(Exception):
    """What a look needs next is cold; caught where it began."""

    def __init__(self, cold: Cold) -> None:
        super().__init__(cold)
        self.cold = cold


def look_at(
    queue: ConsumeQueue | BatchConsumeQueue, fetched: Fetched | None, look: Callable[[], T]
) -> T | Cold:
    """Return what a look at a queue finds, or the entries, or the record, that it needs first.

    All that was fetched for it must be given each time.
    """
    queue.fetched = frozenset((cold.path, cold.position) for cold, _ in fetched or ())
    try:
        return look()
    except ColdEntriesError as needs:
        return Cold(needs.path, needs.position, needs.size, -1)
    except _ColdRecordError as needs:
        return needs.cold
    finally:
        queue.fetched = None


def offset_by_time(
    reader: QueueReader,
    queue: ConsumeQueue | BatchConsumeQueue,
    log: range,
    timestamp: int,
    boundary: Boundary,
    fetched: Fetched | None,
) -> int | Cold:
    """Return the queue offset for a store timestamp; `log` is what may be read of it."""

    def store_time(physical_offset: int, size: int) -> int:
        if not log.start <= physical_offset <= log.stop - size:
            return -1
        piece = reader.piece(physical_offset, size, fetched)
        if isinstance(piece, Cold):
            raise _ColdRecordError(piece)
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

    return look_at(queue, fetched, look)
