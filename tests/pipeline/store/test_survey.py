"""The rows that an audit gets about each part of a log."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.store.logs import SIZE, change, write_log

from cometmq.pipeline.store import survey
from cometmq.pipeline.store.splits import look, parts


def rows(
    root: Path, split_size: int = 64 << 20, *, runs: bool = True, sample: float = 1.0
) -> list[dict[str, object]]:
    return [
        row
        for part in parts(look(str(root)), split_size)
        for batch in survey.survey_batches(
            part, tuple(survey.COLUMNS), checksums=True, runs=runs, sample=sample
        )
        for row in batch.to_pylist()
    ]


def test_records_and_bytes_of_all_parts_are_those_of_the_log(tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 40)
    for split_size in (64 << 20, 1000, 100):
        found = [row for row in rows(tmp_path, split_size) if row["kind"] == "part"]
        assert sum(int(str(row["count"])) for row in found) == len(places)
        assert found[0]["start"] == 0
        assert found[-1]["end"] == look(str(tmp_path)).end


def test_offsets_that_follow_one_another_are_a_run_for_each_part(tmp_path: Path) -> None:
    write_log(tmp_path, [b"x" * 200] * 40)
    found = [row for row in rows(tmp_path) if row["kind"] == "run"]
    assert [(row["first"], row["count"]) for row in found] == [(0, 13), (13, 13), (26, 13), (39, 1)]
    assert {(row["topic"], row["queue_id"]) for row in found} == {("T", 0)}
    assert rows(tmp_path, runs=False) == [r for r in rows(tmp_path) if r["kind"] != "run"]


def test_a_damaged_record_is_a_row_and_a_gap(tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 10)
    change(tmp_path, places[4] + 100, b"y")
    damage, part, *runs = rows(tmp_path)
    assert (damage["kind"], damage["start"], damage["end"]) == ("damage", places[4], places[5])
    assert damage["reason"] == "the checksum of its body is wrong"
    assert str(damage["file"]).endswith(f"{0:020d}")
    assert part["count"] == 9
    assert [(run["first"], run["count"]) for run in runs] == [(0, 4), (5, 5)]
    assert places[5] < SIZE


def test_a_sample_of_checksums_is_the_same_however_the_log_is_cut(tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 8000] * 400, size=1 << 20)
    for place in places[:-1]:  # Not the last: the log ends after its last sound record.
        change(tmp_path, place + 100, b"y", size=1 << 20)
    before: set[object] = set()
    for sample in (0.1, 0.25, 0.5, 1.0):
        cuts = [
            {row["start"] for row in rows(tmp_path, size, sample=sample) if row["kind"] == "damage"}
            for size in (64 << 20, 100_000)
        ]
        assert cuts[0] == cuts[1] > before
        assert abs(len(cuts[0]) - 400 * sample) < 20
        before = cuts[0]


def test_a_survey_says_how_many_checksums_were_compared(tmp_path: Path) -> None:
    write_log(tmp_path, [b"x" * 8000] * 200, size=1 << 20)
    for sample, low, high in ((1.0, 200, 200), (0.25, 40, 60)):
        found = [row for row in rows(tmp_path, sample=sample) if row["kind"] == "part"]
        assert sum(int(str(part["count"])) for part in found) == 200
        assert low <= sum(int(str(part["compared"])) for part in found) <= high
