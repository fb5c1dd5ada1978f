"""`cometmq bench` against a running broker, which has everything that the bench reports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.broker.test_up import up
from tests.client.running import Servers, play

from cometmq.admin.bench_frames import (
    BatchForm,
    PullForm,
    SendForm,
    body_of,
    pull_frame,
    topic_part,
)
from cometmq.admin.bench_load import REFUSALS_MAX, Load, Sends
from cometmq.admin.program import program
from cometmq.net import parse_address
from cometmq.proto import Answer, Connection, RequestCode, ResponseCode, decode_frame
from cometmq.proto.batch import decode_batch
from cometmq.proto.commands import GetMaxOffset, OffsetResponse, PullMessage, SendMessageV2
from cometmq.proto.host import Host
from cometmq.proto.properties import find_property


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[Host]:
    folder: Path = tmp_path_factory.mktemp("bench") / "data"
    with up(folder, "--flush", "async") as (_, address):
        yield address


def bench(broker: Host, *arguments: str) -> Result:
    return CliRunner().invoke(program, ["bench", *arguments, "--broker", str(broker)])


def shown(broker: Host, *arguments: str) -> Any:
    """Run for a moment, or longer if a busy machine got nothing done in that time."""
    for seconds in ("0.3", "10"):
        result = bench(broker, *arguments, "--seconds", seconds, "--json")
        if "nothing was done" not in result.output:
            break
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("processes", [1, 2])
def test_what_was_sent_can_be_pulled(broker: Host, processes: int) -> None:
    topic = f"Sent{processes}"
    common = ("--topic", topic, "--processes", str(processes))
    sent = shown(broker, "send", *common, "--connections", "4", "--in-flight", "3")
    assert sent["messages"] == sent["requests"] > 0
    assert 0 < sent["latency_us"]["p50"] <= sent["latency_us"]["p99.9"]
    pulled = shown(broker, "pull", *common, "--connections", "4")
    assert pulled["messages"] > pulled["requests"] > 0


def test_many_topics_have_their_number_behind_the_name(broker: Host) -> None:
    sent = shown(broker, "send", "--topic", "Many", "--topics", "3")
    assert sent["messages"] > 0
    pulled = shown(broker, "pull", "--topic", "Many2")
    assert pulled["messages"] > 0


def test_a_batch_counts_as_its_messages(broker: Host) -> None:
    done = shown(broker, "batch", "--topic", "Batches", "--batch", "5")
    assert done["messages"] == 5 * done["requests"] > 0


def test_every_message_arrives_end_to_end_and_after_it_was_sent(broker: Host) -> None:
    passed = shown(broker, "e2e", "--topic", "EndToEnd", "--rate", "200")
    assert passed["sent"] == passed["received"] > 0
    assert passed["received_us"]["p50"] > 0


def test_people_get_a_few_lines(broker: Host) -> None:
    result = bench(broker, "send", "--topic", "Shown", "--seconds", "1")
    assert [line.split()[0] for line in result.output.splitlines()] == [
        "messages",
        "rate",
        "bodies",
        "latency",
    ]


def test_refusals_are_counted_by_code_and_end_in_failure(broker: Host) -> None:
    result = bench(broker, "send", "--topic", "SCHEDULE_TOPIC_XXXX", "--seconds", "1", "--json")
    assert result.exit_code == 1
    assert "requests were refused" in result.stderr
    found = json.loads(result.stdout)
    assert found["messages"] == 0
    assert sum(found["refused"].values()) == found["requests"]


def test_refusals_that_no_time_will_mend_end_a_run_early(broker: Host) -> None:
    arguments = ("--topic", "SCHEDULE_TOPIC_XXXX", "--seconds", "60", "--json")
    result = bench(broker, "send", *arguments, "--connections", "2", "--in-flight", "4")
    found = json.loads(result.stdout)
    assert found["seconds"] < 30
    assert REFUSALS_MAX <= sum(found["refused"].values()) < 2 * REFUSALS_MAX
    assert "NO_PERMISSION (16): " in result.stderr


def test_a_name_server_is_no_broker(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        result = bench(parse_address(servers.nameserver), "send", "--seconds", "5")
        assert result.exit_code == 1
        assert f"Is {servers.nameserver} a broker?" in result.stderr

    play(tmp_path, scenario)


@pytest.mark.parametrize(("kind", "processes"), [("send", 1), ("send", 2), ("e2e", 1)])
def test_a_ctrl_c_ends_a_run_and_shows_what_was_measured(
    broker: Host, kind: str, processes: int
) -> None:
    topic = f"Interrupted{kind}{processes}"
    with running_bench(broker, kind, topic, processes) as running:
        wait_for_messages(broker, topic)
        running.send_signal(signal.SIGINT)
        found = shown_in_the_end(running)
    assert found.get("messages", found.get("sent", 0)) >= (kind == "send")


def test_a_ctrl_c_ends_a_process_that_has_not_begun_with_its_share(broker: Host) -> None:
    with running_bench(broker, "send", "Late", 2) as running:
        early, late = processes_of(running.pid, 2)
        with stopped(late):
            wait_for_messages(broker, "Late")
            running.send_signal(signal.SIGINT)
            wait_for_the_end_of(early)
        assert shown_in_the_end(running)["messages"] > 0


def test_a_process_of_the_load_that_dies_ends_the_run_with_an_error(broker: Host) -> None:
    with running_bench(broker, "send", "Killed", 2) as running:
        early, late = processes_of(running.pid, 2)
        wait_for_messages(broker, "Killed")
        os.kill(late, signal.SIGKILL)
        _, said = running.communicate(timeout=30)
        wait_for_the_end_of(early)
    assert running.returncode == 1
    assert said == "Error: a process of the load ended with status -9\n"


def test_the_processes_of_the_load_end_with_the_one_that_started_them(broker: Host) -> None:
    with running_bench(broker, "send", "Orphans", 2) as running:
        processes = processes_of(running.pid, 2)
        wait_for_messages(broker, "Orphans")
        running.kill()
        for process in processes:
            wait_for_the_end_of(process)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_terminal_tells_all_processes_of_a_ctrl_c_and_no_harm_is_done(
    broker: Host, processes: int
) -> None:
    topic = f"Terminal{processes}"
    with running_bench(broker, "send", topic, processes) as running:
        wait_for_messages(broker, topic)
        os.killpg(running.pid, signal.SIGINT)
        assert shown_in_the_end(running)["messages"] > 0


@contextmanager
def running_bench(
    broker: Host, kind: str, topic: str, processes: int
) -> Generator[subprocess.Popen[str]]:
    """Run a bench of a minute in a process group of its own."""
    command = [sys.executable, "-m", "cometmq.admin", "bench", kind, "--broker", str(broker)]
    command += ["--topic", topic, "--seconds", "60", "--json"]
    if kind == "send":
        command += ["--processes", str(processes), "--connections", "2", "--in-flight", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def shown_in_the_end(running: subprocess.Popen[str]) -> Any:
    shown, said = running.communicate(timeout=30)
    assert (running.returncode, said) == (0, "")
    return json.loads(shown)


def processes_of(parent: int, count: int) -> list[int]:
    """Wait until a bench has started its processes."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        found = [int(child) for child in children if b"spawn_main" in command_of(int(child))]
        if len(found) == count:
            return found
    raise AssertionError(f"{parent} has not started {count} processes")


