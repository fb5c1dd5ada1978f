"""Messages that expire between the planning of a batch and its reading are counted, once."""

from __future__ import annotations

import json
import pickle
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.aging import expire

from cometmq.pipeline.cluster import Queue
from cometmq.pipeline.errors import DataLossError
from cometmq.pipeline.losses import Listener, Losses, _own_host, note_here, tell, untold  # pyright: ignore[reportPrivateUsage]  # The rule.
from cometmq.pipeline.planning import Range
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BROKER = "127.0.0.1:10911"
PART = Range(Queue("orders", "broker-a", 0), BROKER, 0, 100)


def listening(losses: Losses) -> Listener:
    listener = losses.listener([BROKER])
    assert listener is not None
    found: Listener = pickle.loads(pickle.dumps(listener))  # As it comes to a task.
    return found


def test_what_a_task_passed_over_is_counted_once_however_often_it_ran() -> None:
    losses = Losses()
    listener = listening(losses)
    assert listener.host == "127.0.0.1"  # Only tasks of this machine can read from there.
    for part, lost in ((PART, 7), (PART, 7), (PART._replace(first=50), 2)):
        tell(listener, part, lost)
    assert losses.taken() == 9
    assert losses.taken() == 0
    tell(listening(losses), PART, 3)  # In the next batch.
    assert losses.taken() == 3


def test_what_no_batch_tells_of_is_given_to_the_job_that_asks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.pipeline.losses._notes", {})
    assert untold("here") == 0  # No stream was started yet.
    losses = Losses(note_here("here"))
    assert untold("here") == 0  # The stream has planned nothing yet.
    tell(listening(losses), PART, 7)
    assert (Path(note_here("here")).stat().st_mode & 0o077) == 0
    assert (untold("here"), untold("here"), losses.taken()) == (7, 0, 0)
    tell(listening(losses), PART, 2)
    assert losses.taken() == 2
    assert untold("here") == 0
    said = json.loads(Path(note_here("here")).read_text())
    Path(note_here("here")).write_text(json.dumps([*said[:2], "of another stream"]))
    tell(listening(losses), PART, 3)
    assert untold("here") == 0
    Path(note_here("here")).write_text("torn [")
    assert (untold("here"), losses.taken()) == (0, 3)
    Losses(str(tmp_path / "none" / "note")).listener([BROKER])  # It goes on without a note.


def test_a_job_is_not_given_what_the_stream_of_another_one_lost() -> None:
    """Jobs in threads have one process."""
    first, second = Losses(note_here("first")), Losses(note_here("second"))
    tell(listening(first), PART, 7)
    tell(listening(second), PART, 2)
    assert (untold("first"), untold("second")) == (7, 2)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n",
        b"[]\n",
        json.dumps({"token": "x", "queue": ["orders", "broker-a", 0], "first": 0, "lost": 5}),
        b"9" * 10_000 + b"\n",
        b"",
    ],
)
def test_what_is_no_report_counts_nothing_and_keeps_nobody_out(said: str | bytes) -> None:
    losses = Losses()
    listener = listening(losses)
    with socket.create_connection(listener[:2]) as stranger:
        with suppress(OSError):  # It may be cut off before it has said all.
            stranger.sendall(said if isinstance(said, bytes) else said.encode() + b"\n")
            stranger.shutdown(socket.SHUT_WR)
        tell(listener, PART, 1)
    assert losses.taken() == 1


def test_a_task_that_cannot_tell_says_so_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    losses = Losses()
    listener = listening(losses)
    tell(listener._replace(token="of another stream"), PART, 4)
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = listener._replace(port=server.getsockname()[1])
    tell(nobody, PART, 5)
    assert losses.taken() == 0
    with socket.create_server(nobody[:2]) as server:
        tell(nobody, PART, 6)  # Not waited for once more.
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    refused, unreachable, again = (record.getMessage() for record in caplog.records)
    assert "queue orders/broker-a/0: 4 messages that had expired are not counted" in refused
    assert refused.endswith("it did not answer")
    assert "5 messages" in unreachable
    assert unreachable.endswith("Connection refused")
    assert again.endswith("it could not be reached before either")


