"""Sessions of Spark Connect: Spark, its JVM and its Python run elsewhere, and a client asks.

Reading and writing happen there, so the formats work as usual if the package is installed where
Spark's Python runs. Code that calls the JVM directly does not work.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.spark_settings import API_MODE, REMOTE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


def is_of_connect(settings: Mapping[str, str]) -> bool:
    """Whether Spark would give a session of Spark Connect."""
    from pyspark.sql.utils import is_remote

    mode = settings.get("spark.api.mode", os.environ.get(API_MODE, ""))
    is_said = "spark.remote" in settings or REMOTE in os.environ
    if is_said and "spark.master" in settings:
        raise OptionError(
            "session: both a master and (by SPARK_REMOTE or spark.remote) a server of Spark Connect"
            " are given: leave one of them out"
        )
    return is_remote() or is_said or mode.lower() == "connect"


def builder_of_connect() -> Any:
    """Return a builder of a Spark Connect session, which returns an existing one if there is one.

    Spark's own builder would ask for the address of the existing session again.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    if not is_remote() or REMOTE in os.environ:
        return SparkSession.builder
    from pyspark.sql.connect.session import SparkSession as Connected

    return Connected.builder


def jvm_of(spark: SparkSession) -> Any:
    """Return Spark's JVM, PySpark's only way to file systems and class loaders."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise OptionError(
            "spark: a session of Spark Connect has no JVM here, but jobs need one: run them where"
            " Spark is, with `cometmq pipeline` or `spark-submit`; format('cometmq') works in both"
        )
    return spark.sparkContext._jvm
