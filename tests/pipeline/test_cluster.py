"""What the pipeline asks of servers, without Spark."""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import nullcontext
from itertools import count as counting
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.client import NewMessage
from cometmq.pipeline import fetching, nameservers, wire
from cometmq.pipeline.cluster import (
    Bounds,
    Cluster as Asked,
    Queue,
    Survey,
    read_topic_status,
)
from cometmq.pipeline.errors import (
    BusyError,
    ConnectionLostError,
    DataLossError,
    OptionError,
    RefusedError,
)
from cometmq.pipeline.fetching import Pulling, chunks
from cometmq.pipeline.measuring import ROW_SIZE, Piece, measured
from cometmq.pipeline.nameservers import read_nameservers
from cometmq.pipeline.planning import Range
from cometmq.pipeline.records import record_batches
from cometmq.pipeline.routes import Brokers, Route, read_brokers, read_route
from cometmq.pipeline.targets import Targets
from cometmq.pipeline.wire import Settings
from cometmq.proto import RequestCode, ResponseCode, StoredMessage
from cometmq.proto.message_list import MessageList
from cometmq.proto.version import CURRENT_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.pipeline.wire import Answer
    from cometmq.testing import Cluster

pytestmark = pytest.mark.usefixtures("no_connection_is_kept")

SETTINGS = Settings(timeout=5.0)


@pytest.fixture
def asked(rocketmq_session: Cluster) -> Asked:
    return Asked([rocketmq_session.nameserver], SETTINGS)