def test_a_driver_that_finds_no_way_to_a_broker_says_once_that_it_does_not_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    losses = Losses()
    for _ in range(2):
        assert losses.listener(["broker.invalid:10911"]) is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("ways", "own"),
    [
        (("10.0.0.2", "127.0.0.1"), "127.0.0.1"),
        (("10.0.0.2", "::1"), "::1"),
        (("10.0.0.9", "10.0.0.2"), "10.0.0.2"),
    ],
)
def test_the_driver_listens_where_tasks_of_this_machine_reach_it_if_a_broker_is_here(
    monkeypatch: pytest.MonkeyPatch, ways: tuple[str, ...], own: str
) -> None:
    monkeypatch.setattr("cometmq.pipeline.losses._way_to", str)
    for addresses in (ways, ways[::-1]):
        assert _own_host(addresses) == own


def test_reports_come_over_ipv6_too() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    losses = Losses()
    listener = losses.listener(["[::1]:10911"])
    assert listener is not None
    assert listener.host == "::1"
    tell(listener, PART, 4)
    assert losses.taken() == 4


def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.pipeline.losses._TIMEOUT", 0.05)
    losses = Losses()
    listener = listening(losses)
    said = {"token": listener.token, "queue": ["orders", "broker-a", 0], "first": 0, "lost": 5}
    heard = b""
    with socket.create_connection(listener[:2]):
        while not heard:  # On a busy machine, this side may be the one that is too late.
            with (
                suppress(ConnectionError),
                socket.create_connection(listener[:2], timeout=30.0) as task,
            ):
                task.sendall(json.dumps(said).encode() + b"\n")
                heard = task.recv(1)
    assert losses.taken() == 5


def test_more_ranges_than_can_be_remembered_are_told_in_the_task_s_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cometmq.pipeline.losses._RANGES_MAX", 2)
    losses = Losses()
    for first in range(3):
        tell(listening(losses), PART._replace(first=first), 1)
    assert losses.taken() == 2
    assert len(caplog.records) == 1


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("no_connection_is_kept")
@pytest.mark.parametrize("fails", [False, True])
def test_what_expires_behind_the_planning_is_counted_or_ends_the_stream(
    spark: SparkSession, aging: Cluster, tmp_path: Path, fails: bool
) -> None:
    from cometmq.pipeline.jobs.job import Run
    from cometmq.pipeline.jobs.metrics import JobMetrics
    from cometmq.pipeline.jobs.streams import StreamSettings, read_stream, run_batches

    first = 0
    rows: list[int] = []

    def batch(frame: DataFrame, _number: int) -> None:
        nonlocal first
        first = first or expire(aging)  # Spark has planned it, and no task has read yet.
        rows.append(frame.count())

    settings = StreamSettings(
        nameserver=aging.nameserver,
        topic="aging",
        checkpoint=str(tmp_path),
        fail_on_data_loss=fails,
    )
    run = Run()
    report = run.report_of("archive")
    frame = read_stream(spark, settings, "body")
    if fails:
        with pytest.raises(DataLossError, match="aging/broker-a/0: messages from 0 on were"):
            run_batches(frame, batch, settings, run, report)
        return
    run_batches(frame, batch, settings, run, report)
    assert rows == [200 - first, 0]  # The second batch reports the loss.
    assert report.details["lost"] == first
    shown = {each.name: each.samples[0].value for each in JobMetrics(run).collect()}
    assert shown["cometmq_pipeline_lost"] == first
    again = run.report_of("archive")
    run_batches(frame, batch, settings, run, again)
    assert "lost" not in again.details


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("no_connection_is_kept")
def test_what_expires_in_the_last_batch_before_a_signal_is_counted_in_its_report(
    spark: SparkSession, aging: Cluster, tmp_path: Path
) -> None:
    from cometmq.pipeline.jobs.job import Run
    from cometmq.pipeline.jobs.streams import StreamSettings, read_stream, run_batches

    first = 0

    def batch(frame: DataFrame, _number: int) -> None:
        nonlocal first
        first = expire(aging)
        run.stop()
        assert frame.count() == 200 - first

    given = {"nameserver": aging.nameserver, "topic": "aging", "checkpoint": str(tmp_path)}
    settings = StreamSettings(**given, fail_on_data_loss=False, trigger="1 hour")  # type: ignore[arg-type]  # they are text
    run = Run()
    report = run.report_of("archive")
    frame = read_stream(spark, settings, "body")
    run_batches(frame, batch, settings, run, report)
    assert report.stopped
    assert (report.batches, report.details["lost"]) == ([0], first)
    run = Run()
    again = run.report_of("archive")
    settings = StreamSettings(**given, fail_on_data_loss=False)  # type: ignore[arg-type]  # as above
    run_batches(read_stream(spark, settings, "body"), batch, settings, run, again)
    assert "lost" not in again.details
