"""The metrics page of a running broker, and its documentation."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.broker.running import PATIENCE_SECONDS, config_of, pull_request, send_request
from tests.broker.scraped import scrape_of_all
from tests.broker.wired import Wired

from cometmq.broker import daemon as broker_daemon
from cometmq.net import guest, listen_on
from cometmq.net.exposition import Exposition
from cometmq.net.listener import address_of
from cometmq.proto.host import Host

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
    assert value(families["cometmq_nameserver_topics"]) > 0
    registrations = {"request_code": "103"}
    assert value(families["cometmq_nameserver_requests_total"], **registrations) >= 1
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


def test_a_broker_that_refuses_sends_is_healthy_and_not_ready(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    full = replace(config.store, disk_used_percent_force=0, disk_used_percent_max=1)
    said: list[str] = []

    async def main(_: trio.Event) -> None:
        (listening,) = listen_on([Host("127.0.0.1", 0)])
        url = f"http://{address_of(listening)}"
        exposition = Exposition(guest.repeat_on_loop)
        async with trio.open_nursery() as nursery:
            await nursery.start(exposition.serve, listening)
            await nursery.start(broker_daemon.serve, replace(config, store=full), exposition)
            with trio.fail_after(PATIENCE_SECONDS):
                while "sends are refused" not in (found := await page(f"{url}/readyz")):
                    assert found == "200 ready\n"
            said.append(found)
            assert await page(f"{url}/healthz") == "200 ok\n"
            nursery.cancel_scope.cancel()

    async def page(url: str) -> str:
        return await trio.to_thread.run_sync(asked, url)

    guest.run(main)
    assert said[0].startswith("503 ")
    assert "the limit is 1%" in said[0]


def test_damaged_queues_are_counted_and_the_page_goes_on(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    wired = Wired(config)
    peer = wired.connect()
    for _ in range(9):
        wired.ask(peer, send_request("T", b"x"))
    wired.ask(peer, pull_request("T", commit_offset=2, sys_flag=5))
    wired.close()
    queue = tmp_path / "data" / "consumequeue" / "T" / "0" / f"{0:020d}"
    queue.write_bytes(queue.read_bytes()[:40] + bytes(60) + queue.read_bytes()[100:])
    pages: list[str] = []

    async def main(_: trio.Event) -> None:
        (listening,) = listen_on([Host("127.0.0.1", 0)])
        exposition = Exposition(guest.repeat_on_loop)
        async with trio.open_nursery() as nursery:
            await nursery.start(exposition.serve, listening)
            await nursery.start(broker_daemon.serve, config, exposition)
            url = f"http://{address_of(listening)}/metrics"
            pages.append(await trio.to_thread.run_sync(asked, url))
            nursery.cancel_scope.cancel()

    guest.run(main)
    (page,) = pages
    counts = {
        each.labels["is_system"]: each.value
        for family in text_string_to_metric_families(page.removeprefix("200 "))
        for each in family.samples
        if each.name == "cometmq_store_damaged_queues"
    }
    assert counts == {"true": 0, "false": 1}
    assert "rocketmq_consumer_lag_messages{" in page


def asked(url: str) -> str:
    """Get a page; return its status, whatever that is, and its text."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return f"{answer.status} {answer.read().decode()}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.read().decode()}"
