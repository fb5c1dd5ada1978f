"""The pipeline's reading and writing against a live Apache RocketMQ 5.5.0, without Spark's JVM."""

from __future__ import annotations

import json
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow", reason="the extra cometmq[spark] is not installed")

import pyarrow as pa
from tests.interop.apache_broker import ApacheBroker
from tests.interop.guarded_apache import GUARDED, SECRET, USER

from cometmq.pipeline.batch_ends import by_time
from cometmq.pipeline.bounds import survey
from cometmq.pipeline.cluster import Bounds, Cluster, Survey
from cometmq.pipeline.columns import ALL_COLUMNS, PROPERTIES
from cometmq.pipeline.errors import ConnectionLostError, OptionError, RefusedError, SinkError
from cometmq.pipeline.fetching import Pulling, chunks
from cometmq.pipeline.filter_check import require_filter
from cometmq.pipeline.jobs.credentials import Credentials
from cometmq.pipeline.jobs.mirror import JOB as MIRROR, MirrorSettings
from cometmq.pipeline.lanes import Sending
from cometmq.pipeline.measuring import guessed, measured
from cometmq.pipeline.messages import Forming
from cometmq.pipeline.options import ReadOptions
from cometmq.pipeline.planning import Range
from cometmq.pipeline.records import record_batches
from cometmq.pipeline.rows import RowForm
from cometmq.pipeline.sending import Sender
from cometmq.pipeline.targets import Targets
from cometmq.pipeline.unread import unread
from cometmq.pipeline.wire import Settings, Wire

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

pytestmark = pytest.mark.slow

SETTINGS = Settings(timeout=15.0)
SIGNING = replace(SETTINGS, access_key=USER, secret_key=SECRET)
NAMES = ("body", "tag", "properties", "topic", "broker", "queue_id", "queue_offset")


@pytest.fixture(scope="module", params=["open", pytest.param("guarded", marks=pytest.mark.long)])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Cluster]:
    is_guarded = request.param == "guarded"
    settings = {"enablePropertyFilter": "true", **(GUARDED if is_guarded else {})}
    with ApacheBroker(tmp_path_factory.mktemp("apache"), settings) as broker:
        asked = Cluster([broker.nameserver], SIGNING if is_guarded else SETTINGS)
        deadline = time.monotonic() + 60
        while asked.route("TBW102") is None and time.monotonic() < deadline:
            time.sleep(0.1)
        yield asked


def rows(count: int) -> pa.RecordBatch:
    columns: list[pa.Array] = [
        pa.array([b"%d" % index * 50 for index in range(count)]),
        pa.array(["ab"[index % 2] for index in range(count)]),
        pa.array([[("n", str(index))] for index in range(count)], PROPERTIES),
        pa.array(["T"] * count),
        pa.array(["a"] * count),
        pa.array([0] * count, pa.int32()),
        pa.array(range(count)),
    ]
    return pa.record_batch(columns, names=list(NAMES))


def write(
    cluster: Cluster,
    topic: str,
    batch: pa.RecordBatch,
    delivery: str = "auto",
    *,
    in_order: bool = False,
) -> list[bytes]:
    form = RowForm(NAMES, topic, "", NAMES[3:], "")
    how = Sending(cluster.settings, delivery, batch_bytes=4096, in_order=in_order)
    sender = Sender(Targets(cluster), how)
    try:
        sender.send(Forming(form, "sink").messages(batch))
        sender.finish()
    finally:
        sender.close()
    bodies: list[bytes] = batch.column("body").to_pylist()
    return bodies


def indexed(cluster: Cluster, topic: str, count: int) -> Survey:
    """Return a topic's bounds once its queues have all messages; Apache answers sends before."""
    deadline = time.monotonic() + 20
    while True:
        found = cluster.bounds([topic])
        have = sum(each.end for each in found.queues.values())
        if have >= count or time.monotonic() > deadline:
            assert have == count
            return found
        time.sleep(0.01)


def read(
    cluster: Cluster, topic: str, count: int, expression: str = "*", kind: str = "TAG"
) -> list[bytes]:
    found = indexed(cluster, topic, count)
    wanted = [
        Range(queue, found.addresses[queue.broker], each.first, each.end)
        for queue, each in found.queues.items()
    ]
    pulling = Pulling(cluster.settings, expression, kind)
    return [
        row["body"]
        for chunk in chunks(wanted, pulling)
        for batch in record_batches(chunk.data, ALL_COLUMNS, broker=chunk.queue.broker)
        for row in batch.to_pylist()
    ]


