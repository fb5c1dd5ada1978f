"""What is at a single place of a log: a record, its store time, or the filler of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.pipeline.store.logs import SIZE, change, write_log

from cometmq.pipeline.store.places import behind_filler, first_since, record_at, store_time_ms
from cometmq.pipeline.store.splits import look

if TYPE_CHECKING:
    from pathlib import Path


def timed_log(root: Path) -> list[int]:
    """Write a log of four files; each record was stored a second after the one before it."""
    places = write_log(root, [b"x" * 200] * 40)
    for number, place in enumerate(places):
        change(root, place + 56, (1000 * number).to_bytes(8, "big"))
    return places


def test_a_record_is_found_where_one_begins_and_nowhere_else(tmp_path: Path) -> None:
    places = timed_log(tmp_path)
    log = look(str(tmp_path))
    assert log.last == places[-1]
    for number, place in enumerate(places):
        record = record_at(log, place)
        assert record is not None
        assert store_time_ms(record) == 1000 * number
    for place in (places[3] + 1, log.end, SIZE - 3, SIZE * 9):
        assert record_at(log, place) is None


def test_reading_begins_with_the_file_that_may_have_the_first_record_of_a_time(
    tmp_path: Path,
) -> None:
    timed_log(tmp_path)  # Each file has 13 records, the last one has one.
    log = look(str(tmp_path))
    for since, start in (
        (0, 0),
        (13_000, 0),  # The next file begins with this time, but this one may end with it.
        (13_001, SIZE),
        (26_000, SIZE),
        (26_001, 2 * SIZE),
        (10**9, 3 * SIZE),
    ):
        assert first_since(log, since) == start, since


def test_a_file_whose_first_record_is_damaged_is_no_place_to_begin(tmp_path: Path) -> None:
    places = timed_log(tmp_path)
    change(tmp_path, places[26] + 4, b"\xff")
    assert first_since(look(str(tmp_path)), 30_000) == SIZE


def test_filler_is_told_from_what_else_may_stand_behind_a_record(tmp_path: Path) -> None:
    places = timed_log(tmp_path)
    log = look(str(tmp_path))
    record = record_at(log, places[12])
    assert record is not None
    end = places[12] + int(record.sizes[0])
    assert behind_filler(log, end) == SIZE
    for place in (places[12], log.end, SIZE - 3, SIZE * 9):
        assert behind_filler(log, place) == place
