"""What a start makes sure of before anything is put."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import Killed, Moment, SimulatedFileSystem
from tests.crash.oracle import ROOT
from tests.crash.subject import Subject
from tests.store.damaged_stores import content

from cometmq.store.config import StoreConfig
from cometmq.store.errors import StoreFormatError
from cometmq.store.looking.inspection import inspect

if TYPE_CHECKING:
    from tests.crash.disk import Operation

SEGMENT = 8192
CONFIG = StoreConfig(segment_size=SEGMENT, index_slots=16, index_items=400)
NOW_MS = 1_700_000_000_000


def put_up_to(subject: Subject, end_offset: int) -> None:
    """Put messages, each safe before the next, until the log reaches that far."""
    while subject.end_offset < end_offset:
        subject.put("T", 0, b"body" * 50, {}, NOW_MS)
        subject.commit()
        subject.sync()


def kill_behind_the_naming_of_a_segment(operation: Operation) -> None:
    is_name = operation.verb == "rename" and operation.moment is Moment.AFTER
    if is_name and operation.path.endswith("commitlog.new"):
        raise Killed(operation)


def test_what_is_put_into_a_segment_whose_name_a_kill_left_unsure_is_safe() -> None:
    for seed in range(20):
        disk = SimulatedFileSystem()
        subject = Subject(disk, CONFIG, NOW_MS)
        put_up_to(subject, 1)
        disk.hook = kill_behind_the_naming_of_a_segment
        with pytest.raises(Killed):
            put_up_to(subject, SEGMENT)
        disk = disk.kill()
        subject = Subject(disk, CONFIG, NOW_MS)
        put_up_to(subject, SEGMENT + 1)
        assert subject.synced_offset == subject.end_offset
        bodies = subject.read_all("T", 0)
        subject = Subject(disk.power_cut(Random(seed)), CONFIG, NOW_MS)
        assert subject.read_all("T", 0) == bodies


def test_a_last_segment_that_is_short_is_whole_before_the_next_one_is_made() -> None:
    """Otherwise it would be refused in the middle of the row, though no record was put."""
    disk = SimulatedFileSystem()
    subject = Subject(disk, CONFIG, NOW_MS)
    put_up_to(subject, SEGMENT // 2 + 1)
    end = subject.end_offset
    disk = disk.kill()
    first, second = (f"{ROOT}/commitlog/{start:020d}" for start in (0, SEGMENT))
    if disk.exists(second):
        disk.remove(second)
    disk.open(first).resize(end)
    Subject(disk, CONFIG, NOW_MS).sync()
    assert disk.exists(second)
    for seed in range(8):
        cut = disk.power_cut(Random(seed))
        assert content(cut, first)[end:] == bytes(SEGMENT - end)
        assert Subject(cut, CONFIG, NOW_MS).end_offset == end


@pytest.mark.parametrize("missing", [1, SEGMENT // 2 - 2000])
def test_behind_a_clean_stop_a_last_segment_that_is_short_is_refused(missing: int) -> None:
    """Neither we nor Apache leave it so: somebody cut it, even if all records are there."""
    disk = SimulatedFileSystem()
    subject = Subject(disk, CONFIG, NOW_MS)
    put_up_to(subject, SEGMENT // 2 + 1)
    end = subject.end_offset
    assert subject.close(NOW_MS)
    disk = disk.kill()
    first, *ahead = (f"{ROOT}/commitlog/{each.name}" for each in disk.list(f"{ROOT}/commitlog"))
    for path in ahead:
        disk.remove(path)
    disk.open(first).resize(SEGMENT - missing)
    refusal = rf"{SEGMENT - missing} bytes, but .* {SEGMENT}; .*truncate -s {SEGMENT}"
    for look in (lambda: inspect(disk, ROOT, CONFIG), lambda: Subject(disk, CONFIG, NOW_MS)):
        with pytest.raises(StoreFormatError, match=refusal):
            look()
    assert disk.open(first).size() == SEGMENT - missing
    disk.open(first).resize(SEGMENT)  # As it says.
    assert Subject(disk, CONFIG, NOW_MS).end_offset == end
