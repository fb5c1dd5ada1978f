"""The report of a job: what is counted, and the order and form in which it is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cometmq.pipeline.jobs.report import Outcome, Report, Span, as_json

if TYPE_CHECKING:
    from pathlib import Path


def test_offsets_are_in_order_and_from_the_lowest_to_the_highest_that_was_read() -> None:
    report = Report("archive")
    for queue, first, end in ((10, 0, 5), (2, 8, 9), (2, 3, 7), (2, 1, 4), (2, 5, 6), ("0", 6, 8)):
        report.cover([Span("orders", "b", queue, first, end)])
    report.cover([Span("orders", "a", 0, 4, 4), Span("bills", "b", 1, 0, 2)])
    assert as_json(report.document()["offsets"]) == (
        '{"bills": {"b": {"1": [0, 2]}},'
        ' "orders": {"a": {"0": [4, 4]}, "b": {"0": [6, 8], "2": [1, 9], "10": [0, 5]}}}'
    )


def test_bytes_are_null_until_they_are_counted() -> None:
    report = Report("archive")
    assert report.document()["bytes"] is None
    report.count_bytes(None)
    assert report.document()["bytes"] == 0
    report.count_bytes(3)
    report.count_bytes(4)
    assert report.document()["bytes"] == 7
    report.count("files", 2)
    report.count("files", 3)
    assert report.document()["files"] == 5


def test_seconds_have_three_digits_and_times_a_zone(tmp_path: Path) -> None:
    at = datetime.fromtimestamp(1_764_000_000, UTC)
    report = Report("dlq", Outcome.FINDINGS, seconds=1.23456, start_seconds=2.0056)
    report.details["first"] = at.astimezone().replace(tzinfo=None)  # As Spark returns it.
    report.write(str(tmp_path / "report.json"))
    text = (tmp_path / "report.json").read_text()
    assert text.startswith('{\n  "job": "dlq",\n  "outcome": "findings",\n')
    said = json.loads(text)
    assert (said["seconds"], said["start_seconds"]) == (1.235, 2.006)
    assert said["first"] == at.isoformat()
    assert Report("dlq").document()["start_seconds"] is None
