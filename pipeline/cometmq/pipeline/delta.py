"""What Spark needs for Delta tables.

Delta is not part of PySpark: `--packages` brings its JARs, which are made for one Spark version.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.connecting import jvm_of
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.spark_settings import SKIPS_FILES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""The package known to work: Delta 4.4.0 on Spark 4.2."""
_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_JARS: Final = ("spark.jars.packages", "spark.jars")
_MADE_FOR: Final = re.compile(r"\bdelta-spark_(\d+\.\d+)_2")
"""Matches the version of Spark in the name of its JAR."""


def settings_of_delta(given: Mapping[str, str], partitions: str = "") -> dict[str, str]:
    """Return the settings that a session needs if Delta's JARs are given, else none.

    `partitions` is the number of partitions in which Delta computes the state of a table.

    Raise `OptionError` for JARs that are made for another version of Spark.
    """
    named = ",".join(given.get(name, "") for name in _JARS)
    if "delta-spark_" not in named:
        return {}
    _check_made_for("packages", named)
    return {
        "spark.sql.extensions": _EXTENSION,
        "spark.sql.catalog.spark_catalog": _CATALOG,
        # The default is 50, and each costs a task for every batch.
        "spark.databricks.delta.snapshotPartitions": partitions,
    }


def require_delta(spark: SparkSession, option: str) -> None:
    """Refuse a session without Delta, or set to leave out rows; say what to add to the command."""
    try:
        loader = jvm_of(spark).Thread.currentThread().getContextClassLoader()
        found = loader.loadClass(_EXTENSION)
    except Exception as error:
        if "ClassNotFoundException" not in str(error):
            raise
        raise OptionError(
            f"{option}: Delta's JARs are missing: give --packages {PACKAGE}, on PySpark 4.2 (this"
            f" is {_version()})"
        ) from None
    _check_made_for(option, found.getProtectionDomain().getCodeSource().getLocation().toString())
    if _EXTENSION not in spark.conf.get("spark.sql.extensions", ""):
        raise OptionError(
            f"{option}: the session does not know Delta: give --conf spark.sql.extensions="
            f"{_EXTENSION} --conf spark.sql.catalog.spark_catalog={_CATALOG}"
        )
    # Delta reads by the session alone, whatever options a read has.
    for name in (f"spark.sql.files.{each}" for each in SKIPS_FILES):
        if str(spark.conf.get(name)).lower() == "true":
            raise OptionError(
                f"conf: {name} is true, so Spark would skip a damaged or missing file of a Delta"
                f" table without a word: give --conf {name}=false"
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
