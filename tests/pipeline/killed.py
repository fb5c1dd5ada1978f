"""The jobs that `kills` kills: `python -m tests.pipeline.killed JOB NAMESERVER FOLDER BATCH`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.pipeline.kills import COMPACTED_ENOUGH, WATERMARK, WINDOW, say

from cometmq.pipeline import session
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.aggregate import AggregateSettings, aggregate
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.archive_compact import CompactSettings, archive_compact
from cometmq.pipeline.jobs.archive_files import read_archive
from cometmq.pipeline.jobs.archive_vacuum import VacuumSettings, archive_vacuum
from cometmq.pipeline.jobs.mirror import MirrorSettings, mirror

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NUMBER: Final = "cast(cast(body AS string) AS bigint)"


def run(spark: SparkSession, job: str, nameserver: str, folder: Path, batch: int) -> None:
    """Run one job to its end."""
    checkpoint = str(folder / f"{job}-checkpoint")
    if job == "archive":
        archive(
            spark,
            ArchiveSettings(
                nameserver=nameserver,
                topic="source",
                to=str(folder / "archive"),
                checkpoint=checkpoint,
                max_rows=batch,
            ),
        )
    elif job == "mirror":
        mirror(
            spark,
            MirrorSettings(
                nameserver=nameserver,
                to_nameserver=nameserver,
                prefix="copy-",
                topic="source",
                checkpoint=checkpoint,
                max_rows=batch,
                delivery="idempotent",
            ),
        )
    elif job == "aggregate":
        aggregate(
            spark,
            AggregateSettings(
                nameserver=nameserver,
                topic="source",
                to_topic="sums",
                checkpoint=checkpoint,
                time=f"timestamp_millis({_NUMBER})",
                window=f"{WINDOW} milliseconds",
                watermark=f"{WATERMARK} milliseconds",
                aggregations=f"count,sum({_NUMBER})",
                max_rows=batch,
            ),
        )
    elif job == "compact":
        compact(spark, folder)
    else:
        count(spark, nameserver, folder)


def compact(spark: SparkSession, folder: Path) -> None:
    """Compact and vacuum the archive until `COMPACTED_ENOUGH` is there, and then once more."""
    is_enough = False
    archived = str(folder / "archive")
    while not is_enough:
        is_enough = (folder / COMPACTED_ENOUGH).exists()
        try:
            report = archive_compact(spark, CompactSettings(archive=archived, file_size="1m"))
            archive_vacuum(spark, VacuumSettings(archive=archived))
        except OptionError as error:  # The archive is still empty.
            say(str(error))
        else:
            say(f"merged {report.details['batches_merged']}")
        time.sleep(0.1)  # Mostly there is nothing new, and the other jobs need the processor.


def count(spark: SparkSession, nameserver: str, folder: Path) -> None:
    """Print how many messages the archive and the copy hold, and how many distinct ones.

    Also print how many windows there are, and how many distinct ones are right.
    """
    archived = read_archive(spark, str(folder / "archive"))
    reader = spark.read.option("basePath", str(folder / "archive"))
    plain = reader.parquet(*map(str, (folder / "archive").glob("batch=*")))
    copied = spark.read.format("cometmq").options(nameserver=nameserver, topic="copy-source").load()
    say(
        f"archive {archived.count()} of {_distinct(archived)} distinct, plain {plain.count()},"
        f" mirror {copied.count()} of {_distinct(copied)} distinct"
    )
    sums = spark.read.format("cometmq").options(nameserver=nameserver, topic="sums").load()
    found = [tuple(json.loads(row.body).values())[2:] for row in sums.select("body").collect()]
    starts = range(0, len(found) * WINDOW, WINDOW)
    wanted = {(WINDOW, sum(range(start, start + WINDOW))) for start in starts}
    say(f"windows {len(found)} of {len(wanted.intersection(found))} distinct")


def _distinct(frame: DataFrame) -> int:
    found: int = frame.select("body").distinct().count()
    return found


def main() -> None:
    """Do what the arguments say."""
    job, nameserver, folder, batch = sys.argv[1:]
    spark = session(master="local[2,3]", **{"spark.driver.memory": "1g"})
    try:
        run(spark, job, nameserver, Path(folder), int(batch))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
