"""Programs written for RocketMQ with its official Java and Go clients do their work unchanged.

Each program plays its scenarios against one name server and broker, and prints a line for each. The
same programs are proved on Apache's servers by `make interop-apache`.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.admin.test_client_commands import Terminal
from tests.interop.apache_java import class_path, required
from tests.interop.target import REPEAT, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.testing import Cluster

pytestmark = pytest.mark.slow

JAVA = Path(__file__).parent / "java"
GO = Path(__file__).parent / "go"
RELEASE = "5.5.0"
PROGRAM_SECONDS = 900
PATIENCE_SECONDS = 60

JAVA_SCENARIOS = (
    "send_sync",
    "send_async",
    "send_oneway",
    "send_batch",
    "send_to_a_chosen_queue",
    "send_round_robin_over_all_queues",
    "send_large_and_compressed",
    "send_too_large",
    "send_everything_a_message_has",
    "send_in_a_namespace",
    "consume_pushed",
    "consume_from_a_held_pull",
    "consume_shared_by_two",
    "consume_broadcast",
    "consume_by_tags",
    "consume_by_sql92",
    "consume_refuses_bad_sql92",
    "consume_in_order",
    "consume_goes_on_where_it_stopped",
    "consume_from_a_point_in_time",
    "lite_pull_subscribed",
    "lite_pull_assigned_and_sought",
    "consume_batches_that_stay_one_record",
    "find_by_offset_id",
    "find_by_unique_id",
    "find_by_key",
    "delayed_by_level",
    "retried_until_consumed",
    "dead_after_too_many_retries",
    "dead_when_an_ordered_consumer_gives_up",
    "transaction_committed",
    "transaction_rolled_back",
    "transaction_committed_when_asked",
    "transaction_rolled_back_when_asked",
    "transaction_asked_of_another_producer",
    "request_is_replied_to",
    "request_without_a_reply",
    "traces_are_written",
    "admin_creates_and_deletes_a_topic",
    "admin_refuses_a_bad_topic",
    "admin_creates_a_topic_as_clients_do",
    "admin_creates_and_deletes_a_group",
    "admin_sees_consumers_and_their_lag",
    "admin_resets_offsets",
    "admin_reads_the_broker",
)
GO_SCENARIOS = (
    "go_send_sync",
    "go_send_async",
    "go_send_oneway",
    "go_send_batch",
    "go_send_compressed",
    "go_topic_made_and_deleted",
    "go_consume_pushed",
    "go_consume_shared_by_two",
    "go_consume_broadcast",
    "go_consume_by_tags",
    "go_consume_by_sql92",
    "go_consume_in_order",
    "go_consume_goes_on_where_it_stopped",
    "go_pull",
    "go_delayed_by_level",
    "go_retried_until_consumed",
    "go_ordered_queues_change_hands",
    "go_transaction_committed",
    "go_transaction_rolled_back",
    "go_transaction_committed_when_asked",
    "go_transaction_rolled_back_when_asked",
)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the Java program, compiled."""
    folder = tmp_path_factory.mktemp("java")
    path = class_path(RELEASE, JAVA / "pom.xml")
    sources = [str(source) for source in JAVA.glob("*.java")]
    compiler = [required("javac"), "-nowarn", "-d", str(folder), "-cp", path, *sources]
    subprocess.run(compiler, check=True, capture_output=True, timeout=300)
    return [required("java"), "-Xmx512m", "-cp", f"{folder}:{path}", "Interop"]


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the Go program, compiled."""
    program = tmp_path_factory.mktemp("go") / "interop"
    compiler = [required("go"), "build", "-o", str(program), "."]
    environment = {**os.environ, "GOFLAGS": "-mod=readonly"}
    subprocess.run(compiler, cwd=GO, env=environment, check=True, timeout=600)
    return [str(program)]


@pytest.fixture(scope="module")
def java_outcomes(java: Sequence[str], target: Target) -> dict[str, str]:
    return outcomes([*java, target.nameserver])


@pytest.fixture(scope="module")
def go_outcomes(go: Sequence[str], target: Target) -> dict[str, str]:
    return outcomes([*go, target.nameserver, target.broker])


def outcomes(command: Sequence[str]) -> dict[str, str]:
    """Play all scenarios; return by name how each ended: "PASS", or "FAIL" and why."""
    played = subprocess.run(
        command, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False
    )
    found: dict[str, str] = {}
    for line in played.stdout.splitlines():
        result, _, rest = line.partition(" ")
        if result in ("PASS", "FAIL"):
            name, _, reason = rest.partition(" ")
            found[name] = f"{result} {reason}".strip()
    assert found, played.stdout + played.stderr
    return found


@pytest.mark.parametrize("name", JAVA_SCENARIOS)
def test_a_java_program_does_its_work(name: str, java_outcomes: dict[str, str]) -> None:
    assert java_outcomes[name] == "PASS", f"to repeat: {REPEAT}make interop-clients"


@pytest.mark.parametrize("name", GO_SCENARIOS)
def test_a_go_program_does_its_work(name: str, go_outcomes: dict[str, str]) -> None:
    assert go_outcomes[name] == "PASS", f"to repeat: {REPEAT}make interop-clients"


def test_cometmq_shows_what_java_clients_traced(java: Sequence[str], target: Target) -> None:
    """A message that is refused once and then consumed, a delayed one, one of a transaction."""
    command = [*java, target.nameserver, "traces_are_written"]
    played = subprocess.run(
        command, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False
    )
    assert "PASS traces_are_written" in played.stdout, played.stdout + played.stderr
    lines = [line.split()[1:] for line in played.stdout.splitlines() if line.startswith("TRACED ")]
    traced = {what: rest for what, *rest in lines}
    told, _, tracing = traced["told"]
    terminal = Terminal(target)
    consumed = ("consumed", tracing, "ok", 1)
    for what, middle in (
        ("first", [("consumed", tracing, "failed", 1), ("consumed", tracing, "ok", 2)]),
        ("later", [consumed]),
        ("told", [("ended", traced["told"][1], "COMMIT_MESSAGE", 1), consumed]),
    ):
        identifier, producing, _ = traced[what]
        expected = sorted([("sent", producing, "ok", 1), *middle])
        deadline = time.monotonic() + PATIENCE_SECONDS  # The index is written a moment later.
        found: list[tuple[str, str, str, int]] = []
        while found != expected and time.monotonic() < deadline:
            steps = terminal.json("message", "trace", identifier)
            found = sorted((s["kind"], s["group"], s["result"], s["attempt"]) for s in steps)
        assert found == expected, what
    assert terminal.lines("message", "trace", told)[1].split()[1:4:2] == ["sent", "ok"]


def test_a_java_program_works_with_the_cluster_of_the_fixture(
    java: Sequence[str], rocketmq: Cluster
) -> None:
    assert outcomes([*java, rocketmq.nameserver, "send_sync"]) == {"send_sync": "PASS"}


def test_a_go_program_works_with_the_cluster_of_the_fixture(
    go: Sequence[str], rocketmq: Cluster
) -> None:
    command = [*go, rocketmq.nameserver, rocketmq.broker, "go_send_sync"]
    assert outcomes(command) == {"go_send_sync": "PASS"}


def test_every_java_scenario_is_listed_here(java: Sequence[str]) -> None:
    listed = subprocess.run([*java, "--list"], capture_output=True, text=True, check=True)
    assert tuple(listed.stdout.split()) == JAVA_SCENARIOS


def test_every_go_scenario_is_listed_here(go: Sequence[str]) -> None:
    listed = subprocess.run([*go, "--list"], capture_output=True, text=True, check=True)
    assert tuple(listed.stdout.split()) == GO_SCENARIOS
