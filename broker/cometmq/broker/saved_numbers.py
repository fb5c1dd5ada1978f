"""The numbers of the config files that hold offsets, taken out of their trees.

A `BodyError` names the member that is wrong: such a file counts as damaged (see `TableFile.load`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from cometmq.proto.errors import BodyError
from cometmq.store.tables import DELAY_OFFSETS, TableFile

if TYPE_CHECKING:
    from cometmq.store.filesystem import FileSystem

SECTION: Final = "offsetTable"
LOG_OFFSET: Final = "logOffset"
"""Our member of Apache's file of delays: up to where in the log it knows of all deliveries."""
AHEAD: Final = "ahead"
"""And one for runs that come before others of their level are done: `DelayRuns.saved`."""
TAIL_OFFSET: Final = "sentOnceFrom"
"""Another one, of `idempotence`: from where a start has to read the log."""


class DelayOffsets(NamedTuple):
    """What the file of the delay levels says."""

    offsets: dict[int, int]
    log_offset: int
    tail_offset: int
    ahead: list[tuple[int, int, int]]


def consumer_offsets(tree: dict[str, Any]) -> dict[str, dict[int, int]]:
    """Return the offsets by topic and group, and queue."""
    return {
        str(name): _numbers(queues, f"{SECTION}, {name}")
        for name, queues in _object(tree.get(SECTION, {}), SECTION).items()
    }


def delay_offsets(tree: dict[str, Any]) -> DelayOffsets:
    """Return the offsets by level, and what else we keep there."""
    ahead: Any = tree.get(AHEAD, [])
    if not isinstance(ahead, list):
        raise BodyError(f"{AHEAD}: not a list")
    return DelayOffsets(
        _numbers(tree.get(SECTION, {}), SECTION),
        _number(tree.get(LOG_OFFSET, -1), LOG_OFFSET),
        _number(tree.get(TAIL_OFFSET, -1), TAIL_OFFSET),
        [_three(each) for each in cast("list[object]", ahead)],
    )


def check_delay_offsets(filesystem: FileSystem, folder: str) -> None:
    """Refuse a damaged file by a `StoreFormatError`: it is only used when the store is open."""
    TableFile(filesystem, folder, DELAY_OFFSETS).load(delay_offsets)


def _object(value: Any, name: str) -> dict[object, Any]:
    if not isinstance(value, dict):
        raise BodyError(f"{name}: not an object")
    return cast("dict[object, Any]", value)


def _numbers(value: Any, name: str) -> dict[int, int]:
    items = _object(value, name).items()
    return {_number(key, name): _number(each, f"{name}, {key}") for key, each in items}


def _number(value: Any, name: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise BodyError(f"{name}: {value!r:.40} is no number") from None


def _three(value: Any) -> tuple[int, int, int]:
    if not isinstance(value, list) or len(cast("list[object]", value)) != 3:
        raise BodyError(f"{AHEAD}: {value!r:.40} is not three numbers")
    first, second, third = (_number(each, AHEAD) for each in cast("list[object]", value))
    return first, second, third
