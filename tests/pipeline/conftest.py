"""What tests of the pipeline share: above all one Spark, which takes six seconds to start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cometmq.pipeline import wire

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
            # JARs for what `make spark-delta` tests; they must be there when the JVM starts.
            "spark.jars.packages": os.environ.get("COMETMQ_TEST_PACKAGES", ""),
        },
    )
    yield spark
    spark.stop()


@pytest.fixture
def no_connection_is_kept() -> Iterator[None]:
    """End the connections that a test's own process left to its next task."""
    yield
    for peer in wire._kept.values():  # pyright: ignore[reportPrivateUsage]  # Else they leak.
        peer.close()
    wire._kept.clear()  # pyright: ignore[reportPrivateUsage]  # As above.
