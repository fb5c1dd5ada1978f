"""The sizes of ranges of queues in bytes, so that tasks can be cut by size.

A CometMQ broker reports them (31003 of `docs/protocol-extensions.md`), in pieces of at most an
eighth of a task; within a piece, every message counts as the mean. For any other broker, and for
one that does not answer, a message is assumed to have `ROW_SIZE` bytes: if something is wrong,
reading will show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline import fetching, wire
from cometmq.pipeline.cluster import Bounds, Queue, by_broker
from cometmq.pipeline.errors import ConnectionLostError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cometmq.pipeline.cluster import Cluster

GET_RANGE_SIZE: Final = 31003
ROW_SIZE: Final = 1_024
"""The assumed size of a message in bytes, if the broker does not report it."""
_PIECES: Final = 8
"""At least so many pieces make a task, so uneven messages make it at most a piece too large."""
_LOOKED_AT_MAX: Final = 65_536
"""Messages that a broker counts at a time, which blocks it for half a ms."""


class Piece(NamedTuple):
    """A stretch of a queue, and the size of its messages in bytes."""

    queue: Queue
    first: int
    end: int
    size: int


def measured(
    cluster: Cluster, wanted: Mapping[Queue, Bounds], addresses: Mapping[str, str], task_size: int
) -> list[Piece]:
    """Return ranges in pieces with their sizes, in order."""
    pieces: list[Piece] = []
    for broker, queues in by_broker(wanted).items():
        left = {queue: wanted[queue] for queue in queues}
        pieces += _told(cluster, addresses[broker], left, max(task_size // _PIECES, 1))
        pieces += guessed(left)
    return sorted(pieces)


def guessed(wanted: Mapping[Queue, Bounds]) -> list[Piece]:
    """Return ranges as if all messages had the same size."""
    return [
        Piece(queue, first, end, (end - first) * ROW_SIZE)
        for queue, (first, end) in wanted.items()
        if first < end
    ]


def _told(
    cluster: Cluster, address: str, left: dict[Queue, Bounds], piece_size: int
) -> Iterator[Piece]:
    """Yield the pieces that a broker reports, and leave the rest in `left`."""
    asking = [queue for queue in left if left[queue].first < left[queue].end]
    while asking and address not in fetching.without_bulk:
        fields = [_fields(queue, left[queue], piece_size) for queue in asking]
        try:
            answers = cluster.ask_all(address, GET_RANGE_SIZE, fields)
        except ConnectionLostError:
            return
        asked, asking = asking, list[Queue]()
        for queue, answer in zip(asked, answers, strict=True):
            if answer.code == fetching.NOT_SUPPORTED:
                fetching.without_bulk.add(address)
            if answer.code != wire.SUCCESS:
                continue
            first, end = left[queue]
            until = min(int(answer.fields["endOffset"]), end)
            if until <= first:
                continue
            yield Piece(queue, first, until, int(answer.fields["size"]))
            left[queue] = Bounds(until, end)
            if until < end:
                asking.append(queue)


def _fields(queue: Queue, wanted: Bounds, piece_size: int) -> dict[str, str]:
    return {
        "topic": queue.topic,
        "queueId": str(queue.id),
        "queueOffset": str(wanted.first),
        "endOffset": str(min(wanted.end, wanted.first + _LOOKED_AT_MAX)),
        "maxBytes": str(piece_size),
    }
