"""Readers of the config files that a broker loads at its start: from a JSON tree to its values.

A `BodyError` names the member that is wrong: such a file counts as damaged (see `TableFile.load`).
The readers are here rather than in the broker, so that the offline tools judge a file as a start
does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from cometmq.proto.bodies import SubscriptionGroupTable, TopicConfigTable
from cometmq.proto.errors import BodyError
from cometmq.store.disk.names import is_folder_name
from cometmq.store.errors import StoreFormatError
from cometmq.store.tables import (
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    SUBSCRIPTION_GROUPS,
    TOPICS,
    TableFile,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.disk.filesystem import FileSystem

SECTION: Final = "offsetTable"
LOG_OFFSET: Final = "logOffset"
"""Our member of Apache's file of delays: the log offset up to which it knows all deliveries."""
AHEAD: Final = "ahead"
"""Our member for runs that come before others of their level are done: `DelayRuns.saved`."""
TAIL_OFFSET: Final = "sentOnceFrom"
"""Our member for `idempotence`: the offset from which a start has to read the log."""


class DelayOffsets(NamedTuple):
    """The content of the file of delay offsets."""

    offsets: dict[int, int]
    log_offset: int
    tail_offset: int
    ahead: list[tuple[int, int, int]]


def topic_configs(tree: dict[str, Any]) -> TopicConfigTable:
    """Return the topics of a tree."""
    table = TopicConfigTable.from_tree(tree)
    for name in {each.topic_name for each in table.topic_config_table.values()}:
        if not is_folder_name(name):
            raise BodyError(f"{name!r} is not the name of a topic")
    return table


def listed_topics(filesystem: FileSystem, root: str) -> frozenset[str] | None:
    """Return the topics in a store's last saved table; None if that table is lost or damaged."""
    try:
        table = TableFile(filesystem, f"{root}/config", TOPICS).load(topic_configs)
    except StoreFormatError:
        return None
    if table.from_backup or not table.is_found:
        return None
    topics = topic_configs(table.tree).topic_config_table.values()
    return frozenset(each.topic_name for each in topics)


def consumer_offsets(tree: dict[str, Any]) -> dict[str, dict[int, int]]:
    """Return the offsets by topic and group, and then by queue."""
    return {
        str(name): _numbers(queues, f"{SECTION}, {name}")
        for name, queues in _object(tree.get(SECTION, {}), SECTION).items()
    }


def delay_offsets(tree: dict[str, Any]) -> DelayOffsets:
    """Return the offsets by level, and the other members that we keep there."""
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
    """Raise a `StoreFormatError` for a damaged file, which is only used once the store is open."""
    TableFile(filesystem, folder, DELAY_OFFSETS).load(delay_offsets)


_READERS: Final[dict[str, Callable[[dict[str, Any]], object]]] = {
    TOPICS: topic_configs,
    SUBSCRIPTION_GROUPS: SubscriptionGroupTable.from_tree,
    CONSUMER_OFFSETS: consumer_offsets,
    DELAY_OFFSETS: delay_offsets,
}
"""How a start reads each table; if one of them cannot be read, the start is refused."""


class DamagedTables(NamedTuple):
    """The damaged tables among those that a broker reads at its start, each with what is wrong."""

    refused: dict[str, str]
    """Paths of tables because of which a start is refused."""
    from_backup: dict[str, str]
    """Paths of tables that a start replaces by the `.bak`, without the changes of the last save."""
    empty: list[str]
    """Paths that a start counts as missing, because neither the file nor its `.bak` has content."""

    def notes(self) -> list[str]:
        """Say what a start does with the tables that it does not refuse."""
        backed = [
            f"{path} is damaged ({problem}): a start takes {path}.bak, without what the last"
            " save changed; where that matters, stop the broker and correct the file, by hand"
            " or from a copy that is as new"
            for path, problem in self.from_backup.items()
        ]
        return [*backed, *map(empty_text, self.empty)]


def damaged_tables(filesystem: FileSystem, root: str) -> DamagedTables:
    """Find the tables that a start cannot read, with and without a good backup."""
    found = DamagedTables({}, {}, [])
    for name, read in _READERS.items():
        table = TableFile(filesystem, f"{root}/config", name)
        try:
            loaded = table.load(read)
        except StoreFormatError as error:
            found.refused[table.path] = str(error)
        else:
            if loaded.problem is not None and loaded.is_found:
                found.from_backup[table.path] = loaded.problem
            elif loaded.problem is not None:
                found.empty.append(table.path)
    return found


def empty_text(path: str) -> str:
    """Say that a start begins an empty table, though there was one."""
    return (
        f"{path} has no content, and there is no good {path}.bak: a start begins with an empty"
        " table, and what was in it is lost; stop the broker and restore it from a copy"
    )


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
        raise BodyError(f"{name}: {value!r:.40} is not a number") from None


def _three(value: Any) -> tuple[int, int, int]:
    if not isinstance(value, list) or len(cast("list[object]", value)) != 3:
        raise BodyError(f"{AHEAD}: {value!r:.40} is not three numbers")
    first, second, third = (_number(each, AHEAD) for each in cast("list[object]", value))
    return first, second, third
