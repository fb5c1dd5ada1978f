"""The table of torn and corrupt places, row by row; and from where a start reads the log."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from tests.crash.disk import KillAt, Killed, SimulatedFileSystem
from tests.store.records import record

from cometmq.store.errors import CorruptionError
from cometmq.store.log.segments import Segments
from cometmq.store.starting.log_repair import repairing
from cometmq.store.starting.recovery import (
    VERDICTS,
    Behind,
    LogEnd,
    Promise,
    Start,
    Verdict,
    choose_start,
    find_end,
)
from cometmq.store.upkeep.checkpoint import Checkpoint, Claims, Longs

SIZE = 4096
LOG = "/s/commitlog"
NEAR = 2000
PROMISES = {
    "up to here, at most": [Promise.KEPT],
    "further": [Promise.BROKEN],
    "nobody knows": [Promise.UNKNOWN],
    "up to here, at most, or nobody knows": [Promise.KEPT, Promise.UNKNOWN],
}
PLACES = {
    "none": [Behind.NOTHING],
    "near": [Behind.NEAR],
    "far": [Behind.FAR],
    "none, near or far": list(Behind),
    "any": list(Behind),
}
"""What the words of docs/store.md mean."""


def log_of(disk: SimulatedFileSystem, *contents: bytes) -> Segments:
    disk.make_directories(LOG)
    for number, content in enumerate(contents):
        file = disk.open(f"{LOG}/{number * SIZE:020d}", create=True)
        file.resize(SIZE)
        file.write(content, 0)
        file.sync()
        file.close()
    disk.sync_directory("/s")
    disk.sync_directory(LOG)
    return Segments(disk, LOG, SIZE)


def repair(
    disk: SimulatedFileSystem, segments: Segments, start: Start, end: LogEnd, *, clean: bool = False
) -> str | None:
    """Make the log what it was found to be, in this thread only."""
    with repairing(
        disk, "/s", segments, start, end, clean=clean, turn_size_max=0, threads=False
    ) as kept:
        pass
    return kept


def torn(behind: Behind) -> tuple[bytes, int]:
    """Return a sound record, a bad place and what follows it; and where the bad place is."""
    first = record(0, b"sound")
    data = first + b"\xff" * 20
    if behind is not Behind.NOTHING:
        place = len(first) + (1000 if behind is Behind.NEAR else 3000)
        data = data.ljust(place, b"\0") + record(place, b"behind", properties=b"A\x01b\x02")
    return data, len(first)


@pytest.mark.parametrize(
    ("clean", "promise", "behind"), list(product((True, False), Promise, Behind))
)
def test_every_row_of_the_table_is_what_a_start_does(
    clean: bool, promise: Promise, behind: Behind
) -> None:
    disk = SimulatedFileSystem()
    data, bad = torn(behind)
    segments = log_of(disk, data)
    synced = {Promise.KEPT: bad, Promise.BROKEN: bad + 1, Promise.UNKNOWN: None}[promise]
    start = Start(0, 0, synced, is_noted=True)
    before = disk.operations
    if VERDICTS[clean, promise, behind] is Verdict.CORRUPT:
        with pytest.raises(CorruptionError, match=f"{0:020d}: at byte {bad}:"):
            find_end(segments, start, clean=clean, unsynced_size_max=NEAR)
        assert disk.operations == before
    else:
        end = find_end(segments, start, clean=clean, unsynced_size_max=NEAR)
        assert (end.offset, end.data_end) == (bad, len(data))
        assert disk.operations == before
        kept = repair(disk, segments, start, end, clean=clean)
        assert kept == f"/s/cut/{bad:020d}-0"
        assert kept is not None
        assert disk.open(kept).read(SIZE, 0) == data[bad:]
        assert disk.open(f"{LOG}/{0:020d}").read(SIZE, 0) == data[:bad].ljust(SIZE, b"\0")


def test_the_table_is_complete_and_a_broken_promise_is_never_cut() -> None:
    assert set(VERDICTS) == set(product((True, False), Promise, Behind))
    for (_, promise, _), verdict in VERDICTS.items():
        assert verdict is Verdict.CORRUPT or promise is not Promise.BROKEN


def test_the_page_about_the_store_has_the_same_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "store.md").read_text()
    lines = page.partition("## Torn or corrupt")[2].partition("*Near*")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    assert rows[0] == [
        "last stop",
        "the log was known to be synced",
        "sound records behind it",
        "verdict",
    ]
    told: dict[tuple[bool, Promise, Behind], Verdict] = {}
    for stop, synced, behind, verdict in rows[2:]:
        for promise, place in product(PROMISES[synced], PLACES[behind]):
            situation = (stop == "clean", promise, place)
            assert situation not in told, "two rows tell of it"
            told[situation] = Verdict.CUT if verdict.startswith("cut") else Verdict.CORRUPT
            assert verdict.startswith(("cut: ", "**corrupt**"))
    assert told == VERDICTS


def test_zeros_where_the_log_was_known_to_be_safe_are_corruption() -> None:
    segments = log_of(SimulatedFileSystem(), record(0))
    start = Start(0, 0, 500, is_noted=True)
    with pytest.raises(CorruptionError, match="safe on the disk up to offset 500"):
        find_end(segments, start, clean=False, unsynced_size_max=NEAR)


def test_a_repair_that_is_killed_anywhere_comes_to_the_same_end() -> None:
    data, bad = torn(Behind.NEAR)
    start = Start(0, 0, None, is_noted=True)
    for number in range(1, 40):
        disk = SimulatedFileSystem()
        segments = log_of(disk, data, b"\xee" * 30)
        end = find_end(segments, start, clean=False, unsynced_size_max=2 * SIZE)
        disk.hook = KillAt(disk.operations + number)
        try:
            repair(disk, segments, start, end)
        except Killed:
            disk = disk.kill()
            segments = Segments(disk, LOG, SIZE)
            again = find_end(segments, start, clean=False, unsynced_size_max=2 * SIZE)
            assert again.offset == bad
            repair(disk, segments, start, again)
        else:
            assert number > 5
            break
        assert [segment.start for segment in segments] == [0]
        assert disk.open(f"{LOG}/{0:020d}").read(SIZE, 0) == data[:bad].ljust(SIZE, b"\0")
        longest = max(entry.size for entry in disk.list("/s/cut"))
        assert longest == SIZE - bad + 30


def test_the_start_is_chosen_by_offsets_alone() -> None:
    segments = log_of(SimulatedFileSystem(), *[b""] * 4)
    claims = Claims(recover_from=9000, verify_from=5000, synced_offset=9500, segment_size=SIZE)
    ours = choose_start(segments, Checkpoint(Longs(), claims, claims))
    assert ours[:4] == (5000, 9000, 9500, True)
    apache = choose_start(segments, Checkpoint(Longs(queues_offset=9000)))
    assert apache[:4] == (2 * SIZE, 2 * SIZE, None, False)
    since = choose_start(segments, Checkpoint(Longs(queues_offset=13000), None, claims))
    assert since[:2] == (2 * SIZE, 2 * SIZE)
    assert since.least_end == 13000
    behind = choose_start(segments, Checkpoint(Longs(queues_offset=5000), None, claims))
    assert behind.least_end == 9500  # The log was on the disk so far when we had it.
    for offset in (0, -1, 99 * SIZE):
        unknown = choose_start(segments, Checkpoint(Longs(queues_offset=offset)))
        assert unknown[:3] == (0, 0, None)
