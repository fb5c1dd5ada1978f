"""`archive --file-size`: how large files become."""

from __future__ import annotations

from os import urandom
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.tables import Tables, numbers

from cometmq.client import NewMessage
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.archive_writing import rows_of_size
from cometmq.pipeline.jobs.folders import Folder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

KIB = 1 << 10
ROWS = 2500
"""How many messages of a KiB, of random bytes, a batch has: some 2.5 MiB."""


def send(tables: Tables, topic: str, batches: int) -> None:
    for _ in range(batches * 10):
        of_batch = [NewMessage(body=urandom(KIB)) for _ in range(ROWS // 10)]
        tables.cluster.client.send_batch(topic, of_batch)


def sizes(to: Path, batch: int) -> list[int]:
    files = to.glob(f"batch={batch:06d}/**/*.parquet")
    return sorted(path.stat().st_size // KIB for path in files)


def test_a_size_that_no_file_should_have_is_refused() -> None:
    for text, said in (
        ("1000k", "must be at least 1m"),
        ("1025g", "must be at least 1m, and at most 1024g"),
        ("big", "'big' is not a number of bytes"),
    ):
        with pytest.raises(OptionError, match=f"^file-size: {said}"):
            ArchiveSettings(nameserver="h:1", topic="T", to="/archive", file_size=text)


@pytest.mark.parametrize(
    ("files", "size", "rows", "told"),
    [
        (1, 1 << 20, 1000, 128_000),
        (4, 1 << 20, 1000, 128_000),
        (5, 1 << 20, 1000, 0),  # Much of such files is not rows.
        (1, 1 << 20, 999, 0),
        (0, 0, 0, 0),
        (0, 0, 1000, 0),  # They were lost, or merged with others meanwhile.
        (1, 1 << 40, 1000, 1),
    ],
)
def test_a_batch_tells_how_many_rows_a_file_has_unless_it_is_small(
    files: int, size: int, rows: int, told: int
) -> None:
    assert rows_of_size(128 << 20, files, size, rows) == told


def test_while_nothing_is_known_of_rows_spark_has_its_own_setting(
    tables: Tables, tmp_path: Path
) -> None:
    most = "spark.sql.files.maxRecordsPerFile"
    before = tables.spark.conf.get(most)
    tables.spark.conf.set(most, "2")
    try:
        Folder(tables.spark, str(tmp_path)).write_table(tables.spark.range(4).coalesce(1), "table")
    finally:
        tables.spark.conf.set(most, before)
    assert len(list(tmp_path.glob("table/*.parquet"))) == 2


@pytest.mark.slow
def test_files_are_not_larger_once_it_is_known_how_large_rows_are(
    tables: Tables, tmp_path: Path
) -> None:
    topic = "in-files-of-a-size"
    tables.cluster.admin.create_topic(topic, queues=1)
    given: dict[str, Any] = {"topic": topic, "to": str(tmp_path), "max_rows": ROWS}
    settings = ArchiveSettings(nameserver=tables.cluster.nameserver, file_size="1m", **given)
    tables.cluster.send(topic, urandom(400 * KIB))  # A file of this says nothing of others.
    assert archive(tables.spark, settings).rows == 1
    send(tables, topic, batches=2)
    assert archive(tables.spark, settings).rows == 2 * ROWS
    send(tables, topic, batches=1)
    assert archive(tables.spark, settings).rows == ROWS  # It has learnt from the last run.
    whole, *parts = (sizes(tmp_path, number) for number in (1, 2, 3))
    assert (len(whole), whole[0] > 2500) == (1, True)
    for of_batch in parts:
        assert len(of_batch) == 3
        assert 900 < of_batch[-1] < 1100
    offsets = tables.spark.read.parquet(str(tmp_path)).selectExpr("string(queue_offset) AS body")
    assert sorted((row["body"] for row in offsets.collect()), key=int) == numbers(0, 3 * ROWS + 1)
