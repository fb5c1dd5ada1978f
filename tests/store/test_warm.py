"""What is in memory: by whole blocks, for a moment."""

from __future__ import annotations

from tests.crash.disk import SimulatedFileSystem

from cometmq.store.log.segments import Segments
from cometmq.store.log.warm import BLOCK_SIZE, WarmBlocks

SIZE = 2 * BLOCK_SIZE + 4096
LOG = "/s/commitlog"


def of_two_segments() -> tuple[SimulatedFileSystem, Segments, WarmBlocks]:
    disk = SimulatedFileSystem()
    disk.make_directories(LOG)
    segments = Segments(disk, LOG, SIZE)
    for start in (0, SIZE):
        segments.obtain(start)
    return disk, segments, WarmBlocks(segments)


def test_a_stretch_is_in_memory_when_all_of_its_blocks_are() -> None:
    disk, segments, warm = of_two_segments()
    first, second = segments
    disk.make_unreadable(second.path, BLOCK_SIZE + 5, BLOCK_SIZE + 6)
    for position, size in ((0, SIZE), (2 * BLOCK_SIZE, 4096)):
        assert warm.hold(first, position, size)
    assert warm.hold(second, BLOCK_SIZE - 10, 10)
    assert not warm.hold(second, BLOCK_SIZE - 10, 11)
    assert warm.hold(second, 2 * BLOCK_SIZE, 4096)


def test_a_block_is_asked_for_once_until_it_is_forgotten() -> None:
    disk, segments, warm = of_two_segments()
    first, _ = segments
    disk.is_cold = True
    assert not warm.hold(first, 0, 10)
    disk.is_cold = False
    assert not warm.hold(first, 99, 10)
    assert warm.hold(first, BLOCK_SIZE, 10)
    warm.forget()
    assert warm.hold(first, 0, 10)
