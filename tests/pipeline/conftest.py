"""One Spark for all tests that need one: starting it takes six seconds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session that tries a task three times, as a cluster does."""
    try:
        from cometmq.pipeline import session
        from cometmq.pipeline.java import find_java

        find_java()
    except Exception as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Spark here: {error}")
    spark = session(
        master="local[2,3]",
        **{
            "spark.sql.shuffle.partitions": 1,
            "spark.default.parallelism": 1,
            "spark.sql.streaming.noDataMicroBatches.enabled": False,
            "spark.driver.memory": "1g",
        },
    )
    yield spark
    spark.stop()
