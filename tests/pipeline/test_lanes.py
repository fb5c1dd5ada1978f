"""What a task sends to a broker whose answers are scripted."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread

import pyarrow as pa
import pytest

from cometmq.pipeline import sending
from cometmq.pipeline.errors import BusyError, ConnectionLostError, RefusedError, SinkError
from cometmq.pipeline.lanes import (
    SEND_BATCH_MESSAGE,
    SEND_BATCH_ONCE,
    SEND_MESSAGE_V2,
    Lane,
    Request,
    Sending,
    require_cometmq,
)
from cometmq.pipeline.messages import Forming
from cometmq.pipeline.rows import RowForm
from cometmq.pipeline.sending import Sender
from cometmq.pipeline.targets import GET_BROKER_CONFIG, Target, Targets
from cometmq.pipeline.wire import Answer, Settings, Wire, connect
from cometmq.proto.command import Command
from cometmq.proto.commands.send import SendMessageV2
from cometmq.proto.connection import Connection
from cometmq.proto.properties import decode_properties
from cometmq.testing import Cluster as Running

FAILED = 1
BUSY = 2
ILLEGAL = 13
NO_PERMISSION = 16
COORDINATES = ("source_topic", "source_broker", "source_queue_id", "source_offset")


class Broker:
    """Answers each request with the code of `code_of`, once `held` of them wait for an answer."""

    def __init__(self, code_of: Callable[[int], int], held: int) -> None:
        self._code_of, self._held = code_of, held
        self.asked = 0
        self.requests: list[Command] = []
        self.remark = ""
        self.unheard = 0
        """How many connections it closes first without reading anything."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        while self.unheard:
            self.unheard -= 1
            peer.close()
            peer, _ = self._listener.accept()
        connection, waiting = Connection(), list[Command]()
        with peer, suppress(ConnectionError):  # Of a client that leaves answers unread.
            while data := peer.recv(1 << 16):
                connection.receive_data(data)
                waiting += [each for each in connection.events() if isinstance(each, Command)]
                if len(waiting) >= self._held:
                    answers = [self._answer(each) for each in waiting]
                    peer.sendall(b"".join(b"".join(connection.send(each)) for each in answers))
                    waiting, self._held = [], 1

    def _answer(self, request: Command) -> Command:
        self.asked += 1
        self.requests.append(request)
        return request.answer(self._code_of(self.asked), remark=self.remark)

    def join(self) -> None:
        """Wait until the client has gone."""
        self._thread.join()
        self._listener.close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr("cometmq.pipeline.retrying.time.sleep", taken.append)
    return taken


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[int], int], int], Broker]]:
    brokers: list[Broker] = []

    def begin(code_of: Callable[[int], int], held: int) -> Broker:
        brokers.append(Broker(code_of, held))
        return brokers[-1]

    yield begin
    for each in brokers:
        each.unheard = 0
        connect(each.address, Settings()).close()  # The one kept for the next task.
        each.join()


def lane_to(broker: Broker) -> Lane:
    return Lane(broker.address, Sending(Settings(), retries=3))


def send(lane: Lane, count: int) -> None:
    for number in range(count):
        lane.submit(Request(SEND_MESSAGE_V2, "T", 0, "", 0, b"%d" % number))
    lane.finish()


def test_requests_that_a_busy_broker_refuses_together_are_one_failure(
    start: Callable[[Callable[[int], int], int], Broker], pauses: list[float]
) -> None:
    broker = start(lambda asked: BUSY if asked <= 20 else 0, 20)
    lane = lane_to(broker)
    send(lane, 20)
    assert pauses == [0.2]
    assert broker.asked == 40
    lane.close()


def test_a_broker_that_stays_busy_is_given_up(
    start: Callable[[Callable[[int], int], int], Broker], pauses: list[float]
) -> None:
    lane = lane_to(start(lambda _asked: BUSY, 20))
    with pytest.raises(BusyError, match="2"):
        send(lane, 20)
    assert pauses == [0.2, 0.4, 0.8]
    lane.close()


