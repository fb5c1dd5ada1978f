"""Warnings at a start about tables whose files were lost, as other tables show.

A table without a file begins empty, as in a new store. Each table is saved sooner or later, even if
it is empty. So if there are groups but no offsets, or the other way round, a file was lost. The
loss of the topic table shows by the queues: see `store.looking.unlisted`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.groups import OWN_GROUPS
from cometmq.store.disk.names import some_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cometmq.broker.groups import Groups
    from cometmq.broker.offsets import ConsumerOffsets

_GONE = "missing or empty, and so is its .bak"
_HELP = "Stop the broker and restore it from a copy"


def lost_tables(groups: Groups, offsets: ConsumerOffsets) -> Iterator[str]:
    """Yield a line for each lost table; both must be loaded."""
    if not offsets.file.is_found and (known := _users(groups.configs())):
        yield (
            f"{offsets.file.name}: {_GONE}, though there are consumer groups ({some_of(known)}):"
            f" what they have consumed is lost, and they begin where new groups do. {_HELP}, or"
            " say with `cometmq offset reset` where each goes on"
        )
    if not groups.file.is_found and (known := _users({group for group, _ in offsets.pairs()})):
        yield (
            f"{groups.file.name}: {_GONE}, though groups have consumed ({some_of(known)}): their"
            f" settings are lost, and they get those of new groups. {_HELP}, or set them with"
            " `cometmq group create`"
        )


def _users(groups: Iterable[str]) -> list[str]:
    return sorted(name for name in groups if name not in OWN_GROUPS)
