"""The metrics page of a job: what Prometheus sees of it while it runs."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from prometheus_client.parser import text_string_to_metric_families
from tests.pipeline.tables import Tables

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.metrics import served

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cometmq.testing import Cluster

pytestmark = pytest.mark.spark


def scrape(port: int) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the values of a page, by name and labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.mark.filterwarnings("default")
def test_a_scrape_shows_the_batch_that_is_over_and_what_is_not_read_yet(
    spark: SparkSession, rocketmq_session: Cluster, tmp_path: Path
) -> None:
    tables = Tables(spark, rocketmq_session)
    tables.fill("scraped", 25)
    settings = ArchiveSettings(
        nameserver=tables.cluster.nameserver, topic="scraped", to=str(tmp_path), max_rows=10
    )
    pages: list[dict[str, Any]] = []
    news: list[Mapping[str, Any]] = []

    def look(each: Mapping[str, Any]) -> None:
        news.append(each)
        pages.append(scrape(port))

    run = Run(progress=look)
    with served(run, 0) as given:
        assert given is not None
        port = given
        assert scrape(port) == {}  # The job has not begun.
        archive(spark, settings, run)
        last = scrape(port)
    job = (("job", "archive"),)
    first = pages[0]
    assert first["cometmq_pipeline_rows_total"][job] == news[0]["total"]
    assert first["cometmq_pipeline_last_batch"][job] == news[0]["batch"]
    lags = first["cometmq_pipeline_lag_messages"]
    assert sum(lags.values()) == news[0]["behind"] == 25 - news[0]["total"]
    assert {dict(labels)["queue"] for labels in lags} == {"0", "1"}
    assert {dict(labels)["topic"] for labels in lags} == {"scraped"}
    assert last["cometmq_pipeline_rows_total"][job] == 25
    assert last["cometmq_pipeline_batches_total"][job] == 3
    assert last["cometmq_pipeline_bytes_total"][job] == 10 + 2 * 15
    assert sum(last["cometmq_pipeline_lag_messages"].values()) == 0
    assert last["cometmq_pipeline_last_batch_seconds"][job] > 0
    with pytest.raises(URLError):
        scrape(port)


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = pytest.raises(OptionError, match=f"metrics-port: {port} cannot be listened on")
        with told, served(Run(), port):
            pass


def test_without_a_port_nothing_is_served() -> None:
    with served(Run(), None) as port:
        assert port is None