@pytest.mark.parametrize("answered", [FAILED, NO_PERMISSION])
@pytest.mark.parametrize("code", [SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, SEND_BATCH_ONCE])
def test_what_is_refused_for_good_is_told_and_does_not_count_as_stored(
    start: Callable[[Callable[[int], int], int], Broker],
    pauses: list[float],
    code: int,
    answered: int,
) -> None:
    """Such as sends to a topic that became unwritable after the task began."""
    broker = start(lambda _asked: answered, 1)
    lane = lane_to(broker)
    try:
        lane.submit(Request(code, "T", 0, "", 0, b"x"))
        with pytest.raises(RefusedError, match=f"refused with code {answered}:"):
            lane.finish()
    finally:
        lane.close()
    assert (broker.asked, pauses) == (1, [])


def test_a_broker_that_was_busy_for_long_may_be_so_again(
    start: Callable[[Callable[[int], int], int], Broker], pauses: list[float]
) -> None:
    broker = start(lambda asked: 0 if asked % 4 == 0 else BUSY, 1)
    lane = lane_to(broker)
    for _ in range(5):
        send(lane, 1)
    assert pauses == [0.2, 0.4, 0.8] * 5
    lane.close()


def test_in_order_a_queue_has_one_request_and_a_busy_broker_takes_no_later_one_first(
    start: Callable[[Callable[[int], int], int], Broker], pauses: list[float]
) -> None:
    """With two under way, it would refuse the first and take the second."""
    broker = start(lambda asked: BUSY if asked == 1 else 0, 2)
    lane = Lane(broker.address, Sending(Settings(), retries=3, in_order=True))
    for queue, body in ((0, b"a"), (1, b"x"), (0, b"b"), (0, b"c"), (1, b"y")):
        lane.submit(Request(SEND_MESSAGE_V2, "T", queue, "", 0, body))
    lane.finish()
    lane.close()
    bodies = {0: b"", 1: b""}
    for each in broker.requests[1:]:
        bodies[each.read(SendMessageV2).queue_id] += bytes(each.body or b"")
    assert bodies == {0: b"abc", 1: b"xy"}
    assert pauses == [0.2]


@pytest.mark.parametrize(
    ("code", "size", "max_in_flight", "most"),
    [
        (SEND_MESSAGE_V2, 1, 0, 512),
        (SEND_MESSAGE_V2, 1 << 16, 0, 4),
        (SEND_BATCH_MESSAGE, 1, 0, 4),
        (SEND_BATCH_ONCE, 1, 6, 6),
        (SEND_MESSAGE_V2, 1, 6, 6),
    ],
)
def test_as_many_requests_are_in_flight_as_may_be_and_no_more(
    start: Callable[[Callable[[int], int], int], Broker],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    size: int,
    max_in_flight: int,
    most: int,
) -> None:
    """More than four large ones would fill the memory."""
    receive = Wire.receive

    def counted(peer: Wire) -> Answer:
        return receive(peer)._replace(fields={"count": "1", "storedCount": "1"})

    monkeypatch.setattr(Wire, "receive", counted)
    broker = start(lambda _asked: 0, 1)
    lane = Lane(broker.address, Sending(Settings(), max_in_flight=max_in_flight))
    in_flight: list[int] = []
    for _ in range(most + 16):
        lane.submit(Request(code, "T", 0, "", 0, bytes(size)))
        in_flight.append(len(lane._under_way))  # pyright: ignore[reportPrivateUsage]  # What it takes.
    lane.finish()
    lane.close()
    assert max(in_flight) == most
    assert broker.asked == most + 16


