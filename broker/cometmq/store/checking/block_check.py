"""Comparing the sealed blocks of a store with their checksums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.store.upkeep.integrity import BLOCK_SIZE, Integrity
from cometmq.store.upkeep.sealing import INTEGRITY_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized

    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.upkeep.integrity import Block

BLOCKS_A_STEP: Final = 64


def sealed_blocks(store: Inspected, end_offset: int) -> Iterator[Block]:
    """Check the blocks of a log that ends at an offset; do nothing without checksums."""
    folder = f"{store.root}/{INTEGRITY_FOLDER}"
    if not store.filesystem.exists(folder):
        return
    segments = store.segments
    integrity = Integrity(store.filesystem, folder, segments.size)
    start, end = segments.first_offset, segments.end_offset
    if store.checkpoint.claims is None:
        end = integrity.last_untouched(start, max(end_offset, start), segments.read)
    yield from integrity.blocks(start, end, segments.read)


def checksum_notes(store: Inspected) -> Iterator[str]:
    """Say which files of the log, and which blocks, have no readable checksums."""
    integrity = Integrity(store.filesystem, f"{store.root}/{INTEGRITY_FOLDER}", store.segments.size)
    unread = list(integrity.unread())
    bare, cut, gaps = _without_checksums(
        store, integrity, {int(path.rpartition("/")[2]) for path, _ in unread}
    )
    if bare:
        yield (
            f"no block checksums for {bare[0]}{and_more(bare)}: {INTEGRITY_FOLDER}/ was removed,"
            " is off, or lost its contents, as in a power cut; what only they cover is not"
            " checked. Restore it from a copy if there is one; what is written from now on gets"
            " new ones"
        )
    if cut:
        yield (
            f"no block checksums for the last blocks of {cut[0]}{and_more(cut)}: a kill came"
            f" before they were written, {INTEGRITY_FOLDER}/ was off, or the file there lost its"
            " end"
        )
    if gaps:
        path, position = store.segments.place_of(gaps[0])
        yield (
            f"no checksum for the block at byte {position} of {path}{and_more(gaps)}: a power"
            f" cut came before it was written, a repair began in the block, {INTEGRITY_FOLDER}/"
            " was off, or the file there is damaged; what only it covers is not checked"
        )
    for path, problem in unread:
        yield f"{path} {problem}: its checksums cover nothing"


def and_more(some: Sized) -> str:
    """Say how many there are besides the first, which is named; nothing if there are none."""
    return f" and {len(some) - 1} more" if len(some) > 1 else ""


class _Uncovered(NamedTuple):
    """The parts of our store that should have checksums, but have none."""

    bare: list[str]
    """Files of the log without a checksum for any block."""
    cut: list[str]
    """Files without checksums for their last blocks: the sidecar may have been cut off."""
    gaps: list[int]
    """Offsets of single blocks without a checksum, before others that have one."""


def _without_checksums(store: Inspected, integrity: Integrity, unread: set[int]) -> _Uncovered:
    """Find what lacks checksums, except for unreadable sidecars, which are reported themselves.

    What a killed process had not sealed yet, or what others wrote, need not have any.
    """
    claims = store.checkpoint.claims
    uncovered = _Uncovered([], [], [])
    if claims is None or not store.is_clean:
        return uncovered
    block_size = min(BLOCK_SIZE, store.segments.size)
    for segment in store.segments:
        is_sealed = segment.start <= claims.synced_offset - block_size
        if not (is_sealed and claims.ours_from <= segment.start) or segment.start in unread:
            continue
        covered_to, end = integrity.covered_to(segment.start), segment.start + store.segments.size
        if covered_to == segment.start:
            uncovered.bare.append(segment.path)
        elif covered_to < min(covered_to + block_size, end) <= claims.synced_offset:
            uncovered.cut.append(segment.path)
        uncovered.gaps.extend(integrity.gaps(segment.start))
    return uncovered
