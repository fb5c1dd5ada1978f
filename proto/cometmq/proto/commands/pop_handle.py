"""The texts of POP: the handle of a popped message, and the texts in answers to make handles from.

::

    handle          <start offset> <pop time> <invisible time> <revive queue> <origin> <broker>
                    <queue> <queue offset>                            joined by single blanks
    startOffsetInfo <origin> <queue> <first offset>                   joined by semicolons
    msgOffsetInfo   <origin> <queue> <offset>,<offset>,...            joined by semicolons
    orderCountInfo  <origin> <queue> <count>                          joined by semicolons
                 or <origin> qo<queue>%<queue offset> <count>

The handle is `extraInfo` in 200051 and 200053, and the property `POP_CK` of a message. Numbers are
decimal and fit 64 bits. An item may occur only once: the meaning of two is not defined.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from cometmq.proto.errors import FieldError, LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_I64_MIN, _I64_MAX = -(2**63), 2**63 - 1

# The fields, by their names on the wire.
_HANDLE, _STARTS, _OFFSETS = "extraInfo", "startOffsetInfo", "msgOffsetInfo"
_COUNTS = "orderCountInfo"


class PopOrigin(Enum):
    """The topic of a popped message: the requested one, or a retry topic of its group."""

    TOPIC = "0"
    RETRY = "1"  # %RETRY%<group>_<topic>
    RETRY_V2 = "2"  # %RETRY%<group>+<topic>


_ORIGINS = {origin.value: origin for origin in PopOrigin}


class PopQueue(NamedTuple):
    """A queue that a pop took messages from."""

    origin: PopOrigin
    queue_id: int


class PopPlace(NamedTuple):
    """A message in such a queue; with None for the offset, the queue as a whole."""

    origin: PopOrigin
    queue_id: int
    queue_offset: int | None


@dataclass(frozen=True, slots=True)
class PopHandle:
    """One delivery of one message, which an acknowledgement has to name."""

    start_offset: int  # Of the messages that were popped together.
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    origin: PopOrigin
    broker_name: str
    queue_id: int
    queue_offset: int

    def encode(self) -> str:
        """Write the handle; the broker name must not be empty or contain a blank."""
        if not self.broker_name or " " in self.broker_name:
            raise LocalProtocolError(f"{self} cannot be written as text")
        return (
            f"{self.start_offset} {self.pop_time} {self.invisible_time} {self.revive_queue_id} "
            f"{self.origin.value} {self.broker_name} {self.queue_id} {self.queue_offset}"
        )

    @classmethod
    def decode(cls, text: str) -> PopHandle:
        """Read a handle, which must have all its eight words."""
        words = text.split(" ")
        if len(words) != 8 or not words[5]:
            raise _wrong(_HANDLE, "does not have eight words")
        start, popped, invisible, revive, origin, broker_name, queue, offset = words
        return cls(
            _number(start, _HANDLE),
            _number(popped, _HANDLE),
            _number(invisible, _HANDLE),
            _number(revive, _HANDLE),
            _origin(origin, _HANDLE),
            broker_name,
            _number(queue, _HANDLE),
            _number(offset, _HANDLE),
        )


def encode_start_offsets(offsets: Mapping[PopQueue, int]) -> str:
    """Write `startOffsetInfo`: the first offset popped from each queue."""
    return ";".join(
        f"{origin.value} {queue_id} {offset}" for (origin, queue_id), offset in offsets.items()
    )


def decode_start_offsets(text: str) -> dict[PopQueue, int]:
    """Read `startOffsetInfo`."""
    offsets: dict[PopQueue, int] = {}
    for origin, queue, offset in _items(text, _STARTS):
        key = PopQueue(origin, _number(queue, _STARTS))
        _refuse_second(key in offsets, _STARTS)
        offsets[key] = _number(offset, _STARTS)
    return offsets


def encode_message_offsets(offsets: Mapping[PopQueue, Sequence[int]]) -> str:
    """Write `msgOffsetInfo`: the offsets popped from each queue."""
    return ";".join(
        f"{origin.value} {queue_id} {','.join(map(str, popped))}"
        for (origin, queue_id), popped in offsets.items()
    )


def decode_message_offsets(text: str) -> dict[PopQueue, tuple[int, ...]]:
    """Read `msgOffsetInfo`."""
    offsets: dict[PopQueue, tuple[int, ...]] = {}
    for origin, queue, popped in _items(text, _OFFSETS):
        key = PopQueue(origin, _number(queue, _OFFSETS))
        _refuse_second(key in offsets, _OFFSETS)
        offsets[key] = tuple(_number(offset, _OFFSETS) for offset in popped.split(","))
    return offsets


def encode_order_counts(counts: Mapping[PopPlace, int]) -> str:
    """Write `orderCountInfo`: how often a message, or a queue's first, was delivered before."""
    return ";".join(
        f"{origin.value} {queue_id} {count}"
        if offset is None
        else f"{origin.value} qo{queue_id}%{offset} {count}"
        for (origin, queue_id, offset), count in counts.items()
    )


def decode_order_counts(text: str) -> dict[PopPlace, int]:
    """Read `orderCountInfo`."""
    counts: dict[PopPlace, int] = {}
    for origin, place, count in _items(text, _COUNTS):
        queue, percent, offset = place.removeprefix("qo").partition("%")
        if place.startswith("qo") != bool(percent):
            raise _wrong(_COUNTS, f"has an invalid place, {place[:40]!r}")
        key = PopPlace(
            origin,
            _number(queue, _COUNTS),
            _number(offset, _COUNTS) if percent else None,
        )
        _refuse_second(key in counts, _COUNTS)
        counts[key] = _number(count, _COUNTS)
    return counts


def _items(text: str, field: str) -> list[tuple[PopOrigin, str, str]]:
    items: list[tuple[PopOrigin, str, str]] = []
    for item in text.split(";") if text else ():
        words = item.split(" ")
        if len(words) != 3:
            raise _wrong(field, "has an item that is not three words")
        items.append((_origin(words[0], field), words[1], words[2]))
    return items


def _origin(text: str, field: str) -> PopOrigin:
    origin = _ORIGINS.get(text)
    if origin is None:
        raise _wrong(field, f"has an invalid origin, {text[:40]!r}")
    return origin


def _number(text: str, field: str) -> int:
    if not _NUMBER.fullmatch(text) or not _I64_MIN <= int(text) <= _I64_MAX:
        raise _wrong(field, f"has an invalid number, {text[:40]!r}")
    return int(text)


def _refuse_second(seen: bool, field: str) -> None:
    if seen:
        raise _wrong(field, "names a queue or a message twice")


def _wrong(field: str, problem: str) -> FieldError:
    return FieldError("POP_MESSAGE", field, problem)
