"""A start refuses settings that do not fit the index files, and a newest file that lost items."""

from __future__ import annotations

import struct
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import pytest
from tests.crash.disk import KillAt, Killed, Moment, SimulatedFileSystem
from tests.store import apache_stores
from tests.store.damaged_stores import (
    ROOT,
    SMALL,
    contents,
    flip,
    open_small_store,
    overwrite,
    small_store,
    verified,
)
from tests.store.records import HOST

from cometmq.proto.message import read_message
from cometmq.store.disk.cold import Cold
from cometmq.store.errors import CorruptionError, StoreFormatError
from cometmq.store.index.index_format import ITEM, ITEM_SIZE, IndexHeader, IndexShape
from cometmq.store.index.index_off import load_off
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.message_store import MessageStore
from cometmq.store.upkeep.checkpoint import CheckpointFile, load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cometmq.store.config import StoreConfig

OFTEN = replace(SMALL, checkpoint_interval_ms=10_000)
INDEX = f"{ROOT}/index"
BEGUN_MS = 1_700_000_000_000
"""When the first message of the small store was stored."""


def killed() -> SimulatedFileSystem:
    return small_store(OFTEN, close=False).kill()


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("shape", [(20, 80), (25, 39), (40, 40), (10, 20), (5_000_000, 20_000_000)])
def test_settings_of_another_shape_are_refused_and_nothing_is_changed(
    shape: tuple[int, int], closed: bool, alone: bool
) -> None:
    items = 4000 if alone else 40
    made = replace(OFTEN, index_items=items)
    disk = small_store(made, close=closed)
    disk = disk if closed else disk.kill()
    assert (len(disk.list(INDEX)) == 1) == alone
    before = contents(disk)
    others = replace(OFTEN, index_slots=shape[0], index_items=shape[1])
    with pytest.raises(StoreFormatError, match=f"set index_slots to 20 and index_items to {items}"):
        open_small_store(disk, others)
    assert contents(disk) == before
    assert open_small_store(disk, made).close(1)
    assert verified(disk, config=made).is_sound


def test_so_are_they_with_a_store_of_apaches_that_was_killed(tmp_path: Path) -> None:
    root = apache_stores.unpack("killed", tmp_path)
    config = replace(apache_stores.config("killed"), index_slots=205, index_items=399)
    with pytest.raises(StoreFormatError, match="set index_slots to 200 and index_items to 400"):
        MessageStore.open(str(root), config, now_ms=1, threads=False)


def test_while_the_index_is_off_the_shape_of_its_files_stays_noted() -> None:
    disk = killed()
    others = replace(OFTEN, index=False, index_slots=5, index_items=9)
    open_small_store(disk, others)
    disk = disk.kill()
    seen = inspect(disk, ROOT, SMALL)
    assert seen.config.index_shape == (20, 40)
    seen.segments.close()
    assert open_small_store(disk, OFTEN).close(1)
    assert verified(disk).is_sound


def test_a_noted_shape_that_no_file_has_hinders_nothing() -> None:
    """A rebuild in another shape leaves one if it is cut off before its files are in place."""
    disk = killed()
    path = f"{ROOT}/checkpoint"
    checkpoint = load_checkpoint(disk, path)
    assert checkpoint.claims is not None
    claims = replace(checkpoint.claims, index_shape=IndexShape(21, 55))
    CheckpointFile(disk, path).write(checkpoint.longs, claims)
    assert open_small_store(disk, OFTEN).close(1)
    assert verified(disk).is_sound


def test_a_newest_file_of_any_length_is_refused_or_lost_nothing() -> None:
    """After a kill it may end after the synced items, but nowhere before."""
    disk = killed()
    path, data, offsets = newest_synced_in_part(disk)
    at = SMALL.index_shape.items_at
    least = at + (1 + len(offsets)) * ITEM_SIZE
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


def test_a_file_may_end_within_an_item_behind_those_that_were_synced() -> None:
    disk = killed()
    path, _, offsets = newest_synced_in_part(disk)
    least = SMALL.index_shape.items_at + (1 + len(offsets)) * ITEM_SIZE
    for size in range(1, ITEM_SIZE):
        cut = disk.kill()
        cut.open(path).resize(least)
        cut.open(path).write(ITEM.pack(7, offsets[-1], 0, 0)[:size], least)
        assert open_small_store(cut, OFTEN).close(1)
        assert verified(cut).is_sound


@pytest.mark.parametrize(
    "torn", [b"\x07", ITEM.pack(7, 0, 0, 0), ITEM.pack(7, 1 << 40, 0, 0), None]
)
def test_a_torn_item_behind_those_that_were_synced_refuses_nothing(torn: bytes | None) -> None:
    disk = killed()
    path, _, offsets = newest_synced_in_part(disk)
    least = SMALL.index_shape.items_at + (1 + len(offsets)) * ITEM_SIZE
    file = disk.open(path)
    file.resize(least)
    file.write(ITEM.pack(7, offsets[-1], 0, 0) if torn is None else torn, least)
    assert open_small_store(disk, OFTEN).close(1)
    assert verified(disk).is_sound


