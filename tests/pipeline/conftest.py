"""Fixtures of the pipeline's tests: above all one Spark, which takes six seconds to start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.pipeline import quick_spark
from tests.pipeline.aging import aging_broker
from tests.pipeline.tables import Tables

from cometmq.pipeline import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from cometmq.testing import Cluster


@pytest.fixture(scope="session", autouse=True)
def spark_starts_quickly(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Start Spark in half the time, except in tests that need it as users have it.

    Those tests are in `test_docs` and `test_standalone` (`programs.as_users_have_it`).
    """
    with pytest.MonkeyPatch.context() as patch:
        if any(item.get_closest_marker("spark") for item in request.session.items):
            own = tmp_path_factory.getbasetemp()
            shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
            for name, value in quick_spark.environment(shared).items():
                patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session that retries failed tasks, as a cluster does: each has three attempts."""
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


@pytest.fixture(scope="session")
def tables(spark: SparkSession, rocketmq_session: Cluster) -> Tables:
    """The topics of the shared cluster as tables; each test uses its own topics."""
    return Tables(spark, rocketmq_session)


@pytest.fixture
def no_connection_is_kept() -> Iterator[None]:
    """Close the connections that tasks in the test's own process kept for the next task."""
    yield
    for peer in wire._kept.values():  # pyright: ignore[reportPrivateUsage]  # Else they leak.
        peer.close()
    wire._kept.clear()  # pyright: ignore[reportPrivateUsage]  # As above.


@pytest.fixture
def aging() -> Iterator[Cluster]:
    """A broker with 200 messages that `expire` makes it delete, except for the last ones."""
    with aging_broker() as cluster:
        yield cluster