def test_a_queue_is_written_in_order_where_that_is_asked_for(cluster: Cluster) -> None:
    """A broker stores the batches of one connection in several threads, side by side."""
    bodies = write(cluster, "written-in-order", rows(20_000), in_order=True)
    assert read(cluster, "written-in-order", 20_000) == bodies


def test_brokers_are_told_by_their_names_and_addresses(cluster: Cluster) -> None:
    """A mirror knows its source by the addresses; a stream knows by the names who is there."""
    route = cluster.route("TBW102")
    assert route is not None
    brokers = cluster.brokers()
    assert brokers.names == set(route.addresses)
    assert brokers.addresses == set(route.addresses.values())


def test_what_is_written_in_batches_is_read(cluster: Cluster) -> None:
    bodies = write(cluster, "spark-batches", rows(500))
    assert sorted(read(cluster, "spark-batches", 500)) == sorted(bodies)


def test_a_message_of_the_largest_size_that_a_broker_takes_is_written(cluster: Cluster) -> None:
    """In a batch it would be larger than that."""
    body = b"x" * (4 << 20)
    batch = pa.record_batch([pa.array([body])], names=["body"])
    form = RowForm(("body",), "spark-largest", "", (), "")
    for size in (4 << 20, (4 << 20) + 1):
        sender = Sender(Targets(cluster), Sending(cluster.settings))
        try:
            sender.send(Forming(form, "sink").messages(batch))
            with nullcontext() if size == len(body) else pytest.raises(SinkError, match="larger"):
                sender.finish()
        finally:
            sender.close()
        batch = pa.record_batch([pa.array([body + b"x"])], names=["body"])
    assert read(cluster, "spark-largest", 1) == [body]


def test_the_broker_filters(cluster: Cluster) -> None:
    write(cluster, "spark-filtered", rows(100))
    assert len(read(cluster, "spark-filtered", 100, "a")) == 50
    assert len(read(cluster, "spark-filtered", 100, "n > 97", "SQL92")) == 2


def test_a_filter_that_cannot_be_read_is_refused(cluster: Cluster) -> None:
    """Apache's broker answers a pull with such a filter with all messages."""
    write(cluster, "spark-misread", rows(10))
    indexed(cluster, "spark-misread", 10)
    assert len(read(cluster, "spark-misread", 10, "n >", "SQL92")) == 10
    options = ReadOptions(nameserver=cluster.nameservers[0], topic="spark-misread", filter="n >")
    found = survey(cluster, options, whole=True)
    with pytest.raises(OptionError, match=r"filter: 'n >' was refused by broker broker-a: .*EOF"):
        require_filter(cluster, options, found)
    require_filter(cluster, replace(options, filter="n > 2"), found)


def test_offsets_and_groups(cluster: Cluster) -> None:
    write(cluster, "spark-offsets", rows(10))
    found = indexed(cluster, "spark-offsets", 10)
    queue, there = next((q, b) for q, b in found.queues.items() if b != Bounds(0, 0))
    assert cluster.offsets_at([queue], found.addresses, 0) == {queue: 0}
    cluster.commit("spark-group", {queue: there.end}, found.addresses)
    assert cluster.committed("spark-group", [queue], found.addresses) == {queue: there.end}


@pytest.mark.parametrize(
    ("read_queues", "write_queues", "perm", "told"),
    [(2, 4, 6, [2, 3]), (4, 4, 2, [0, 1, 2, 3]), (2, 2, 6, [])],
)
def test_which_queues_that_cannot_be_read_are_told_of(
    cluster: Cluster, read_queues: int, write_queues: int, perm: int, told: list[int]
) -> None:
    topic = f"unread-{read_queues}-{write_queues}"
    (address,) = cluster.brokers().addresses
    sent = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "f": "0", "g": "0", "h": "0", "i": ""}
    with closing(Wire(address, cluster.settings)) as peer:
        for queue_id in range(4):
            peer.expect(310, sent | {"e": str(queue_id), "j": "0", "k": "false"}, b"x")
    indexed(cluster, topic, 4)
    assert unread(cluster, [topic]) == {}
    fields = {"topic": topic, "defaultTopic": "TBW102", "perm": str(perm)}
    fields |= {"readQueueNums": str(read_queues), "writeQueueNums": str(write_queues)}
    cluster.ask(address, 17, fields | {"topicFilterType": "SINGLE_TAG"}).expect(address)
    deadline = time.monotonic() + 60
    wanted = {"broker-a": read_queues} if perm & 4 else {}
    while (route := cluster.route(topic)) is None or dict(route.read_queues) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert [queue.id for queue in sorted(unread(cluster, [topic]))] == told


