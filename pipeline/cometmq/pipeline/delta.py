"""Archives that are tables of Delta: what Spark needs for them, and how they are read.

Delta is no part of PySpark: its JARs come with `--packages`, and are made for one version of Spark.
Such an archive is read by Delta alone, for its folder has files of versions that are over, too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.full_disks import told_if_full

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.folders import Folder

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""What is known to work: Delta 4.4.0 on Spark 4.2."""
_LOG: Final = "_delta_log"
_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_JARS: Final = ("spark.jars.packages", "spark.jars")
_MADE_FOR: Final = re.compile(r"\bdelta-spark_(\d+\.\d+)_2")
"""Of the name of its JAR: the version of Spark."""


def settings_of_delta(given: Mapping[str, str], partitions: str = "") -> dict[str, str]:
    """Return what a session is to be set to when its JARs are named, and nothing without them.

    `partitions` is in how many parts Delta shall sort out what a table is made of.

    An `OptionError` for JARs that are made for another version of Spark.
    """
    named = ",".join(given.get(name, "") for name in _JARS)
    if "delta-spark_" not in named:
        return {}
    _check_made_for("packages", named)
    return {
        "spark.sql.extensions": _EXTENSION,
        "spark.sql.catalog.spark_catalog": _CATALOG,
        # 50 unless told otherwise, of which each costs a task, for every batch.
        "spark.databricks.delta.snapshotPartitions": partitions,
    }


def require_delta(spark: SparkSession, option: str) -> None:
    """Refuse a session without Delta, and say what to add to the command line."""
    try:
        loader = spark.sparkContext._jvm.Thread.currentThread().getContextClassLoader()
        found = loader.loadClass(_EXTENSION)
    except Exception as error:
        if "ClassNotFoundException" not in str(error):
            raise
        raise OptionError(
            f"{option}: Delta's JARs are not there: say --packages {PACKAGE}, on PySpark 4.2 (this"
            f" is {_version()})"
        ) from None
    _check_made_for(option, found.getProtectionDomain().getCodeSource().getLocation().toString())
    if _EXTENSION not in spark.conf.get("spark.sql.extensions", ""):
        raise OptionError(
            f"{option}: the session does not know Delta: say --conf spark.sql.extensions="
            f"{_EXTENSION} --conf spark.sql.catalog.spark_catalog={_CATALOG}"
        )


def _check_made_for(option: str, jars: str) -> None:
    made_for = _MADE_FOR.search(jars)
    if made_for and _version().split(".")[:2] != made_for[1].split("."):
        raise OptionError(
            f"{option}: these JARs of Delta are made for Spark {made_for[1]}, and do not run on"
            f" {_version()}: pip install 'pyspark=={made_for[1]}.*', or name those for this Spark"
        )


def _version() -> str:
    from pyspark import __version__

    return __version__


def is_delta(folder: Folder) -> bool:
    """Whether a folder is a table of Delta."""
    return folder.exists(_LOG)


def refuse_delta(folder: Folder, instead: str) -> None:
    """Refuse one to a job that knows Parquet alone; `instead` is the command of Delta's for it."""
    if is_delta(folder):
        raise OptionError(
            f"archive: {folder.path} is a table of Delta, which has its own way: {instead}"
            f" delta.`{folder.path}` in spark.sql"
        )


def read_delta(spark: SparkSession, folder: Folder) -> DataFrame:
    """Return an archive as a table; with the columns that one of Parquet has."""
    require_delta(spark, "from")
    frame: DataFrame = spark.read.format("delta").load(folder.path)
    if "batch" not in frame.columns:
        raise OptionError(f"from: {folder.path} is a table of Delta, and no archive")
    return frame


def last_batch(spark: SparkSession, folder: Folder) -> int:
    """Return the number of the last batch with rows in it; -1 if there is none."""
    (row,) = read_delta(spark, folder).selectExpr("max(batch) AS last").collect()
    last: int | None = row["last"]
    return -1 if last is None else last


def append_batch(frame: DataFrame, folder: Folder, query: str, number: int, **options: Any) -> None:
    """Append a batch, unless this stream has appended it before: Delta keeps that in its log."""
    parts = options.pop("parts")
    writer = frame.write.format("delta").mode("append").options(**options)
    writer = writer.options(txnAppId=f"cometmq archive {query}", txnVersion=number)
    with told_if_full(folder.path):
        (writer.partitionBy(*parts) if parts else writer).save(folder.path)
