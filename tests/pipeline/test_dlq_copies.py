"""Which dead letters have a copy already, by the ids of copies, at each border."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from cometmq.pipeline.jobs import dlq_copies
from cometmq.pipeline.jobs.dlq_copies import Copies, copy_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

FROM, TO = "%DLQ%g", "again"
HOUR_MS = 3_600_000
DIED_MS = 1_700_000_000_123


def letter(offset: int, died_ms: int = DIED_MS) -> dict[str, Any]:
    died = datetime.fromtimestamp(died_ms / 1000)
    return {"broker": "a", "queue_id": 1, "queue_offset": offset, "died": died}


def ids(letters: list[dict[str, Any]], *, timed: bool) -> list[str]:
    """Return the ids of copies, as this version makes them or as earlier ones did."""
    name = f"dlq {FROM} {TO}" + " by time" * timed
    return copy_ids(name, FROM, letters, TO, timed=timed)


def test_the_ids_of_copies_are_the_same_in_every_version() -> None:
    """With others, an update would send what was sent before it once more."""
    letters = [letter(7), letter(8)]
    assert ids(letters, timed=True) == [
        "E6E38A4892783CBB94B70C4439A458F4BCFE5687B007",
        "E6E38A4892783CBB94B70C4439A458F4BCFE5687B008",
    ]
    assert ids(letters, timed=False) == [
        "678F62EC1BCC4286A30F694A18D3F7A5000000000008",
        "678F62EC1BCC4286A30F694A18D3F7A5000000000009",
    ]


def test_a_copy_is_known_by_its_id_and_one_of_an_earlier_version_by_its_time_too(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [letter(offset, DIED_MS + offset) for offset in range(9)]
    new, old = ids(letters, timed=True), ids(letters, timed=False)
    border = DIED_MS - HOUR_MS
    copies = [
        (new[1], 5),
        (old[2], DIED_MS + HOUR_MS),
        (old[3], border + 3),
        (old[4], border + 3),  # A millisecond too early.
        (old[5], 5),
        (old[5], DIED_MS),
        (old[5], 6),
        ("another message", DIED_MS),
    ]
    rows = ", ".join(f"('{name}', timestamp_millis({ms}L))" for name, ms in copies)
    there = [True]

    def has_topics(_where: Mapping[str, str], topic: str) -> bool:
        assert topic == TO
        return there[0]

    def topic_table(*_: object, startingTimestamp: int) -> DataFrame:  # noqa: N803  # An option.
        assert startingTimestamp <= border
        table: DataFrame = spark.sql(f"SELECT * FROM VALUES {rows} AS t(unique_key, store_time)")
        return table

    monkeypatch.setattr(dlq_copies, "has_topics", has_topics)
    monkeypatch.setattr(dlq_copies, "topic_table", topic_table)
    found = Copies(spark, {}, FROM, TO)
    left, sent = found.apart(letters)
    assert [each["queue_offset"] for each in sent] == [1, 2, 3, 5]
    assert [each["queue_offset"] for each in left] == [0, 4, 6, 7, 8]
    assert found.apart([]) == ([], [])
    there[0] = False
    assert found.apart(letters) == (letters, [])
