"""What an open store tells of itself, for metrics and probes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cometmq.store.errors import StoreNotWriteableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.proto.durations import Durations
    from cometmq.store.errors import PutRefusedError
    from cometmq.store.opened import Opened
    from cometmq.store.upkeep.retention import Reason


class Figures(NamedTuple):
    """Where the log is, in physical offsets, and how the disk is."""

    first_offset: int
    end_offset: int
    readable_offset: int
    synced_offset: int
    refusal: PutRefusedError | None
    """Why puts are refused; None while they are taken."""
    disk_used_percent: int
    """How full the fullest disk of the store was, a second ago at most."""
    removed: Mapping[Reason, int]
    """How many segments were removed since the start, by why; it goes on counting."""
    sync_durations: Durations
    """How long the syncs of the log took; it goes on counting."""


def figures_of(parts: Opened) -> Figures:
    """Tell how the parts of a store are."""
    refusal, lack = parts.appender.refusal, parts.segments.lack
    if refusal is None and lack is not None:
        refusal = StoreNotWriteableError(lack)
    return Figures(
        first_offset=parts.log.first_offset,
        end_offset=parts.log.end_offset,
        readable_offset=parts.appender.published_offset,
        synced_offset=parts.syncer.synced_offset,
        refusal=refusal,
        disk_used_percent=parts.expiry.disk_used_percent,
        removed=parts.expiry.removed,
        sync_durations=parts.syncer.durations,
    )
