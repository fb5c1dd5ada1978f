"""Comparing the sealed blocks of a store with their checksums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.store.upkeep.integrity import BLOCK_SIZE, Integrity
from cometmq.store.upkeep.sealing import INTEGRITY_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.upkeep.integrity import Block

BLOCKS_A_STEP: Final = 64


def sealed_blocks(store: Inspected, end_offset: int) -> Iterator[Block]:
    """Check the blocks of a log that ends there; nothing where the store has no checksums."""
    folder = f"{store.root}/{INTEGRITY_FOLDER}"
    if not store.filesystem.exists(folder):
        return
    segments = store.segments
    integrity = Integrity(store.filesystem, folder, segments.size)
    start, end = segments.first_offset, segments.end_offset
    if store.checkpoint.claims is None:
        end = integrity.last_untouched(start, max(end_offset, start), segments.read)
    yield from integrity.blocks(start, end, segments.read)


def unread_sidecars(store: Inspected) -> Iterator[tuple[str, str]]:
    """Name the files of checksums that are of another format or damaged, and what they are."""
    folder = f"{store.root}/{INTEGRITY_FOLDER}"
    yield from Integrity(store.filesystem, folder, store.segments.size).unread()


def segments_without_checksums(store: Inspected) -> tuple[list[str], list[str]]:
    """Name the files of the log of which a store of ours should have checksums, and has none.

    And those of which it should have one of the last block, and has none: the rest may be cut off.
    What a process that was killed did not come to seal, or what others wrote, has none either.
    """
    claims = store.checkpoint.claims
    bare: list[str] = []
    cut: list[str] = []
    if claims is None or not store.is_clean:
        return bare, cut
    size = store.segments.size
    integrity = Integrity(store.filesystem, f"{store.root}/{INTEGRITY_FOLDER}", size)
    unread = {int(path.rpartition("/")[2]) for path, _ in integrity.unread()}  # Told by itself.
    for segment in store.segments:
        is_sealed = segment.start <= claims.synced_offset - min(BLOCK_SIZE, size)
        if not (is_sealed and claims.ours_from <= segment.start) or segment.start in unread:
            continue
        covered_to = integrity.covered_to(segment.start)
        if covered_to == segment.start:
            bare.append(segment.path)
        elif covered_to < segment.start + size <= claims.synced_offset:
            cut.append(segment.path)
    return bare, cut