@pytest.mark.parametrize("torn", [b"\x07", ITEM.pack(7, 0, 0, 0)])
def test_so_do_not_zeros_in_front_of_one_where_the_first_records_have_expired(torn: bytes) -> None:
    config = replace(OFTEN, index_items=4000)
    disk = small_store(config, close=False).kill()
    path, _, offsets = newest_synced_in_part(disk)
    assert offsets[-1] > SMALL.segment_size
    least = config.index_shape.items_at + (1 + len(offsets)) * ITEM_SIZE
    file = disk.open(path)
    file.resize(least)
    file.write(torn, least + 2 * ITEM_SIZE)
    disk.remove(f"{ROOT}/commitlog/{0:020d}")
    assert open_small_store(disk, config).close(1)
    assert verified(disk, config=config).is_sound


def test_a_short_file_of_what_the_log_has_no_more_is_none() -> None:
    disk = killed()
    path, data = next(iter(contents(disk, INDEX).items()))
    assert IndexHeader.unpack(data).end_offset < SMALL.segment_size
    disk.remove(f"{ROOT}/commitlog/{0:020d}")
    disk.open(path).resize(SMALL.index_shape.items_at + 30)
    assert open_small_store(disk, OFTEN).close(1)


def test_a_torn_header_behind_an_empty_file_is_none_of_what_was_synced() -> None:
    """Both come from a power cut: with zeros as its begin, the file seems to precede all others."""
    disk = killed()
    last = max(contents(disk, INDEX)).rpartition("/")[2]
    torn = IndexHeader(0, 0, 0, 1 << 20, 13, 20).pack()
    for more, content in ((1, b""), (2, torn + bytes(90))):
        file = disk.open(f"{INDEX}/{int(last) + more:017d}", create=True)
        file.write(content, 0)
        file.sync()
    assert open_small_store(disk, OFTEN).close(1)
    assert verified(disk).is_sound


def newest_begun_before(disk: SimulatedFileSystem, offset: int) -> tuple[str, bytes]:
    files = contents(disk, INDEX).items()
    return [(p, d) for p, d in files if IndexHeader.unpack(d).begin_offset < offset][-1]


def newest_synced_in_part(disk: SimulatedFileSystem) -> tuple[str, bytes, list[int]]:
    """The newest file with items before the checkpoint, and the offsets in these items."""
    claims = load_checkpoint(disk, f"{ROOT}/checkpoint").claims
    assert claims is not None
    path, data = newest_begun_before(disk, claims.complete_to)
    at, numbers = SMALL.index_shape.items_at, range(1, IndexHeader.unpack(data).next_item)
    offsets = [ITEM.unpack_from(data, at + number * ITEM_SIZE)[1] for number in numbers]
    synced = [offset for offset in offsets if offset < claims.complete_to]
    assert 0 < len(synced) < len(offsets)
    return path, data, synced


Forge: TypeAlias = "Callable[[tuple[int, ...]], bytes]"
FORGED: dict[str, Forge] = {
    "zeros": lambda _: bytes(ITEM_SIZE),
    "leads in front": lambda item: ITEM.pack(item[0], 1, item[2], item[3]),
    "leads behind": lambda item: ITEM.pack(item[0], item[1] + (1 << 40), item[2], item[3]),
    "leads a little behind": lambda item: ITEM.pack(item[0], item[1] + 700, item[2], item[3]),
    "no hash": lambda item: ITEM.pack(-5, *item[1:]),
}


def with_damaged_item(
    number: int, forged: Forge, config: StoreConfig = OFTEN
) -> SimulatedFileSystem:
    """A killed store with damage in one of its synced items, the last of which is number -1."""
    disk = small_store(config, close=False).kill()
    path, data, offsets = newest_synced_in_part(disk)
    assert number < len(offsets)
    number = number if number > 0 else len(offsets) + 1 + number
    at = SMALL.index_shape.items_at + number * ITEM_SIZE
    file = disk.open(path)
    file.write(forged(ITEM.unpack_from(data, at)), at)
    file.sync()
    return disk


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("number", [2, 5, -2, -1])
def test_the_keys_behind_a_damaged_item_of_a_killed_store_are_made_anew(
    number: int, forged: Forge, caplog: pytest.LogCaptureFixture
) -> None:
    disk = with_damaged_item(number, forged)
    assert not verified(disk).is_sound
    store = open_small_store(disk, OFTEN)
    assert any("is damaged: it and those after it are rebuilt" in e for e in caplog.messages)
    assert store.close(1)
    assert load_off(disk, ROOT) is None
    assert verified(disk).is_sound