def test_a_connection_with_unread_answers_is_not_left_to_the_next_task(
    start: Callable[[Callable[[int], int], int], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take them for its own."""
    kept: list[Wire] = []

    def keep(peer: Wire, _: Settings) -> None:
        kept.append(peer)

    monkeypatch.setattr("cometmq.pipeline.lanes.wire.keep", keep)
    counts: list[int] = []
    for is_answered in (False, True):
        lane = lane_to(start(lambda _asked: 0, 1))
        lane.submit(Request(SEND_MESSAGE_V2, "T", 0, "", 0, bytes(1 << 16)))  # Written at once.
        if is_answered:
            lane.finish()
        lane.close()
        lane.close()
        counts.append(len(kept))
    for each in kept:
        each.close()
    assert counts == [0, 1]


def test_a_message_that_is_stored_once_waits_for_a_busy_broker_like_others(
    start: Callable[[Callable[[int], int], int], Broker], pauses: list[float]
) -> None:
    broker = start(lambda asked: BUSY if asked == 1 else 0, 1)
    lane = lane_to(broker)
    properties = "UNIQ_KEY\x01A\x02IDEMPOTENT\x011\x02"
    lane.submit(Request(SEND_MESSAGE_V2, "T", 0, properties, 0, b"x"))
    lane.finish()
    lane.close()
    assert [each.code for each in broker.requests] == [SEND_MESSAGE_V2] * 2
    assert pauses == [0.2]


TOO_LARGE = "message body size exceeded, msg total size: 4194403"


@pytest.mark.parametrize(("code", "remark"), [(ILLEGAL, ""), (FAILED, TOO_LARGE)])
@pytest.mark.parametrize(("count", "is_advised"), [(0, False), (1, False), (2, True)])
def test_a_smaller_batch_is_advised_only_where_there_can_be_one(
    start: Callable[[Callable[[int], int], int], Broker],
    count: int,
    is_advised: bool,
    code: int,
    remark: str,
) -> None:
    broker = start(lambda _asked: code, 1)
    broker.remark = remark
    lane = lane_to(broker)
    properties = [f"UNIQ_KEY\x01{number}\x02".encode() for number in range(count)]
    body = b"".join(
        struct.pack(">IQiI", 23 + len(each), 0, 0, 1) + b"x" + struct.pack(">H", len(each)) + each
        for each in properties
    )
    try:
        lane.submit(Request(SEND_BATCH_MESSAGE if count else SEND_MESSAGE_V2, "T", 0, "", 0, body))
        with pytest.raises(SinkError, match="topic T") as caught:
            lane.finish()
    finally:
        lane.close()
    assert ("batchBytes" in str(caught.value)) == is_advised
    assert ("maxMessageSize" in str(caught.value)) != is_advised


def test_what_has_no_room_in_a_frame_is_refused_before_it_ends_the_connection(
    start: Callable[[Callable[[int], int], int], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests under way would end with the connection, and be sent again with this one."""
    broker = start(lambda _asked: 0, 1)
    lane = lane_to(broker)
    too_large = Request(SEND_MESSAGE_V2, "T", 0, "", 0, bytes((15 << 20) + 1))

    def most(*_: object) -> int:
        return len(too_large.body)

    try:
        with pytest.raises(SinkError, match=r"takes 15728641 bytes .* at most 15728640 \(maxM"):
            lane.submit(too_large)
        assert [each.code for each in broker.requests] == [GET_BROKER_CONFIG]
        send(lane, 1)
        monkeypatch.setattr("cometmq.pipeline.lanes.body_size_max", most)
        lane.submit(too_large)  # To a broker that is set to take more.
        lane.finish()
    finally:
        lane.close()


@pytest.mark.parametrize(
    ("properties", "is_timed"),
    [
        ("UNIQ_KEY\x01A\x02TIMER_DELIVER_MS\x011\x02", True),
        ("TIMER_DELIVER_MS\x011\x02", True),
        ("UNIQ_KEY\x01A\x02MY_TIMER_DELIVER_MS\x011\x02", False),
    ],
)
def test_a_refused_time_of_delivery_leads_to_delay_levels_and_not_to_sizes(
    start: Callable[[Callable[[int], int], int], Broker], properties: str, is_timed: bool
) -> None:
    broker = start(lambda _asked: ILLEGAL, 1)
    broker.remark = "not at a given time"
    lane = lane_to(broker)
    try:
        lane.submit(Request(SEND_MESSAGE_V2, "T", 0, properties, 0, b"x"))
        with pytest.raises(SinkError, match=r"topic T.*not at a given time") as caught:
            lane.finish()
    finally:
        lane.close()
    assert ("write a delay_level" in str(caught.value)) == is_timed
    assert ("maxMessageSize" in str(caught.value)) != is_timed


class OneQueue(Targets):
    """Targets of a broker whose topics have one queue."""

    def __init__(self, address: str) -> None:
        self._one = Target("b", address, 3)

    def of(self, topic: str) -> tuple[Target, ...]:
        """Return the one queue."""
        assert topic == "T"
        return (self._one,)


def test_a_message_that_fills_more_than_a_batch_travels_as_one_and_not_as_a_batch(
    start: Callable[[Callable[[int], int], int], Broker],
) -> None:
    """Apache's brokers refuse it as a batch, although they have room for its body."""
    broker = start(lambda _asked: 0, 1)
    names = ("body", "tag", "properties", "flag")
    bodies = [b"small", b"x" * 1000, b"also small"]
    columns: list[pa.Array] = [
        pa.array(bodies),
        pa.array(["a", "b", "c"]),
        pa.array([[("n", "1")]] * 3, pa.map_(pa.string(), pa.string())),
        pa.array([1, -2, 3], pa.int32()),
    ]
    batch = pa.record_batch(columns, names=list(names))
    messages = Forming(RowForm(names, "T", "", (), ""), "sink").messages(batch)
    sender = Sender(OneQueue(broker.address), Sending(Settings(), batch_bytes=1000))
    try:
        sender.send(messages)
        sender.finish()
    finally:
        sender.close()
    codes = [each.code for each in broker.requests]
    assert sorted(codes) == [SEND_MESSAGE_V2, *[SEND_BATCH_MESSAGE] * (len(codes) - 1)]
    for each in broker.requests:
        assert each.read(SendMessageV2).batch == (each.code == SEND_BATCH_MESSAGE)
    alone = broker.requests[codes.index(SEND_MESSAGE_V2)].read(SendMessageV2)
    properties = decode_properties((alone.properties or "").encode())
    assert broker.requests[codes.index(SEND_MESSAGE_V2)].body == bodies[1]
    assert (alone.queue_id, alone.flag, alone.batch) == (3, -2, False)
    assert abs(alone.born_timestamp / 1000 - time.time()) < 600
    assert (properties["TAGS"], properties["n"]) == ("b", "1")
    assert len(properties["UNIQ_KEY"]) == 32


class ManyQueues(OneQueue):
    """Targets of a topic with forty queues."""

    def of(self, topic: str) -> tuple[Target, ...]:
        (one,) = super().of(topic)
        return tuple(one._replace(queue_id=number) for number in range(40))


def test_delayed_rows_that_may_go_anywhere_do_not_all_go_to_one_queue(
    start: Callable[[Callable[[int], int], int], Broker],
) -> None:
    broker, names = start(lambda _asked: 0, 1), ("body", "delay_level")
    columns: list[pa.Array] = [pa.array([b"x"] * 80), pa.array([3] * 80, pa.int32())]
    form = RowForm(names, "T", "", (), "")
    messages = Forming(form, "sink").messages(pa.record_batch(columns, names=list(names)))
    sender = Sender(ManyQueues(broker.address), Sending(Settings()))
    try:
        sender.send(messages)
        sender.finish()
    finally:
        sender.close()
    queues = [each.read(SendMessageV2).queue_id for each in broker.requests]
    assert sorted(queues) == sorted([*range(40)] * 2)


def test_what_waits_for_more_of_its_queue_does_not_fill_the_memory(
    start: Callable[[Callable[[int], int], int], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of queues, gigabytes would be held before any request is full."""
    monkeypatch.setattr(sending, "_HELD_MAX", 4_000)
    broker, names = start(lambda _asked: 0, 1), ("body", "sharding_key")
    bodies = [b"%04d" % number for number in range(1_000)]
    columns = [pa.array(bodies), pa.array([str(number) for number in range(1_000)])]
    form = RowForm(names, "T", "", (), "")
    messages = Forming(form, "sink").messages(pa.record_batch(columns, names=list(names)))
    sender = Sender(ManyQueues(broker.address), Sending(Settings()))
    try:
        sender.send(messages)
        before = len(broker.requests)
        sender.finish()
    finally:
        sender.close()
    assert 0 < before < len(broker.requests)
    sent = b"".join(each.body or b"" for each in broker.requests)
    assert all(sent.count(body + b"\0") == 1 for body in bodies)


@pytest.mark.parametrize("delay_level", [0, 3])
@pytest.mark.parametrize("is_ours", [True, False])
def test_two_rows_of_one_message_are_refused_where_one_of_them_would_be_stored(
    start: Callable[[Callable[[int], int], int], Broker],
    monkeypatch: pytest.MonkeyPatch,
    is_ours: bool,
    delay_level: int,
) -> None:
    """Apache's brokers store whatever they are sent."""
    monkeypatch.setattr(Lane, "speaks_cometmq", is_ours)
    broker, names = start(lambda _asked: 0, 1), ("body", *COORDINATES, "delay_level")
    columns: list[pa.Array] = [
        pa.array([b"one", b"other"]),
        pa.array(["S"] * 2),
        pa.array(["a"] * 2),
        pa.array([0] * 2, pa.int32()),
        pa.array([7] * 2, pa.int64()),
        pa.array([delay_level] * 2, pa.int32()),
    ]
    form = RowForm(names, "T", "", COORDINATES, "")
    messages = Forming(form, "sink").messages(pa.record_batch(columns, names=list(names)))
    sender = Sender(OneQueue(broker.address), Sending(Settings()))
    try:
        if is_ours:
            with pytest.raises(SinkError, match="two rows for topic T come from one message"):
                sender.send(messages)
        else:
            sender.send(messages)
            sender.finish()
            sent = b"".join(each.body or b"" for each in broker.requests)
            assert b"one" in sent
            assert b"other" in sent
    finally:
        sender.close()


def test_a_broker_of_ours_can_store_once_and_one_that_is_away_has_its_say_later(
    start: Callable[[Callable[[int], int], int], Broker],
) -> None:
    """A broker of Apache's is refused: see the tests with a live one."""
    broker = start(lambda _: 0, 1)
    require_cometmq(["127.0.0.1:1", broker.address], Settings())
    assert broker.asked == 1


def test_a_connection_that_is_made_anew_while_sends_wait_says_what_the_broker_speaks(
    rocketmq_session: Running,
) -> None:
    """Only its first answer says so. Taken for Apache's, it would store a repeated send twice."""
    rocketmq_session.admin.create_topic("anew", queues=1)
    lane = Lane(rocketmq_session.broker, Sending(Settings()))
    assert lane.speaks_cometmq
    peer = lane._connected()  # pyright: ignore[reportPrivateUsage]  # To break it.
    peer._socket.shutdown(socket.SHUT_RDWR)  # pyright: ignore[reportPrivateUsage]  # As above.
    lane.submit(Request(SEND_MESSAGE_V2, "anew", 0, "", 0, bytes(1 << 16)))  # Written at once.
    assert lane._connected() is not peer  # pyright: ignore[reportPrivateUsage]  # As above.
    assert lane.speaks_cometmq
    lane.finish()
    lane.close()
    assert len(rocketmq_session.sent("anew")) == 1


def script(patch: pytest.MonkeyPatch, codes: list[int]) -> None:
    """Let the next answers have these codes, whatever the broker does."""
    receive = Wire.receive

    def scripted(peer: Wire) -> Answer:
        return receive(peer)._replace(code=codes.pop(0))

    patch.setattr(Wire, "receive", scripted)


@pytest.fixture
def broken(rocketmq_session: Running) -> Iterator[Lane]:
    """A lane that was told to wait once, and whose connection then broke."""
    lane = Lane(rocketmq_session.broker, Sending(Settings(), retries=3))
    with pytest.MonkeyPatch.context() as patch:
        script(patch, [BUSY, 0])
        lane.submit(Request(SEND_MESSAGE_V2, "broken", 0, "", 0, b"first"))
        lane.finish()
    peer = lane._connected()  # pyright: ignore[reportPrivateUsage]  # To break it.
    peer._socket.shutdown(socket.SHUT_RDWR)  # pyright: ignore[reportPrivateUsage]  # As above.
    yield lane
    lane.close()


def test_a_broker_that_is_busy_over_the_next_connection_too_is_waited_for(
    pauses: list[float], broken: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, [BUSY, BUSY, 0])
    broken.submit(Request(SEND_MESSAGE_V2, "broken", 0, "", 0, b"next"))
    broken.finish()
    assert pauses == [0.2, 0.2, 0.4, 0.8]


def test_a_broker_that_cannot_be_reached_at_first_is_waited_for_with_what_is_under_way(
    rocketmq_session: Running, pauses: list[float], broken: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [ConnectionLostError("it is away")] * 2

    def away(address: str, how: Settings) -> Wire:
        if failures:
            raise failures.pop()
        return connect(address, how)

    monkeypatch.setattr("cometmq.pipeline.lanes.wire.connect", away)
    broken.submit(Request(SEND_MESSAGE_V2, "broken-and-away", 0, "", 0, b"next"))
    broken.finish()
    assert pauses == [0.2, 0.2, 0.4, 0.8]
    assert len(rocketmq_session.sent("broken-and-away", count=1)) == 1


def test_a_broker_that_is_away_when_a_task_begins_is_waited_for(pauses: list[float]) -> None:
    lane = Lane("127.0.0.1:1", Sending(Settings(), retries=3))
    with pytest.raises(ConnectionLostError):
        assert lane.speaks_cometmq
    assert pauses == [0.2, 0.4, 0.8]


def test_what_is_left_of_a_batch_is_asked_for_anew_where_its_connection_breaks(
    start: Callable[[Callable[[int], int], int], Broker], pauses: list[float]
) -> None:
    """The rest may be stored by now; if it were sent as it is, it would be there twice."""
    broker = start(lambda _asked: BUSY, 1)
    broker.unheard = 1
    lane = lane_to(broker)
    whole = Request(SEND_BATCH_ONCE, "T", 0, "", 0, b"the batch")
    rest = whole._replace(code=SEND_BATCH_MESSAGE, body=b"the rest", instead_of=whole)
    try:
        lane.submit(rest)
        with pytest.raises(BusyError):
            lane.finish()
    finally:
        lane.close()
    assert pauses
    assert {each.code for each in broker.requests} == {SEND_BATCH_ONCE}


@pytest.mark.parametrize("ended", [2, 4])
def test_a_broker_that_ends_connections_unheard_is_waited_for(
    start: Callable[[Callable[[int], int], int], Broker], pauses: list[float], ended: int
) -> None:
    """As a proxy before a broker that is just starting does: it accepts connections itself."""
    broker = start(lambda _asked: 0, 1)
    broker.unheard = ended
    lane = lane_to(broker)
    if ended > 3:
        with pytest.raises(ConnectionLostError):
            assert lane.speaks_cometmq
        lane.close()
        lane = lane_to(broker)  # Of another task, with no broken connection.
    assert lane.speaks_cometmq
    assert pauses == [0.2, 0.4, 0.8][:ended]
    assert broker.asked == 1
    lane.close()


@pytest.mark.parametrize("count", [1, 3])
def test_a_topic_whose_batches_are_one_record_each_is_told_with_what_to_do(
    rocketmq_session: Running, count: int
) -> None:
    rocketmq_session.admin.create_topic("whole", attributes={"queue.type": "BatchCQ"})
    form = RowForm(("body", "n"), "whole", "", (), "n")
    columns = [pa.array([b"x"] * count), pa.array(range(count))]
    batch = pa.record_batch(columns, names=list(form.columns))
    messages = Forming(form, "sink").messages(batch)
    assert messages.ids is not None
    body = b"".join(messages.items(messages.ids).to_pylist())
    lane = Lane(rocketmq_session.broker, Sending(Settings()))
    try:
        lane.submit(Request(SEND_BATCH_ONCE, "whole", 0, "", 0, body))
        with pytest.raises(SinkError, match="write to a topic of ordinary queues, or delivery="):
            lane.finish()
    finally:
        lane.close()