def test_batches_end_at_one_time_in_all_queues(cluster: Cluster) -> None:
    """Apache's brokers give the offsets of a time, also of one before or after all messages."""
    for wave in range(1, 5):
        write(cluster, "spark-aligned", rows(20))
        indexed(cluster, "spark-aligned", wave * 20)
        time.sleep(0.05)
    found = indexed(cluster, "spark-aligned", 80)
    ends = {queue: each.end for queue, each in found.queues.items()}
    stored = cluster.stored_first(ends, found.addresses)
    between = min(stored.values()), int(time.time() * 1000) + 1000
    begins, sizes = dict.fromkeys(ends, 0), list[int]()
    while begins != ends:
        upto = by_time(
            begins,
            ends,
            25,
            lambda at: cluster.offsets_at(ends, found.addresses, at),
            lambda: between,
        )
        sizes.append(sum(upto.values()) - sum(begins.values()))
        begins = upto
    assert sizes == [20, 20, 20, 20]


def test_bytes_are_guessed_where_the_broker_does_not_tell(cluster: Cluster) -> None:
    write(cluster, "spark-guessed", rows(10))
    found = indexed(cluster, "spark-guessed", 10)
    assert measured(cluster, found.queues, found.addresses, 1 << 20) == guessed(found.queues)


def test_nothing_is_promised_that_apache_cannot_keep(cluster: Cluster) -> None:
    with pytest.raises(OptionError, match="is not CometMQ's"):
        write(cluster, "spark-once", rows(1), "idempotent")
    write(cluster, "spark-once", rows(1))
    write(cluster, "spark-once", rows(1))
    assert len(read(cluster, "spark-once", 2)) == 2


def test_a_mirror_that_would_promise_it_is_refused_before_spark_starts(
    cluster: Cluster, tmp_path: Path
) -> None:
    (nameserver,) = cluster.nameservers
    write(cluster, "spark-once", rows(1))
    keys = Credentials(
        access_key=cluster.settings.access_key, secret_key=cluster.settings.secret_key
    )
    settings = MirrorSettings(
        credentials=keys,
        to_credentials=keys,
        nameserver=nameserver,
        topic="spark-once",
        to_nameserver=nameserver,
        prefix="copy-of-",
        delivery="idempotent",
        checkpoint=str(tmp_path / "checkpoint"),
    )
    assert MIRROR.look is not None
    with pytest.raises(OptionError, match="is not CometMQ's"):
        MIRROR.look(settings)
    assert not (tmp_path / "checkpoint").exists()


def test_a_wrong_secret_is_refused_before_spark_starts_and_a_user_who_may_write_is_not(
    cluster: Cluster,
) -> None:
    """Jobs that only write ask nothing else; an open broker ignores secrets."""
    another = Cluster(cluster.nameservers, replace(SIGNING, secret_key="another"))
    if cluster.settings != SIGNING:
        another.require()
        return
    with pytest.raises(RefusedError, match="refused with code 16: check signature failed"):
        another.require()
    make_user(cluster, "writer", SECRET, "Topic:spark-written")
    Cluster(cluster.nameservers, replace(SIGNING, access_key="writer")).require()


def make_user(cluster: Cluster, name: str, secret: str, resource: str) -> None:
    """Make a user who may only send to `resource`."""
    (address,) = cluster.brokers().addresses
    user = {"username": name, "password": secret, "userType": "Normal", "userStatus": "enable"}
    allowed = {"resource": resource, "actions": ["Pub"], "sourceIps": [], "decision": "Allow"}
    acl = {"subject": f"User:{name}", "policies": [{"policyType": "Custom", "entries": [allowed]}]}
    with closing(Wire(address, cluster.settings)) as peer:
        peer.expect(3001, {"username": name}, json.dumps(user).encode())
        peer.expect(3006, {"subject": f"User:{name}"}, json.dumps(acl).encode())


def test_a_topic_that_is_not_there_has_no_route(cluster: Cluster) -> None:
    assert cluster.bounds(["no-such-topic"]).topics == set()
    with pytest.raises(ConnectionLostError):
        Cluster(["127.0.0.1:1"], SETTINGS).topics_like(".*")