def wait_for_the_end_of(process: int) -> None:
    deadline = time.monotonic() + 30
    while command_of(process):
        assert time.monotonic() < deadline, f"{process} still runs"


def command_of(process: int) -> bytes:
    """Return the command line of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@contextmanager
def stopped(process: int) -> Generator[None]:
    """Keep a process stopped for the block."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def wait_for_messages(broker: Host, topic: str) -> None:
    """Wait until a topic gets messages."""
    with socket.create_connection((broker.address, broker.port)) as link:
        seen: set[int] = set()
        while len(seen) < 3:
            seen.add(end_of(link, topic))


def end_of(link: socket.socket, topic: str) -> int:
    connection = Connection()
    request = connection.request(RequestCode.GET_MAX_OFFSET, GetMaxOffset(topic, 0))
    link.sendall(b"".join(connection.send(request)))
    while not isinstance(event := connection.next_event(), Answer):
        connection.receive_data(link.recv(4096))
    response = event.response
    return response.read(OffsetResponse).offset if response.code == ResponseCode.SUCCESS else 0


def test_an_empty_topic_has_nothing_to_pull_and_says_what_puts_something_there(
    broker: Host,
) -> None:
    result = bench(broker, "pull", "--topic", "SELF_TEST_TOPIC", "--queues", "1")
    assert result.exit_code == 1
    assert "`cometmq bench send --topic SELF_TEST_TOPIC`" in result.stderr