def test_so_is_the_last_one_of_a_key_that_all_messages_have() -> None:
    disk = SimulatedFileSystem()
    store = open_small_store(disk, OFTEN)
    for now_ms in range(BEGUN_MS, BEGUN_MS + 20 * 1500, 1500):
        store.put("T", 0, b"", b"KEYS\x01all\x02", Origin(now_ms, now_ms, HOST))
        store.commit()
        store.run_jobs()
        store.advance()
        store.tick(now_ms)
    disk = disk.kill()
    path, _, synced = newest_synced_in_part(disk)
    at = SMALL.index_shape.items_at + len(synced) * ITEM_SIZE
    overwrite(disk, path, at, bytes(ITEM_SIZE))
    assert bodies_of_all(open_small_store(disk, OFTEN)) == list(reversed(range(20)))


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("item", [2, -1])
def test_so_they_are_when_that_start_is_killed(item: int, moment: Moment) -> None:
    number, was_killed = 0, True
    while was_killed:
        number += 1
        disk = with_damaged_item(item, FORGED["zeros"])
        disk.hook = KillAt(disk.operations + number, moment)
        try:
            open_small_store(disk, OFTEN)
            was_killed = False
        except Killed:
            disk.hook = None
            disk = disk.power_cut(Random(number)) if number % 2 else disk.kill()
            assert open_small_store(disk, OFTEN).close(1)
            assert verified(disk).is_sound, number
    assert number > 20


def test_it_is_refused_before_a_byte_is_changed_where_the_log_lacks_those_records() -> None:
    config = replace(OFTEN, verify_size=256, integrity=False)
    disk = with_damaged_item(2, FORGED["zeros"], config)
    _, _, offsets = newest_synced_in_part(disk)
    place, size = offsets[3], SMALL.segment_size
    claims = load_checkpoint(disk, f"{ROOT}/checkpoint").claims
    assert claims is not None
    assert place < claims.verify_from
    flip(disk, f"{ROOT}/commitlog/{place - place % size:020d}", place % size + 2)
    before = contents(disk)
    with pytest.raises(CorruptionError, match=f"at byte {place % size}: no sound record"):
        open_small_store(disk, config)
    assert contents(disk) == before


def test_of_keys_in_front_of_a_damaged_item_the_records_may_have_expired() -> None:
    config, first = replace(OFTEN, index_items=4000), SMALL.segment_size
    disk = small_store(config, close=False).kill()
    path, data, offsets = newest_synced_in_part(disk)
    number = next(number for number, offset in enumerate(offsets) if offset >= first)
    at = config.index_shape.items_at + number * ITEM_SIZE
    assert ITEM.unpack_from(data, at)[1] < first
    disk.open(path).write(bytes(ITEM_SIZE), at)
    disk.remove(f"{ROOT}/commitlog/{0:020d}")
    assert open_small_store(disk, config).close(1)
    assert verified(disk, config=config).is_sound


@pytest.mark.parametrize("before", [-2, 0], ids=["before its predecessor", "before all"])
@pytest.mark.parametrize("killed", [False, True])
def test_files_that_apache_named_while_its_clock_went_back_are_in_the_order_of_the_log(
    before: int, *, killed: bool
) -> None:
    disk = small_store()
    names = sorted(contents(disk, INDEX))
    earlier = f"{INDEX}/{int(names[before].rpartition('/')[2]) - 1:017d}"
    disk.rename(names[-1], earlier)
    end = verified(disk).end_offset
    numbers = (*(BEGUN_MS + 39 * 1500,) * 3, end, end, end - 1)
    overwrite(disk, f"{ROOT}/checkpoint", 0, struct.pack(">6q", *numbers).ljust(4096, b"\0"))
    disk.remove(f"{ROOT}/queue_ends.json")
    assert verified(disk).findings == []
    expected = list(range(40))
    for number in range(40, 60):
        store = open_small_store(disk)
        assert bodies_of_all(store) == expected[::-1]
        now_ms = BEGUN_MS + number * 1500
        store.put("T", 0, b"%d" % number, b"KEYS\x01all\x02", Origin(now_ms, now_ms, HOST))
        store.commit()
        store.run_jobs()
        store.advance()
        expected.append(number)
        if killed and number % 2:
            store.queues.write_behind(1 << 60, 1 << 20)
            disk = disk.kill()
        else:
            assert store.close(now_ms)
            assert verified(disk).findings == []


def bodies_of_all(store: MessageStore) -> list[int]:
    """Return the numbers of the messages with the key that all have, newest first."""
    found = store.query("T", "all", 1000, begin_ms=0, end_ms=1 << 62, now_ms=1)
    numbers: list[int] = []
    for offset in found:
        record = store.find_record(offset)
        assert record is not None
        assert not isinstance(record, Cold)
        numbers.append((read_message(bytes(record)).store_timestamp - BEGUN_MS) // 1500)
    return numbers