def fill(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    cluster.admin.create_topic(topic, queues=1)
    sent = [f"{topic} {index}".encode() for index in range(count)]
    cluster.client.send_batch(topic, sent)
    return sent


@pytest.fixture(params=[True, False])
def is_bulk(
    request: pytest.FixtureRequest, rocketmq_session: Cluster, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Whether the broker is taken for one that knows bulk reads."""
    if not request.param:
        monkeypatch.setattr(fetching, "without_bulk", {rocketmq_session.broker})
    return bool(request.param)


def pulled(asked: Asked, topic: str, first: int, end: int, **how: object) -> list[StoredMessage]:
    found = asked.bounds([topic])
    queue = Queue(topic, "broker-a", 0)
    wanted = Range(queue, found.addresses["broker-a"], first, end)
    pulling = Pulling(SETTINGS, retry_interval_ms=1, **how)  # type: ignore[arg-type]  # as they are called
    return [m for chunk in chunks([wanted], pulling) for m in MessageList(chunk.data)]


def test_bounds_are_those_of_all_queues_in_one_request(
    rocketmq_session: Cluster, asked: Asked
) -> None:
    fill(rocketmq_session, "bounds", 3)
    rocketmq_session.admin.create_topic("bounds", queues=3)
    found = asked.bounds(["bounds"])
    assert [found.queues[Queue("bounds", "broker-a", n)] for n in range(3)] == [
        Bounds(0, 3),
        Bounds(0, 0),
        Bounds(0, 0),
    ]


def test_bounds_are_of_readable_queues_and_say_where_a_slave_answered(
    rocketmq_session: Cluster, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker tells the offsets of all queues that it has, also of those that nobody may read."""
    rocketmq_session.admin.create_topic("few-readable", queues=3)
    route = Route(
        {"broker-a": rocketmq_session.broker}, {"broker-a": 2}, {}, frozenset({"broker-a"})
    )

    def routes(_topics: object) -> dict[str, Route]:
        return {"few-readable": route}

    monkeypatch.setattr(asked, "routes", routes)
    found = asked.bounds(["few-readable"])
    assert found.queues.keys() == {Queue("few-readable", "broker-a", n) for n in range(2)}
    assert found.slaves == {"broker-a"}


def test_a_topic_that_is_not_there_has_no_bounds(asked: Asked) -> None:
    assert asked.bounds(["no-such-topic"]) == Survey()


def test_apaches_answer_to_202_is_no_json_and_is_read(asked: Asked) -> None:
    body = (
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:{"lastUpdateTimestamp":5,'
        b'"maxOffset":9,"minOffset":2},{"brokerName":"b","queueId":0,"topic":"T"}:'
        b'{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}},"topicPutTps":0.0}'
    )
    assert dict(read_topic_status("b", body)) == {
        Queue("T", "b", 1): Bounds(2, 9),
        Queue("T", "b", 0): Bounds(0, 0),
    }


def test_a_broker_whose_name_has_braces_is_read_as_well() -> None:
    """Such as a template never filled in; its queues used to be left out without a word."""
    name = '${"HOST}'
    body = (
        b'{"offsetTable":{{"brokerName":%b,"queueId":1,"topic":"T"}:{"maxOffset":9,"minOffset":2}}}'
    ) % json.dumps(name).encode()
    assert dict(read_topic_status(name, body)) == {Queue("T", name, 1): Bounds(2, 9)}


def test_brokers_are_told_by_their_names_and_addresses(
    rocketmq_session: Cluster, asked: Asked
) -> None:
    assert asked.brokers() == Brokers(frozenset({"broker-a"}), frozenset({rocketmq_session.broker}))


def test_apaches_answer_to_106_is_no_json_and_is_read() -> None:
    body = (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},'
        b'"brokerName":"broker-a","cluster":"C","enableActingMaster":false},"broker-b":{'
        b'"brokerAddrs":{0:"[::1]:10911"},"brokerName":"broker-b","cluster":"C"}},'
        b'"clusterAddrTable":{"C":["broker-a","broker-b"]}}'
    )
    assert read_brokers(body) == Brokers(
        frozenset({"broker-a", "broker-b"}),
        frozenset({"10.0.0.1:10911", "10.0.0.2:10911", "[::1]:10911"}),
    )
    assert read_brokers(b'{"brokerAddrTable":{},"clusterAddrTable":{}}').names == set()
    odd = rb'{"brokerAddrTable":{"a\"b{":{"brokerAddrs":{},"brokerName":"a\"b{","cluster":"C"}}}'
    assert read_brokers(odd).names == {'a"b{'}


def test_of_a_broker_whose_master_is_away_is_read_and_nothing_is_sent_to_it() -> None:
    """A slave refuses sends, so Apache's clients leave it out, and send to the other brokers."""
    queues = {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4}
    said = {
        "brokerDatas": [
            {"brokerName": "a", "brokerAddrs": {"1": "10.0.0.2:10911"}},
            {"brokerName": "b", "brokerAddrs": {"0": "10.0.0.3:10911", "1": "10.0.0.4:10911"}},
        ],
        "queueDatas": [{"brokerName": name, **queues} for name in "ab"],
    }
    addresses = {"a": "10.0.0.2:10911", "b": "10.0.0.3:10911"}
    assert read_route(said) == Route(addresses, {"a": 4, "b": 4}, {"b": 4}, frozenset("a"))


def test_a_group_that_is_not_there_is_made_when_it_is_told_its_progress(
    rocketmq_session: Cluster, asked: Asked
) -> None:
    fill(rocketmq_session, "progress", 3)
    queue, addresses = Queue("progress", "broker-a", 0), {"broker-a": rocketmq_session.broker}
    assert asked.committed("new-group", [queue], addresses) == {}
    asked.commit("new-group", {queue: 2}, addresses)
    assert asked.committed("new-group", [queue], addresses) == {queue: 2}


def test_a_broker_that_refuses_to_note_or_to_tell_progress_is_an_error(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[Answer]:
        return [wire.Answer(0, 1, "broken", {}, b"")]

    monkeypatch.setattr(asked, "ask_all", refuse)
    queue, addresses = Queue("T", "broker-a", 0), {"broker-a": "127.0.0.1:1"}
    with pytest.raises(RefusedError, match="broken"):
        asked.commit("group", {queue: 2}, addresses)
    with pytest.raises(RefusedError, match="broken"):
        asked.committed("group", [queue], addresses)


def test_offsets_are_found_by_time(rocketmq_session: Cluster, asked: Asked) -> None:
    fill(rocketmq_session, "by-time", 3)
    queue, addresses = Queue("by-time", "broker-a", 0), {"broker-a": rocketmq_session.broker}
    assert asked.offsets_at([queue], addresses, 0) == {queue: 0}


def test_a_connection_that_was_kept_and_broke_is_made_anew(
    rocketmq_session: Cluster, asked: Asked
) -> None:
    assert asked.route("TBW102")
    kept = next(iter(wire._kept.values()))  # pyright: ignore[reportPrivateUsage]  # To break it.
    kept._socket.shutdown(socket.SHUT_RDWR)  # pyright: ignore[reportPrivateUsage]  # As above.
    assert asked.route("TBW102")


def test_a_kept_connection_that_its_server_has_closed_is_not_used() -> None:
    """Brokers close what is idle; with `retries=0`, a task failed at that."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        kept = wire.connect(address, SETTINGS)
        there, _ = server.accept()
        wire.keep(kept, SETTINGS)
        assert wire.connect(address, SETTINGS) is kept
        wire.keep(kept, SETTINGS)
        there.close()
        another = wire.connect(address, SETTINGS)
        assert another is not kept
        another.close()


def test_a_server_that_says_nothing_is_waited_for_once_a_try() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionLostError, match="timed out"):
            Asked([address], Settings(timeout=0.1)).topics_like(".*")
        server.setblocking(False)
        server.accept()[0].close()
        with pytest.raises(BlockingIOError):
            server.accept()


def test_nobody_there_is_said_with_the_address() -> None:
    with pytest.raises(ConnectionLostError, match=r"no name server answers: .*127\.0\.0\.1:1"):
        Asked(["127.0.0.1:1"], SETTINGS).topics_like(".*")


class NameServers:
    """Two fake name servers; `brokers` has the names of the brokers that each of them knows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.brokers: dict[str, str] = {"a:1": "xy", "b:2": "xy"}
        self.away: set[str] = set()
        self.asked: list[str] = []

        def ask_all(_: Asked, address: str, *__: object) -> list[Answer]:
            return [self.ask(address)]

        monkeypatch.setattr(Asked, "ask_all", ask_all)
        monkeypatch.setattr(nameservers, "_orders", {})
        monkeypatch.setattr(nameservers, "_failed_at", {})

    def ask(self, address: str) -> Answer:
        self.asked.append(address)
        if address in self.away:
            raise ConnectionLostError("timed out")
        said = [f'{{"brokerAddrs":{{}},"brokerName":"{name}"}}' for name in self.brokers[address]]
        return wire.Answer(0, 0, "", {}, ",".join(said).encode())


def test_one_name_server_is_asked_as_long_as_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose host is gone takes the whole timeout each time."""
    there = NameServers(monkeypatch)
    for gone in ("a:1", "b:2", "a:1"):
        there.away = {gone}
        there.asked.clear()
        for _ in range(50):
            Asked(["a:1", "b:2"], SETTINGS).brokers()
        assert there.asked.count(gone) <= 1
        assert len(there.asked) <= 51


def test_the_name_server_that_knows_most_brokers_is_asked_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that has just started knows no topic; a stream that asked it took its own for deleted."""
    there = NameServers(monkeypatch)
    for knows in ("a:1", "b:2", "a:1"):
        there.brokers = {"a:1": "", "b:2": "x"} | {knows: "xy"}
        asked = Asked(["a:1", "b:2"], SETTINGS)
        assert asked.brokers().names == {"x", "y"}
        there.asked.clear()
        assert asked.brokers().names == {"x", "y"}
        assert there.asked[0] == knows


def test_no_thread_sees_the_name_servers_while_they_are_put_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nameservers, "_orders", {})
    monkeypatch.setattr(nameservers, "_failed_at", {})
    seen: list[list[str]] = []

    class Address(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            seen.append(servers.in_turn())
            return str.__eq__(self, other)

        __ne__ = __eq__

    servers = nameservers.NameServers([Address("a:1"), Address("b:2")])
    servers.leave("a:1")
    servers.prefer("a:1")
    assert seen
    assert all(sorted(map(str, each)) == ["a:1", "b:2"] for each in seen)


def test_a_refusal_is_that_of_the_name_server_that_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask_all(_asked: Asked, address: str, _code: int, _requests: object) -> list[Answer]:
        if address != "b:2":
            raise ConnectionLostError("away")
        return [wire.Answer(0, 1, "no", {}, b"")]

    monkeypatch.setattr(Asked, "ask_all", ask_all)
    asked = Asked(["a:1", "b:2"], SETTINGS)
    for question in (asked.brokers, lambda: asked.route("T"), lambda: asked.topics_like(".*")):
        with pytest.raises(RefusedError, match=r"^b:2 refused with code 1: no"):
            question()


def test_a_broker_that_is_given_as_a_name_server_is_told_as_one(rocketmq_session: Cluster) -> None:
    asked = Asked([rocketmq_session.broker], SETTINGS)
    said = rf"^{re.escape(rocketmq_session.broker)} answers, but looks like a broker"
    for question in (asked.brokers, lambda: asked.route("T"), lambda: asked.topics_like(".*")):
        with pytest.raises(OptionError, match=said):
            question()


def test_an_answer_that_is_none_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def babble() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 100)

        thread = threading.Thread(target=babble)
        thread.start()
        peer = wire.Wire(f"127.0.0.1:{server.getsockname()[1]}", SETTINGS)
        with pytest.raises(ConnectionLostError, match="is not an answer"):
            peer.ask(105, {"topic": "T"})
        peer.close()
        thread.join()


@pytest.mark.parametrize("count", [1, 31, 33, 500])
def test_a_range_is_pulled_whole_and_in_order(
    rocketmq_session: Cluster,
    asked: Asked,
    is_bulk: bool,
    count: int,
) -> None:
    topic = f"pulled-{count}-{is_bulk}"
    sent = fill(rocketmq_session, topic, count)
    assert [m.body for m in pulled(asked, topic, 0, count)] == sent
    assert [m.body for m in pulled(asked, topic, count - 1, count)][:1] == sent[-1:]


def test_large_messages_which_come_few_at_a_time_are_pulled_whole(
    rocketmq_session: Cluster, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.pipeline.fetching.without_bulk", {rocketmq_session.broker})
    rocketmq_session.admin.create_topic("large", queues=1)
    sent = [Random(number).randbytes(20_000) for number in range(100)]  # They stay so long.
    for body in sent:
        rocketmq_session.send("large", body)
    assert [m.plain_body(size_max=20_000) for m in pulled(asked, "large", 0, 100)] == sent


def test_a_broker_tells_how_many_bytes_there_are(
    rocketmq_session: Cluster, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocketmq_session.admin.create_topic("measured", queues=2)
    bodies = [b"x" * 50_000] * 20 + [b"x"] * 60
    rocketmq_session.client.send_batch("measured", bodies)
    found = asked.bounds(["measured"])
    pieces = measured(asked, found.queues, found.addresses, 1_600_000)
    assert sum(each.size for each in pieces) == sum(
        each.size for each in rocketmq_session.sent("measured", count=80)
    )
    (queue,) = {each.queue for each in pieces}  # The other one is empty.
    ends = [each.end for each in pieces]
    assert [each.first for each in pieces] == [0, *ends[:-1]]
    assert ends[-1] == found.queues[queue].end
    assert max(each.size for each in pieces) <= 200_000  # An eighth of a task.
    monkeypatch.setattr("cometmq.pipeline.measuring._LOOKED_AT_MAX", 7)
    in_steps = measured(asked, found.queues, found.addresses, 1_600_000)
    assert sum(each.size for each in in_steps) == sum(each.size for each in pieces)
    assert max(each.end - each.first for each in in_steps) == 7


def test_of_a_broker_that_does_not_tell_bytes_they_are_guessed(
    rocketmq_session: Cluster, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.pipeline.fetching.without_bulk", set[str]())
    monkeypatch.setattr("cometmq.pipeline.measuring.GET_RANGE_SIZE", 31999)  # Unknown to it.
    fill(rocketmq_session, "not-measured", 5)
    found = asked.bounds(["not-measured"])
    guess = [Piece(Queue("not-measured", "broker-a", 0), 0, 5, 5 * ROW_SIZE)]
    assert measured(asked, found.queues, found.addresses, 1 << 20) == guess
    assert fetching.without_bulk == {rocketmq_session.broker}
    # Nor does one that is away tell them: the read will find it there, or say so.
    assert measured(asked, found.queues, {"broker-a": "127.0.0.1:1"}, 1 << 20) == guess


def test_what_is_not_there_any_more_is_planned_for_and_told_when_it_is_read(
    rocketmq_session: Cluster, asked: Asked
) -> None:
    fill(rocketmq_session, "measured-short", 3)
    queue, addresses = Queue("measured-short", "broker-a", 0), {"broker-a": rocketmq_session.broker}
    pieces = measured(asked, {queue: Bounds(0, 5)}, addresses, 1 << 20)
    assert [(each.first, each.end) for each in pieces] == [(0, 3), (3, 5)]


def test_a_range_that_is_not_there_is_data_loss(rocketmq_session: Cluster, asked: Asked) -> None:
    fill(rocketmq_session, "short", 3)
    with pytest.raises(DataLossError, match="queue short/broker-a/0: messages from 3 on"):
        pulled(asked, "short", 0, 5)
    assert len(pulled(asked, "short", 0, 5, fail_on_data_loss=False)) == 3


def answers_changed(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Answer], Answer]
) -> list[Answer]:
    """Change the first answer that has messages, and note the changed one in the list returned."""
    changed: list[Answer] = []
    receive = wire.Wire.receive

    def received(self: wire.Wire) -> Answer:
        answer = receive(self)
        if answer.body and not changed and "nextBeginOffset" in answer.fields:
            answer = change(answer)
            changed.append(answer)
        return answer

    monkeypatch.setattr(wire.Wire, "receive", received)
    return changed


SKIPPING: dict[str, object] = {"fail_on_data_loss": False, "losses": object()}


def losses_told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return where the losses are noted that are reported from now on."""
    told: list[int] = []

    def tell(_listener: object, _range: object, lost: int) -> None:
        told.append(lost)

    monkeypatch.setattr(fetching, "tell", tell)
    return told


def without_two(answer: Answer) -> Answer:
    """Return the answer as if the file with its first two messages had just been removed."""
    first, second, *_ = MessageList(answer.body)
    return answer._replace(body=answer.body[first.size + second.size :])


def passing_over_two(answer: Answer) -> Answer:
    """Return the answer as if its messages' file had been removed, and nothing else looked at."""
    fields = {**answer.fields, "nextBeginOffset": "2"}
    return answer._replace(code=20, remark="MESSAGE_WAS_REMOVING", fields=fields, body=b"")


def with_more_expired(answer: Answer) -> Answer:
    return without_two(answer)._replace(fields={**answer.fields, "minOffset": "2"})


def moved_by_two(answer: Answer) -> Answer:
    """Return the answer as if the first two messages had expired before the request."""
    fields = {**answer.fields, "minOffset": "2", "nextBeginOffset": "2"}
    return answer._replace(code=21, fields=fields, body=b"")


@pytest.mark.parametrize(
    ("change", "expression"),
    [
        (moved_by_two, "*"),
        (without_two, "*"),
        (passing_over_two, "*"),
        (passing_over_two, "a"),
        (with_more_expired, "a"),
    ],
)
def test_messages_that_expire_while_they_are_read_are_data_loss(
    rocketmq_session: Cluster,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Answer], Answer],
    expression: str,
    is_bulk: bool,
) -> None:
    topic = f"going-{change.__name__}-{is_bulk}-{len(expression)}{ord(expression)}"
    rocketmq_session.admin.create_topic(topic, queues=1)
    for number in range(5):
        rocketmq_session.send(topic, b"%d" % number, tag="a")
    with monkeypatch.context() as patch:
        answers_changed(patch, change)
        with pytest.raises(DataLossError, match=r"messages from 0 (to 2 expired|on were to be)"):
            pulled(asked, topic, 0, 5, expression=expression)
    with monkeypatch.context() as patch:
        answers_changed(patch, change)
        told = losses_told(patch)
        rest = pulled(asked, topic, 0, 5, expression=expression, **SKIPPING)
        assert [m.body for m in rest] == [b"2", b"3", b"4"]
        assert told == [2]
    assert f"data loss: queue {topic}/broker-a/0: messages from 0 " in caplog.text


def test_what_expired_is_counted_up_to_the_end_of_the_range(
    rocketmq_session: Cluster, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(rocketmq_session, "all-expired", 5)
    told = losses_told(monkeypatch)
    answers_changed(monkeypatch, moved_by_two)
    assert pulled(asked, "all-expired", 1, 2, **SKIPPING) == []
    assert told == [1]


def test_messages_that_do_not_pass_are_no_loss(rocketmq_session: Cluster, asked: Asked) -> None:
    rocketmq_session.admin.create_topic("passed-over", queues=1)
    for tag in ("b", "b", "a", "b"):
        rocketmq_session.send("passed-over", tag.encode(), tag=tag)
    assert [m.body for m in pulled(asked, "passed-over", 0, 4, expression="a")] == [b"a"]


def test_a_busy_broker_is_asked_again(
    rocketmq_session: Cluster, asked: Asked, monkeypatch: pytest.MonkeyPatch, is_bulk: bool
) -> None:
    sent = fill(rocketmq_session, f"busy-{is_bulk}", 70)
    busy = answers_changed(monkeypatch, lambda answer: answer._replace(code=2, body=b""))
    assert [m.body for m in pulled(asked, f"busy-{is_bulk}", 0, 70)] == sent
    assert busy


def answers_emptied(monkeypatch: pytest.MonkeyPatch, topic: str, count: int) -> None:
    """Have a topic's first pulls from 0 return nothing, as if that could not be read yet."""
    left = counting(count, -1)
    receive, frame = wire.Wire.receive, wire.Wire.frame
    asking: set[int] = set()

    def framed(self: wire.Wire, code: int, fields: Mapping[str, str], body: bytes, n: int) -> bytes:
        if (fields.get("topic"), fields.get("queueOffset")) == (topic, "0"):
            asking.add(n)
        return frame(self, code, fields, body, n)

    def received(self: wire.Wire) -> Answer:
        answer = receive(self)
        if answer.opaque in asking and answer.body and next(left) > 0:
            fields = {**answer.fields, "nextBeginOffset": "0"}
            answer = answer._replace(code=19, fields=fields, body=b"")
        return answer

    monkeypatch.setattr(wire.Wire, "frame", framed)
    monkeypatch.setattr(wire.Wire, "receive", received)


def test_messages_that_cannot_be_read_for_a_while_are_waited_for_and_none_is_left_out(
    rocketmq_session: Cluster, asked: Asked, monkeypatch: pytest.MonkeyPatch, is_bulk: bool
) -> None:
    topic = f"not-yet-{is_bulk}"
    sent = fill(rocketmq_session, topic, 70)
    with monkeypatch.context() as patch:
        answers_emptied(patch, topic, 11)  # At the last, it is asked over another connection.
        assert [m.body for m in pulled(asked, topic, 0, 70, retries=1)] == sent
    answers_emptied(monkeypatch, topic, 12)
    with pytest.raises(ConnectionLostError, match=f"{topic}/broker-a/0: .* returns nothing at 0"):
        pulled(asked, topic, 0, 70, retries=1)


@pytest.mark.parametrize(("first", "end"), [(0, 100), (13, 78)])
def test_batch_records_over_the_borders_of_requests_are_read_once(
    rocketmq_session: Cluster,
    asked: Asked,
    is_bulk: bool,
    first: int,
    end: int,
) -> None:
    """A request without bulk asks for 32 messages, and records of five stand across that."""
    topic = f"across-borders-{is_bulk}-{first}"
    batches = {"queue.type": "BatchCQ"}
    rocketmq_session.admin.create_topic(topic, queues=1, attributes=batches)
    for at in range(0, 100, 5):
        sent = [NewMessage(body=b"%d" % number) for number in range(at, at + 5)]
        rocketmq_session.client.send_batch(topic, sent)
    queue = Queue(topic, "broker-a", 0)
    wanted = Range(queue, asked.bounds([topic]).addresses["broker-a"], first, end)
    bodies = [
        row["body"]
        for chunk in chunks([wanted], Pulling(SETTINGS))
        for batch in record_batches(
            chunk.data, ("body",), broker="broker-a", queue_offsets=(chunk.first, chunk.end)
        )
        for row in batch.to_pylist()
    ]
    assert bodies == [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize("good", [1, 0])
def test_a_busy_broker_that_answers_in_between_is_asked_again_without_end(
    rocketmq_session: Cluster, asked: Asked, monkeypatch: pytest.MonkeyPatch, good: int
) -> None:
    monkeypatch.setattr("cometmq.pipeline.fetching.without_bulk", {rocketmq_session.broker})
    sent = fill(rocketmq_session, f"often-busy-{good}", 150)
    turns = counting()
    receive = wire.Wire.receive

    def received(self: wire.Wire) -> Answer:
        answer = receive(self)
        if not answer.body or "nextBeginOffset" not in answer.fields:
            return answer
        turn = next(turns)
        assert turn < 20
        return answer if turn % 2 < good else answer._replace(code=2, body=b"")

    monkeypatch.setattr(wire.Wire, "receive", received)
    with nullcontext() if good else pytest.raises(BusyError):
        assert [m.body for m in pulled(asked, f"often-busy-{good}", 0, 150, retries=1)] == sent
    assert next(turns) == (9 if good else 2)


@pytest.mark.parametrize("breaks_at", [1, 2, 5])
def test_nothing_is_passed_over_where_a_connection_breaks_at_a_request(
    rocketmq_session: Cluster,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
    is_bulk: bool,
    breaks_at: int,
) -> None:
    """A send finds the connection broken if the broker was killed with requests unread."""
    topic = f"breaking-{is_bulk}-{breaks_at}"
    sent = fill(rocketmq_session, topic, 500)
    numbers, send = counting(1), wire.Wire.send
    codes = (fetching.PULL_MESSAGE, fetching.BULK_PULL_MESSAGE)

    def sending(peer: wire.Wire, code: int, *given: Any) -> int:
        if code in codes and next(numbers) == breaks_at:
            raise ConnectionLostError("broken pipe")
        return send(peer, code, *given)

    monkeypatch.setattr(wire.Wire, "send", sending)
    assert [m.body for m in pulled(asked, topic, 0, 500, pull_bytes=20_000)] == sent
    assert next(numbers) > breaks_at + 1


def test_a_filter_that_cannot_be_read_is_refused(rocketmq_session: Cluster, asked: Asked) -> None:
    fill(rocketmq_session, "refusing", 1)
    with pytest.raises(RefusedError, match="refused with code 23"):
        pulled(asked, "refusing", 0, 1, expression="a >", kind="SQL92")


def test_a_pattern_matches_what_is_users_own(rocketmq_session: Cluster, asked: Asked) -> None:
    """Otherwise a mirror of `.*` would copy half transactions, delayed messages and retries."""
    admin = rocketmq_session.admin
    for name in ("a-users", "%RETRY%a-group", "%DLQ%a-group"):
        admin.create_topic(name, queues=1)
    kinds = {each.name: each.kind for each in admin.topics()}
    assert {"user", "system", "retry", "dead letters"} <= set(kinds.values())
    assert asked.topics_like(".*") == tuple(sorted(k for k, v in kinds.items() if v == "user"))
    assert asked.topics_like("%DLQ%a-.*") == ("%DLQ%a-group",)
    assert asked.topics_like("a-use") == ()


def test_a_topic_that_is_written_to_is_made(rocketmq_session: Cluster, asked: Asked) -> None:
    targets = Targets(asked).of("made-by-the-sink")
    assert {target.broker for target in targets} == {"broker-a"}
    assert [target.queue_id for target in targets] == list(range(len(targets)))


def test_a_topic_of_which_a_name_server_does_not_know_yet_keeps_its_queues(
    rocketmq_session: Cluster,
) -> None:
    """Brokers register in their own time with a name server that has just started."""
    rocketmq_session.admin.create_topic("there-all-along", queues=7)
    looks = counting(1)

    class Forgetful(Asked):
        """A name server that knows the topic only after the second question about it."""

        def route(self, topic: str) -> Route | None:
            knows = topic == "TBW102" or next(looks) > 2
            return super().route(topic) if knows else None

    targets = Targets(Forgetful([rocketmq_session.nameserver], SETTINGS)).of("there-all-along")
    assert [target.queue_id for target in targets] == list(range(7))
    assert next(looks) > 3


def test_a_name_that_no_topic_has_is_refused_without_a_way_that_leads_nowhere(asked: Asked) -> None:
    with pytest.raises(RefusedError, match="illegal characters") as caught:
        Targets(asked).of("no topic!")
    assert "cometmq topic create" not in str(caught.value)


@pytest.mark.parametrize("template_queues", [{}, {"b": 8}])
def test_a_topic_whose_brokers_let_nobody_write_is_not_waited_for(
    template_queues: dict[str, int],
) -> None:
    """Whether this shows before the topic is created, or only afterwards."""
    address = {"b": "127.0.0.1:1"}
    routes = [None, None, Route(address, {"b": 8}, template_queues), Route(address, {"b": 4})]

    class Scripted(Asked):
        """The answers of a cluster whose brokers allow only reading."""

        def route(self, topic: str) -> Route | None:
            assert topic in ("TBW102", "T")
            return routes.pop(0)

        def brokers(self) -> Brokers:
            return Brokers(frozenset("b"), frozenset(address.values()))

        def ask(self, address: str, code: int, fields: Mapping[str, str]) -> wire.Answer:
            assert (address, fields["topic"]) == ("127.0.0.1:1", "T")
            return wire.Answer(
                0, 0 if code == RequestCode.UPDATE_AND_CREATE_TOPIC else 17, "", {}, b""
            )

    with pytest.raises(OptionError, match="brokers allows writing"):
        Targets(Scripted(["127.0.0.1:1"], wire.Settings()), retries=5).of("T")


@pytest.mark.parametrize("others", [(), ("here",)])
def test_a_cluster_is_there_when_one_of_its_brokers_answers(
    rocketmq_session: Cluster, monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...]
) -> None:
    """For two minutes, a name server still names brokers that are gone."""
    asked = Asked([rocketmq_session.nameserver], SETTINGS)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = f":{gone.getsockname()[1]}"
    # One is asked last, and the other often first.
    away = {f"{host}{nobody}" for host in ("127.0.0.1", "localhost")}
    addresses = {*away, *(rocketmq_session.broker for _ in others)}
    asked.require()
    monkeypatch.setattr(asked, "brokers", lambda: Brokers(frozenset("ab"), frozenset(addresses)))
    with nullcontext() if others else pytest.raises(ConnectionLostError, match=nobody):
        asked.require()
    monkeypatch.setattr(asked, "brokers", lambda: Brokers(frozenset(), frozenset()))
    with pytest.raises(ConnectionLostError, match="no broker has registered"):
        asked.require()


def test_nameservers_are_read_and_refused() -> None:
    assert read_nameservers("a:1; b:2,[::1]:3") == ("a:1", "b:2", "[::1]:3")
    with pytest.raises(OptionError, match="must not be empty"):
        read_nameservers(" ;")


def test_the_numbers_are_those_of_the_protocol() -> None:
    from cometmq.pipeline import cluster, lanes, measuring, stored, targets

    codes = {each.name: int(each) for each in (*RequestCode, *ResponseCode)}
    for module in (cluster, fetching, lanes, measuring, stored, targets):
        said = {k: v for k, v in vars(module).items() if k in codes}
        assert said
        assert said == {name: codes[name] for name in said}
    assert wire._VERSION == CURRENT_VERSION  # pyright: ignore[reportPrivateUsage]  # To compare.