def test_nobody_there_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = bench(Host("127.0.0.1", taken.getsockname()[1]), "send")
    assert result.exit_code == 1
    assert ": Connection refused\n" in result.stderr


def test_forms_make_the_frames_that_they_stand_for() -> None:
    request = decode_frame(SendForm("T", 3, 8, 100).frame(1_000_007, 255, 17))
    header = request.read(SendMessageV2)
    assert (request.code, request.opaque) == (310, 1_000_007)
    assert (header.topic, header.queue_id, header.default_topic_queue_nums) == ("T", 3, 8)
    assert header.properties is not None
    raw = header.properties.encode()
    assert find_property(raw, b"UNIQ_KEY") == b"7F0000014D2C18B4AAC20000000000FF"
    body = request.body
    assert isinstance(body, bytes)
    assert len(body) == 100
    assert body.startswith(b"%019d" % 17)


def test_a_form_makes_the_frames_of_every_topic_with_a_name_as_long() -> None:
    one = SendForm("Topic-1", 3, 8, 100)
    other = SendForm("%RETRY%", 3, 8, 100)
    assert one.frame_to(topic_part("%RETRY%"), 1_000_007, 255, 17) == other.frame(
        1_000_007, 255, 17
    )
    batch = BatchForm("Topic-1", 0, 4, 64, 3).frame_to(topic_part("Topic-2"), 1_000_000, 7, 5)
    assert decode_frame(batch).read(SendMessageV2).topic == "Topic-2"
    assert batch == BatchForm("Topic-2", 0, 4, 64, 3).frame(1_000_000, 7, 5)


def test_sends_go_to_each_queue_of_each_topic_in_turn() -> None:
    load = Load("send", "", 0, "T", 1, 1, 1.0, 64, 2, 32, topics=11)
    sends = Sends(load, count())
    asked = [decode_frame(sends.request(1_000_000, 1) or b"") for _ in range(22)]
    headers = [each.read(SendMessageV2) for each in asked]
    assert {(each.topic, each.queue_id) for each in headers} == {
        (f"T{number}", queue) for number in range(11) for queue in range(2)
    }


def test_each_message_of_a_batch_has_an_id_of_its_own() -> None:
    request = decode_frame(BatchForm("T", 0, 4, 64, 3).frame(1_000_000, 7, 5))
    items = list(decode_batch(request.body))
    ids = [find_property(item.properties, b"UNIQ_KEY") for item in items]
    assert ids == [b"7F0000014D2C18B4AAC2%012X" % number for number in (7, 8, 9)]
    assert {item.body for item in items} == {
        body_of(64).replace(b"_NANOSECONDS_SENT__", b"%019d" % 5)
    }


def test_a_pull_names_its_place() -> None:
    form = PullForm("T", 2, 16)
    assert form.frame(40, 1_000_000) == pull_frame("T", 2, 40, 16, 1_000_000)
    header = decode_frame(form.frame(40, 1_000_000)).read(PullMessage)
    assert (header.queue_id, header.queue_offset, header.max_msg_nums) == (2, 40, 16)
    assert not header.may_suspend
