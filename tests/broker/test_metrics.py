"""The metrics page of a running broker, and its documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.broker.scraped import scrape_of_all

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `([a-z_]+)` \| (\w+) \| (.*?) ?\| (.+) \|$", re.MULTILINE)
CONSTANT = {"cluster", "node_type", "node_id", "le"}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Metric]:
    text = scrape_of_all(tmp_path_factory.mktemp("scraped"))
    found: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert name not in found, "a family in two places"
        found[name] = family
    return found


def value(family: Metric, **labels: str) -> float:
    (found,) = [each.value for each in family.samples if labels.items() <= each.labels.items()]
    return found


def test_the_documentation_lists_what_a_scrape_has(families: dict[str, Metric]) -> None:
    documented = {
        name: (kind, set(labels.replace("`", "").split()), text)
        for name, kind, labels, text in ROW.findall(DOCS.read_text())
    }
    scraped = {
        name: (
            family.type,
            {label for each in family.samples for label in each.labels} - CONSTANT,
            family.documentation,
        )
        for name, family in families.items()
    }
    assert documented == scraped


def test_what_happened_is_counted(families: dict[str, Metric]) -> None:
    assert value(families["rocketmq_messages_in_total"], topic="T") == 5
    assert value(families["rocketmq_throughput_in_total"], topic="T") > 500
    group = {"topic": "T", "consumer_group": "g"}
    assert value(families["rocketmq_messages_out_total"], **group) == 5
    assert value(families["rocketmq_consumer_lag_messages"], **group) == 3
    assert value(families["rocketmq_consumer_lag_latency"], **group) >= 0
    refused = {"request_code": "11", "response_code": "17"}
    assert value(families["cometmq_requests_refused_total"], **refused) == 1
    assert value(families["rocketmq_consumer_connections"], consumer_group="g") == 1
    assert value(families["rocketmq_producer_connections"]) == 1
    assert value(families["cometmq_registered_nameservers"]) == 1
    assert value(families["cometmq_nameserver_brokers"]) == 1
    assert value(families["cometmq_store_writeable"]) == 1
    sends = families["cometmq_send_duration_seconds"].samples
    assert [each.value for each in sends if each.name.endswith("_count")] == [5]
    assert value(families["cometmq_log_offset_bytes"], position="end") > 500


def test_every_sample_of_the_broker_says_whose_it_is(families: dict[str, Metric]) -> None:
    for name, family in families.items():
        if name.startswith("rocketmq_"):
            for each in family.samples:
                labels = {key: each.labels[key] for key in ("cluster", "node_type", "node_id")}
                assert labels == {
                    "cluster": "DefaultCluster",
                    "node_type": "broker",
                    "node_id": "broker-a",
                }
