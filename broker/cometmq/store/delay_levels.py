"""Which delays the levels had, and from where in the log on.

The due time of a delayed message is only in its ConsumeQueue entry. It follows from the record and
from the delay that its level had when it was stored. To rebuild an entry, after a crash or offline,
one has to know that delay, whatever the settings say by then. So each change is noted down with the
place in the log where it begins: after the log before that place is on the disk, and before the
first record that the change applies to::

    delay_levels.json   {"changes": [{"from": 0, "delays": [1000, 5000]}, ...], "version": 1}

A store without this file has had Apache's levels all the time, or was written by Apache alone: then
only the settings are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from cometmq.proto.errors import BodyError
from cometmq.store.config import DELAY_LEVELS_MS
from cometmq.store.errors import StoreNotWriteableError, check_version
from cometmq.store.tables import TableFile, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.disk.filesystem import FileSystem

DELAY_LEVELS: Final = "delay_levels.json"
VERSION: Final = 1
_WITHOUT: Final = (
    "delayed messages are taken to have Apache's levels, and those whose entries are rebuilt"
    " may be due at another time"
)
CHANGES_MAX: Final = 1_000
"""Changes that are remembered at a time; those of records that have expired are forgotten."""


class Change(NamedTuple):
    """Delays, and the place in the log from which they hold."""

    begin: int
    delays_ms: tuple[int, ...]


@dataclass(slots=True)
class DelayLevels:
    """The delays of all levels, now and for every record of the log."""

    changes: list[Change]
    """In the order of the log; at least one."""
    file: TableFile | None = None
    """Where they are noted down; None if nothing changes."""
    is_noted: bool = True
    """Whether the file has these changes, or does not need them."""

    @classmethod
    def always(cls, delays_ms: Sequence[int]) -> DelayLevels:
        """Return levels that never changed."""
        return cls([Change(0, tuple(delays_ms))])

    @property
    def current(self) -> tuple[int, ...]:
        """The delays for messages that are put now."""
        return self.changes[-1].delays_ms

    def at(self, physical_offset: int) -> tuple[int, ...]:
        """Return the delays that held when the record at an offset was put."""
        for change in reversed(self.changes):
            if change.begin <= physical_offset:
                return change.delays_ms
        return self.changes[0].delays_ms

    def change(self, end_offset: int, delays_ms: tuple[int, ...], first_offset: int) -> None:
        """Let these delays hold from the end of the log on. Waits for the disk.

        No put may be waiting for its commit. Raise an `OSError` or a `StoreNotWriteableError` if
        the delays cannot be noted down: then the old ones still hold.
        """
        changes = [each for each in self.changes if each.begin <= end_offset]
        if not changes or changes[-1].delays_ms != delays_ms:
            changes.append(Change(end_offset, delays_ms))
        while len(changes) > 1 and changes[1].begin <= first_offset:
            del changes[0]
        if changes == self.changes and self.is_noted:
            return
        if len(changes) > CHANGES_MAX:
            raise StoreNotWriteableError(
                f"the delays changed {CHANGES_MAX} times while the log has messages from before"
            )
        if self.file is not None:
            noted = [{"from": at, "delays": list(delays)} for at, delays in changes]
            tree = {"changes": noted, "version": VERSION}
            self.is_noted = False
            self.file.write([encode(tree)])
            self.is_noted = True
        self.changes = changes


def load_delay_levels(
    filesystem: FileSystem, root: str, delays_ms: tuple[int, ...], *, is_ours: bool
) -> DelayLevels:
    """Read which delays held where in the log, for a store with these in its settings.

    Raise a `StoreFormatError` if the file and its backup are damaged, or of a newer version.
    """
    file = TableFile(filesystem, root, DELAY_LEVELS, without=_WITHOUT)
    tree = file.load(partial(_changes, file.path)).tree
    if not tree:
        held = DELAY_LEVELS_MS if is_ours else delays_ms
        return DelayLevels([Change(0, held)], file, is_noted=held == DELAY_LEVELS_MS)
    return DelayLevels(_changes(file.path, tree), file)


def _changes(path: str, tree: dict[str, Any]) -> list[Change]:
    """Read the changes; `BodyError` says what is wrong with them."""
    version = tree.get("version", VERSION)
    if not isinstance(version, int):
        raise BodyError("its version is not a number")
    check_version(path, version, VERSION)
    try:
        found = cast("list[dict[str, Any]]", tree["changes"])
        changes = [
            Change(int(each["from"]), tuple(int(delay) for delay in each["delays"]))
            for each in found
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BodyError(f"its changes cannot be read ({error!r})") from error
    if not changes or not all(change.delays_ms for change in changes):
        raise BodyError("it has no delays")
    return changes
