"""Records and hooks that several tests of the store need."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from tests.crash.disk import Moment, Partial

from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.record import encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.crash.disk import Operation

    from cometmq.proto.buffer import Buffer

HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"


def record(
    physical_offset: int,
    body: bytes = b"body",
    *,
    topic: str = "T",
    queue_id: int = 0,
    queue_offset: int = 0,
    properties: bytes = b"",
    record_crc: bool = False,
    store_timestamp: int = 2,
) -> bytes:
    """A sound record for that place in the log."""
    return encode_record(
        topic=topic.encode(),
        body=body,
        properties=properties,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=store_timestamp,
        store_host=HOST,
        record_crc=record_crc,
    )


def messages_in(slices: Iterable[Buffer]) -> Iterator[StoredMessage]:
    """The messages of a read, whose slices may hold several each."""
    for piece in slices:
        data, at = bytes(piece), 0
        while at < len(data):
            message = read_message(data, at)
            yield message
            at = message.end


def refuse(
    verb: str, *, code: int = errno.EIO, partial: int | None = None, times: int = 1
) -> Callable[[Operation], None]:
    """A hook that fails the next operations of one verb; a write after `partial` bytes."""
    left = times

    def hook(operation: Operation) -> None:
        nonlocal left
        if operation.verb == verb and operation.moment is Moment.BEFORE and left:
            left -= 1
            error = OSError(code, "refused by the test", operation.path)
            raise error if partial is None else Partial(partial, error)

    return hook
