"""Which segments are removed, in which order, and what a power cut in between leaves."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import pytest
from tests.crash.disk import SimulatedFileSystem

from cometmq.store.config import StoreConfig
from cometmq.store.disk.filesystem import Space
from cometmq.store.log.segments import Segments
from cometmq.store.upkeep.retention import (
    HOUR_MS,
    ROUNDS_OF_A_REQUEST,
    Reason,
    Removal,
    Retention,
    SegmentFile,
    Situation,
    decide,
    used_percent,
)

SIZE = 4096
NOW_MS = 1_800_000_000_000
OLD, YOUNG = NOW_MS - 72 * HOUR_MS, NOW_MS - 72 * HOUR_MS + 1
AWAY = (time.localtime(NOW_MS / 1000).tm_hour + 12) % 24
"""An hour of the day that is not now, wherever the tests run."""
EMPTY = Space(100 * SIZE, 90 * SIZE)
Q, F, A = Reason.QUOTA, Reason.FULL, Reason.AGE


def used(percent: int) -> Space:
    return Space(100 * SIZE, (100 - percent) * SIZE)


def config(**settings: object) -> StoreConfig:
    return StoreConfig(segment_size=SIZE, **settings)  # type: ignore[arg-type]  # Any setting.


CASES: list[tuple[str, list[int], dict[str, object], dict[str, object], list[Reason]]] = [
    # what, when each segment was written, situation, settings, reasons
    ("nothing to do", [YOUNG] * 5, {}, {}, []),
    ("an empty log", [], {"hour": 4}, {}, []),
    ("old, but not at this hour", [OLD] * 5, {"hour": 5}, {}, []),
    ("old at the hour", [OLD] * 5, {"hour": 4}, {}, [A] * 4),
    ("old at one of the hours", [OLD] * 2, {"hour": 0}, {"retention_hours_of_day": (0, 4)}, [A]),
    ("old, and asked for", [OLD] * 3, {"is_asked": True}, {}, [A] * 2),
    ("old, and the disk fills", [OLD] * 3, {"spaces": [used(76)]}, {}, [A]),
    ("old, and the disk fills more", [OLD] * 5, {"spaces": [used(78)]}, {}, [A] * 3),
    ("young, and the disk fills", [YOUNG] * 3, {"spaces": [used(85)]}, {}, []),
    ("young, and the disk is full", [YOUNG] * 9, {"spaces": [used(88)]}, {}, [F] * 3),
    ("the last never goes", [OLD] * 2, {"spaces": [used(100)]}, {}, [F]),
    ("the only one never goes", [OLD], {"spaces": [used(100)], "hour": 4}, {}, []),
    ("stops at a young one", [OLD, OLD, YOUNG, OLD, OLD], {"hour": 4}, {}, [A] * 2),
    ("from the future is young", [NOW_MS + HOUR_MS, OLD, OLD], {"hour": 4}, {}, []),
    ("at most so many", [OLD] * 9, {"hour": 4}, {"retention_files_max": 3}, [A] * 3),
    ("quota at any hour", [YOUNG] * 5, {}, {"retention_size_max": 3 * SIZE}, [Q] * 2),
    ("quota just kept", [YOUNG] * 5, {}, {"retention_size_max": 5 * SIZE}, []),
    ("quota below one segment", [YOUNG] * 3, {}, {"retention_size_max": 1}, [Q] * 2),
    ("quota, then age", [OLD] * 4, {"hour": 4}, {"retention_size_max": 3 * SIZE}, [Q, A, A]),
    ("full, then age", [OLD] * 8, {"spaces": [used(86)]}, {}, [F] + [A] * 6),
    ("another partition is full", [YOUNG] * 4, {"spaces": [EMPTY, used(86)]}, {}, [F] * 3),
    ("too many pinned", [OLD] * 5, {"pinned_count": 4, "spaces": [used(99)]}, {}, []),
    ("some pinned", [OLD] * 3, {"pinned_count": 3, "hour": 4}, {}, [A] * 2),
    ("kept for an hour", [NOW_MS - HOUR_MS] * 2, {"hour": 4}, {"retention_hours": 1}, [A]),
]


@pytest.mark.parametrize(
    ("written", "situation", "settings", "reasons"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_what_goes_is_what_the_rules_say(
    written: list[int],
    situation: dict[str, object],
    settings: dict[str, object],
    reasons: list[Reason],
) -> None:
    files = [SegmentFile(n * SIZE, SIZE, modified) for n, modified in enumerate(written)]
    known: dict[str, object] = {
        "now_ms": NOW_MS,
        "hour": 12,
        "log_size": len(files) * SIZE,
        "spaces": [EMPTY],
    }
    chosen = decide(files, Situation(**known | situation), config(**settings))  # type: ignore[arg-type]  # Any fact.
    assert chosen == [Removal(n * SIZE, reason) for n, reason in enumerate(reasons)]


def test_no_more_files_are_looked_at_than_go() -> None:
    looked = 0

    def files() -> Iterator[SegmentFile]:
        nonlocal looked
        for number in range(1000):
            looked += 1
            yield SegmentFile(number * SIZE, SIZE, OLD if number < 3 else YOUNG)

    situation = Situation(now_ms=NOW_MS, hour=4, log_size=1000 * SIZE, spaces=[EMPTY])
    assert len(decide(files(), situation, config())) == 3
    assert looked == 4


def test_the_used_part_is_rounded_up_and_the_fullest_partition_counts() -> None:
    assert used_percent([Space(1000, 149)]) == 86
    assert used_percent([Space(1000, 150)]) == 85
    assert used_percent([Space(1000, 900), Space(10, 2)]) == 80
    assert used_percent([Space(1000, 149)], freed=1) == 85
    assert used_percent([Space(0, 0)]) == 0


class Store:
    """A log of some segments on a simulated disk, with what follows it."""

    def __init__(self, count: int, **settings: object) -> None:
        self.disk = SimulatedFileSystem(total=100 * SIZE, now_ms=OLD)
        self.disk.make_directories("/s/commitlog")
        self.disk.sync_directory("/s/commitlog")
        self.segments = Segments(self.disk, "/s/commitlog", SIZE)
        for number in range(count):
            self.segments.obtain(number * SIZE)
        self.segments.synced_offset = count * SIZE
        self.followed: list[int] = []
        self.settled_offset = count * SIZE
        self.held_count = 0
        self.retention = Retention(
            self.disk,
            self.segments,
            config(**{"retention_hours_of_day": (AWAY,)} | settings),
            paths=["/s/commitlog", "/s"],
            follow=self.followed.append,
            settled_offset=lambda: self.settled_offset,
            on_held=self.hold,
        )

    def hold(self) -> None:
        self.held_count += 1

    def round(self, now_ms: int = NOW_MS) -> list[Removal]:
        plan = self.retention.plan(now_ms)
        for removal in plan:
            self.retention.remove(removal)
            self.retention.settle()
        return plan


def test_segments_over_the_quota_go_and_the_rest_of_the_store_follows_each() -> None:
    store = Store(6, retention_size_max=3 * SIZE)
    assert [removal.reason for removal in store.round()] == [Q] * 3
    assert store.followed == [SIZE, 2 * SIZE, 3 * SIZE]
    assert [segment.start for segment in store.segments] == [3 * SIZE, 4 * SIZE, 5 * SIZE]
    assert store.round() == []
    assert store.retention.removed == {Q: 3}


def test_the_hour_is_the_one_on_the_clocks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    hour = time.gmtime(NOW_MS / 1000).tm_hour
    try:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("TZ", "EAST-03:00")
            time.tzset()
            assert Store(2, retention_hours_of_day=(hour,)).round() == []
            store = Store(2, retention_hours_of_day=((hour + 3) % 24,))
            assert [removal.reason for removal in store.round()] == [A]
    finally:
        time.tzset()


def test_old_segments_go_in_the_hour_and_for_some_rounds_after_an_operator_asked() -> None:
    hour = time.localtime(NOW_MS / 1000).tm_hour
    store = Store(3, retention_hours_of_day=(hour,), retention_files_max=1)
    assert store.round(NOW_MS + 2 * HOUR_MS) == []
    assert len(store.round()) == 1
    assert store.round(NOW_MS + 2 * HOUR_MS) == []
    store.retention.ask()
    assert len(store.round(NOW_MS + 2 * HOUR_MS)) == 1
    store.segments.obtain(3 * SIZE)
    store.settled_offset = 4 * SIZE
    for _ in range(ROUNDS_OF_A_REQUEST):
        store.retention.plan(NOW_MS + 2 * HOUR_MS)
    assert store.round(NOW_MS + 2 * HOUR_MS) == []


def test_a_full_disk_refuses_puts_until_enough_is_free_again() -> None:
    store = Store(5)
    filler = store.disk.open("/filler", create=True)
    filler.allocate(86 * SIZE)
    assert store.retention.plan(NOW_MS - 10) != []
    assert store.retention.is_full
    filler.resize(83 * SIZE)
    store.retention.plan(NOW_MS - 10)
    assert store.retention.is_full
    for removal in store.retention.plan(NOW_MS - 10):
        assert store.retention.is_full
        store.retention.remove(removal)
        store.retention.settle()
        store.retention.look()
    assert not store.retention.is_full
    assert store.retention.removed.total() == store.retention.removed[Reason.FULL] > 0


def test_a_reader_keeps_its_bytes_and_too_many_of_them_stop_the_removals() -> None:
    store = Store(5, retention_size_max=SIZE, segment_pins_max=2, retention_files_max=1)
    slices = [store.segments.view(segment)[:4] for segment in store.segments]
    assert [len(store.round()) for _ in range(4)] == [1, 1, 0, 0]
    assert bytes(slices[0]) == bytes(4)
    free = store.disk.space("/s").free
    slices[0].release()
    assert len(store.round()) == 1
    assert store.disk.space("/s").free == free + SIZE


def test_a_plan_that_the_log_has_overtaken_removes_nothing_else() -> None:
    store = Store(4, retention_size_max=SIZE)
    plan = store.retention.plan(NOW_MS)
    assert store.retention.remove(plan[0])
    store.retention.settle()
    assert not store.retention.remove(plan[0])
    assert [segment.start for segment in store.segments] == [SIZE, 2 * SIZE, 3 * SIZE]


def test_a_power_cut_during_a_round_leaves_a_log_without_a_gap() -> None:
    for stop in itertools.count():
        store = Store(5, retention_size_max=SIZE)
        steps: list[Callable[[], object]] = []
        for removal in store.retention.plan(NOW_MS):
            steps += [partial(store.retention.remove, removal), store.retention.settle]
        for step in steps[:stop]:
            step()
        settled = stop // 2
        for seed in range(30):
            opened = Segments(store.disk.power_cut(Random(seed)), "/s/commitlog", SIZE)
            assert opened.first_offset == settled * SIZE
            assert opened.end_offset == 5 * SIZE
        if stop == len(steps):
            break


def test_a_file_that_cannot_be_removed_is_out_of_the_log_and_removed_later() -> None:
    store = Store(3, retention_size_max=SIZE)
    plan = store.retention.plan(NOW_MS)
    assert store.retention.remove(plan[0])
    store.disk.read_only = True
    with pytest.raises(OSError, match="Read-only file system"):
        store.retention.settle()
    assert store.followed == [SIZE]
    assert store.retention.is_leaving
    store.disk.read_only = False
    store.retention.settle()
    assert not store.retention.is_leaving
    assert [entry.name for entry in store.disk.list("/s/commitlog")] == [
        f"{start:020d}" for start in (SIZE, 2 * SIZE)
    ]


def test_the_segment_in_which_the_log_ends_stays_when_the_next_is_already_made() -> None:
    disk = SimulatedFileSystem()
    disk.make_directories("/s/commitlog")
    segments = Segments(disk, "/s/commitlog", SIZE)
    for number in range(3):
        segments.obtain(number * SIZE)
    segments.synced_offset = SIZE + 5
    config = StoreConfig(segment_size=SIZE, retention_size_max=1)
    retention = Retention(
        disk,
        segments,
        config,
        paths=["/s"],
        follow=list[int]().append,
        settled_offset=lambda: 3 * SIZE,
    )
    assert [removal.start for removal in retention.plan(1)] == [0]


def test_what_the_queues_may_still_lose_in_a_power_cut_stays() -> None:
    store = Store(5, retention_size_max=SIZE)
    store.settled_offset = 2 * SIZE + 5
    assert [removal.start for removal in store.retention.plan(NOW_MS)] == [0, SIZE]
    assert store.held_count == 1


def test_only_what_should_go_and_must_stay_is_told_of() -> None:
    store = Store(5, retention_size_max=3 * SIZE)
    store.settled_offset = 2 * SIZE + 5
    assert [removal.start for removal in store.retention.plan(NOW_MS)] == [0, SIZE]
    assert store.held_count == 0
