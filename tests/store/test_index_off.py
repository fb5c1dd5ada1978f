"""Messages put while the index was off are found once it is on again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from tests.crash.disk import KillAt, Killed, SimulatedFileSystem
from tests.store.damaged_stores import ROOT, files_of, flip, forget_shape, verified
from tests.store.records import HOST

from cometmq.store.config import StoreConfig
from cometmq.store.index.index_off import INDEX_OFF, load_off, note_off
from cometmq.store.log.turn import Origin
from cometmq.store.looking.findings import Kind
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending.rebuilding import Rebuilt, rebuild
from cometmq.store.message_store import MessageStore

NOW_MS = 1_700_000_000_000
ON = StoreConfig(segment_size=8192, index_slots=16, index_items=30, consume_queue_file_size=400)
OFF = replace(ON, index=False)
PUT = 40


def opened(disk: SimulatedFileSystem, config: StoreConfig) -> MessageStore:
    return MessageStore.open(
        ROOT,
        config,
        now_ms=NOW_MS,
        filesystem=disk,
        is_batch_topic=lambda _: False,
        threads=False,
    )


def put(store: MessageStore, session: int, count: int = PUT) -> None:
    for number in range(count):
        properties = b"KEYS\x01s%d-%d\x02" % (session, number)
        store.put("T", 0, b"body", properties, Origin(NOW_MS, NOW_MS, HOST))
        store.commit()
    store.run_jobs()
    store.advance()


def lived(disk: SimulatedFileSystem, config: StoreConfig, session: int) -> None:
    store = opened(disk, config)
    put(store, session)
    assert store.close(NOW_MS)


def missing(store: MessageStore, *sessions: int) -> list[str]:
    keys = [f"s{session}-{number}" for session in sessions for number in range(PUT)]
    return [
        key
        for key in keys
        if len(store.query("T", key, 9, begin_ms=0, end_ms=1 << 60, now_ms=NOW_MS)) != 1
    ]


def test_keys_that_were_put_while_the_index_was_off_are_found_when_it_is_on_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedFileSystem()
    for session, config in enumerate((ON, OFF, OFF)):
        lived(disk, config, session)
    assert not caplog.messages
    store = opened(disk, ON)
    assert "keys are missing from the index: they are taken from the log" in caplog.messages[0]
    assert missing(store, 0, 1, 2) == []
    put(store, 3)
    assert missing(store, 0, 1, 2, 3) == []
    assert store.close(NOW_MS)
    assert verified(disk, config=ON).findings == []
    assert load_off(disk, ROOT) is None
    caplog.clear()
    store = opened(disk, ON)
    assert not caplog.messages
    assert missing(store, 0, 1, 2, 3) == []


def test_an_index_that_was_off_while_nothing_was_put_lacks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedFileSystem()
    lived(disk, ON, 0)
    assert opened(disk, OFF).close(NOW_MS)
    assert load_off(disk, ROOT) is not None
    store = opened(disk, ON)
    assert not caplog.messages
    assert load_off(disk, ROOT) is None
    assert missing(store, 0) == []


def test_a_store_that_never_had_an_index_gets_one_of_all_it_holds() -> None:
    disk = SimulatedFileSystem()
    lived(disk, OFF, 0)
    store = opened(disk, ON)
    assert missing(store, 0) == []
    assert store.close(NOW_MS)
    assert verified(disk, config=ON).findings == []


def test_verify_takes_what_an_index_that_is_off_never_had_for_no_damage_and_says_so() -> None:
    disk = SimulatedFileSystem()
    lived(disk, ON, 0)
    lived(disk, OFF, 1)
    store = opened(disk, OFF)
    put(store, 2)
    report = verified(disk.other_process(), config=ON)
    assert report.findings == []
    assert any("the index was turned off at" in note for note in report.notes)
    assert store.close(NOW_MS)
    report = verified(disk, config=ON)
    assert report.findings == []
    assert (report.items, report.unsettled_items) == (PUT, 2 * PUT)
    assert any("cometmq store rebuild" in note for note in report.notes)


def test_a_rebuild_puts_them_in_too() -> None:
    disk = SimulatedFileSystem()
    lived(disk, ON, 0)
    lived(disk, OFF, 1)
    for _ in rebuild(inspect(disk, ROOT, ON), Rebuilt(), NOW_MS):
        pass
    assert load_off(disk, ROOT) is None
    assert verified(disk, config=ON).items == 2 * PUT


def test_an_index_made_anew_and_lost_to_a_power_cut_has_no_chains_in_front_of_the_log() -> None:
    """Its zeros would be items of the first record, which has expired."""
    disk = SimulatedFileSystem()
    for session in range(3):
        lived(disk, OFF, session)
    oldest = next(files_of(disk, f"{ROOT}/commitlog"))
    disk.remove(oldest)
    disk.sync_directory(f"{ROOT}/commitlog")
    store = opened(disk, ON)
    assert missing(store, 2) == []  # So that all of them are in files.
    disk = disk.kill()
    first = disk.open(next(files_of(disk, f"{ROOT}/index")))
    first.resize(124)  # Its header says what it had.
    assert verified(disk, config=ON).findings == []


@pytest.mark.parametrize("loses_power", [False, True])
def test_an_index_that_was_killed_and_then_off_is_mended_when_it_is_on_again(
    loses_power: bool,
) -> None:
    for kill_at in range(5, 200, 13):
        disk = SimulatedFileSystem()
        lived(disk, ON, 0)
        store = opened(disk, ON)
        disk.hook = KillAt(disk.operations + kill_at)
        with suppress(Killed):
            for _ in range(PUT):
                put(store, 1, 3)
                for _ in range(3):
                    store.tick(NOW_MS + 200)
                    store.run_jobs()
        after = disk.power_cut(Random(kill_at)) if loses_power else disk.kill()
        lived(after, OFF, 2)
        store = opened(after, ON)
        assert missing(store, 0, 2) == []
        assert store.close(NOW_MS)
        assert verified(after, config=ON).findings == [], kill_at


def test_an_index_file_that_a_crash_left_half_made_is_no_damage_while_it_is_off() -> None:
    """The stop without the index was clean, but nobody mended the file."""
    disk = SimulatedFileSystem()
    lived(disk, ON, 0)
    store = opened(disk, ON)
    put(store, 1)
    assert missing(store, 1) == []
    disk = disk.kill()
    newest = disk.open([*files_of(disk, f"{ROOT}/index")][-1])
    newest.resize(0)
    newest.resize(100)
    lived(disk, OFF, 2)
    assert verified(disk, config=ON).findings == []
    store = opened(disk, ON)
    assert missing(store, 0, 1, 2) == []
    assert store.close(NOW_MS)
    assert verified(disk, config=ON).findings == []


def test_items_that_a_power_cut_tore_are_no_damage_but_those_in_front_of_them_are() -> None:
    for seed in range(60):
        disk = SimulatedFileSystem()
        lived(disk, ON, 0)
        store = opened(disk, ON)
        put(store, 1, 10 + seed % 50)
        missing(store, 1)  # So that all of them are in files, and not synced.
        disk = disk.power_cut(Random(seed))
        assert verified(disk, config=ON).findings == [], seed
        first = next(files_of(disk, f"{ROOT}/index"))
        flip(disk, first, 40 + ON.index_slots * 4 + 20)  # The hash of its first item.
        assert Kind.WRONG_ITEM in verified(disk, config=ON).counts


def without_items(*, is_closed: bool) -> SimulatedFileSystem:
    disk = SimulatedFileSystem()
    lived(disk, ON, 0)
    if not is_closed:
        opened(disk, ON)
        disk = disk.kill()
    for path in files_of(disk, f"{ROOT}/index"):
        file = disk.open(path)
        items_at = 40 + ON.index_slots * 4 + 20
        file.write(bytes(file.size() - items_at), items_at)
    return disk


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_index_whose_shape_is_listed_is_checked_though_its_items_are_gone(
    is_closed: bool,  # A parameter of the test.
) -> None:
    report = verified(without_items(is_closed=is_closed), config=StoreConfig())
    assert Kind.WRONG_ITEM in report.counts
    assert not any("the index is not checked: " in note for note in report.notes)


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_index_of_unknown_shape_is_damage_only_where_the_store_was_shut_down(
    is_closed: bool,  # A parameter of the test.
) -> None:
    disk = without_items(is_closed=is_closed)
    forget_shape(disk)
    report = verified(disk, config=StoreConfig())
    is_noted = any("the index is not checked: " in note for note in report.notes)
    assert (bool(report.findings), is_noted) == (is_closed, not is_closed)


@pytest.mark.parametrize("loses_power", [False, True])
def test_killed_at_any_moment_the_catching_up_is_done_by_a_later_start(loses_power: bool) -> None:
    def before() -> SimulatedFileSystem:
        disk = SimulatedFileSystem()
        for session, config in enumerate((ON, OFF)):
            lived(disk, config, session)
        return disk

    disk = before()
    first = disk.operations
    lived(disk, ON, 2)
    for number in range(first + 1, disk.operations, 7):
        killed = before()
        killed.hook = KillAt(killed.operations + number - first)
        with pytest.raises(Killed):
            lived(killed, ON, 2)
        after = killed.power_cut(Random(number)) if loses_power else killed.kill()
        store = opened(after, ON)
        assert missing(store, 0, 1) == []
        assert store.close(NOW_MS)
        assert verified(after, config=ON).findings == [], number


@pytest.mark.parametrize("text", [b"", b"\0\0\0", b"x", b"17", b'{"offset":17,"version":1}'])
def test_a_note_that_is_damaged_says_that_everything_may_be_missing(text: bytes) -> None:
    disk = SimulatedFileSystem()
    disk.make_directories(ROOT)
    file = disk.open(f"{ROOT}/{INDEX_OFF}", create=True)
    file.write(text, 0)
    file.close()
    assert load_off(disk, ROOT) == 0


def test_the_first_place_that_was_noted_stays() -> None:
    disk = SimulatedFileSystem()
    disk.make_directories(ROOT)
    note_off(disk, ROOT, 500)
    note_off(disk, ROOT, 900)
    assert load_off(disk, ROOT) == 500
    note_off(disk, ROOT, 20)
    assert load_off(disk, ROOT) == 20


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_note_is_there_as_a_whole_or_not_at_all(kind: str) -> None:
    """Half of it is another place, at which no record may begin."""

    def before() -> SimulatedFileSystem:
        disk = SimulatedFileSystem()
        disk.make_directories(ROOT)
        note_off(disk, ROOT, 98765)
        return disk

    disk = before()
    first = disk.operations
    note_off(disk, ROOT, 54321)
    for number in range(1, disk.operations - first + 1):
        for seed in range(20):
            killed = before()
            killed.hook = KillAt(killed.operations + number)
            with suppress(Killed):
                note_off(killed, ROOT, 54321)
            after = killed.kill() if kind == "kill" else killed.power_cut(Random(seed))
            assert load_off(after, ROOT) in {98765, 54321}
