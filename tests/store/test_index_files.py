"""A start behind a kill refuses a file of the index that lost what was synced of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.store.damaged_stores import (
    ROOT,
    SMALL,
    contents,
    open_small_store,
    small_store,
    verified,
)

from cometmq.store.errors import StoreFormatError
from cometmq.store.index.index_format import ITEM, ITEM_SIZE, IndexHeader
from cometmq.store.upkeep.checkpoint import load_checkpoint

if TYPE_CHECKING:
    from tests.crash.disk import SimulatedFileSystem

OFTEN = replace(SMALL, checkpoint_interval_ms=10_000)
INDEX = f"{ROOT}/index"


def killed() -> SimulatedFileSystem:
    return small_store(OFTEN, close=False).kill()


def test_a_newest_file_of_any_length_is_refused_or_lost_nothing() -> None:
    """Behind a kill it may end behind the items of what was synced, and nowhere in front."""
    disk = killed()
    claims = load_checkpoint(disk, f"{ROOT}/checkpoint").claims
    assert claims is not None
    path, data = newest_begun_before(disk, claims.complete_to)
    header = IndexHeader.unpack(data)
    assert header.begin_offset < claims.complete_to <= header.end_offset
    at = SMALL.index_shape.items_at
    numbers = range(1, header.next_item)
    offsets = [ITEM.unpack_from(data, at + number * ITEM_SIZE)[1] for number in numbers]
    synced = sum(offset < claims.complete_to for offset in offsets)
    assert 0 < synced < len(offsets)
    least = at + (1 + synced) * ITEM_SIZE
    sizes = (40, 41, at, at + 1, at + 2 * ITEM_SIZE, *range(least - 45, least + 45, 5))
    for size in (*sizes, len(data) - 1):
        damaged = disk.kill()
        damaged.open(path).resize(size)
        if size < least:
            before = contents(damaged)
            with pytest.raises(StoreFormatError, match=f"{path}: {size} bytes"):
                open_small_store(damaged, OFTEN)
            assert contents(damaged) == before
            continue
        erased = disk.kill()
        erased.open(path).resize(least)
        erased.open(path).resize(size)
        for each in (damaged, erased):
            assert open_small_store(each, OFTEN).close(1)
            assert verified(each).is_sound


def test_a_short_file_of_what_the_log_has_no_more_is_none() -> None:
    disk = killed()
    path, data = next(iter(contents(disk, INDEX).items()))
    assert IndexHeader.unpack(data).end_offset < SMALL.segment_size
    disk.remove(f"{ROOT}/commitlog/{0:020d}")
    disk.open(path).resize(SMALL.index_shape.items_at + 30)
    assert open_small_store(disk, OFTEN).close(1)


def newest_begun_before(disk: SimulatedFileSystem, offset: int) -> tuple[str, bytes]:
    files = contents(disk, INDEX).items()
    return [(p, d) for p, d in files if IndexHeader.unpack(d).begin_offset < offset][-1]
