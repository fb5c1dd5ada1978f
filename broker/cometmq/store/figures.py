"""What an open store reports about itself, for metrics and probes."""

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
    """The state of the log, in physical offsets, and of the disk."""

    first_offset: int
    end_offset: int
    readable_offset: int
    synced_offset: int
    refusal: PutRefusedError | None
    """Why puts are refused; None while they are taken."""
    disk_used_percent: int
    """How full the store's fullest disk was, at most a second ago."""
    removed: Mapping[Reason, int]
    """How many segments were removed since the start, by reason; updated as the store runs."""
    sync_durations: Durations
    """How long the syncs of the log took; updated as the store runs."""


def figures_of(parts: Opened) -> Figures:
    """Collect the figures from the parts of a store."""
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
