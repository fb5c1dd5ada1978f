"""A task does not send what an earlier run stored, even if the broker has forgotten who sent it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow", reason="the extra cometmq[spark] is not installed")

import numpy as np
import pyarrow as pa

from cometmq.pipeline import lanes, stored, wire
from cometmq.pipeline.cluster import Cluster as Asked
from cometmq.pipeline.errors import ConnectionLostError, RefusedError, SinkError
from cometmq.pipeline.identities import spread_of
from cometmq.pipeline.lanes import Request, Sending
from cometmq.pipeline.marks import sent_twice
from cometmq.pipeline.messages import Forming
from cometmq.pipeline.planning import STRETCH
from cometmq.pipeline.rows import RowForm
from cometmq.pipeline.sending import Sender, Sent
from cometmq.pipeline.stored import FIND_UNIQUE_KEYS, Stored
from cometmq.pipeline.targets import Targets
from cometmq.pipeline.wire import Answer, Settings, Wire
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

pytestmark = pytest.mark.spark

COORDINATES = ("source_topic", "source_broker", "source_queue_id", "source_offset")
REMEMBERED = 100
SETTINGS = Settings(timeout=5.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A broker that remembers the senders of few messages."""
    with Cluster(idempotent_messages_max=REMEMBERED) as found:
        yield found
    for peer in wire._kept.values():  # pyright: ignore[reportPrivateUsage]  # Else they leak.
        peer.close()
    wire._kept.clear()  # pyright: ignore[reportPrivateUsage]  # As above.


def send(
    cluster: Cluster,
    topic: str,
    offsets: Iterable[int],
    *,
    sink: str = "sink",
    shards: int = 0,
    chosen: set[int] | None = None,
    stored_ms: int = 0,
    untimed: Collection[int] = (),
    delay_level: int = 0,
) -> Sent:
    """Send messages of one queue as a task does; if given, only those of the `chosen` shards.

    With `stored_ms`, they have store times, except for some.
    """
    rows = [(each, each % shards if shards else 0) for each in offsets]
    rows = [(offset, shard) for offset, shard in rows if chosen is None or shard in chosen]
    arrays = {
        "body": pa.array([b"%d" % offset for offset, _ in rows]),
        "source_topic": pa.array(["S"] * len(rows)),
        "source_broker": pa.array(["b"] * len(rows)),
        "source_queue_id": pa.array([0] * len(rows), pa.int32()),
        "source_offset": pa.array([offset for offset, _ in rows], pa.int64()),
    }
    if stored_ms:
        times = [None if offset in untimed else (stored_ms + offset) * 1000 for offset, _ in rows]
        arrays["store_time"] = pa.array(times, pa.timestamp("us", "UTC"))
    if shards:
        arrays["sharding_key"] = pa.array([f"key-{shard}" for _, shard in rows])
    if delay_level:
        arrays["delay_level"] = pa.array([delay_level] * len(rows), pa.int32())
    return send_rows(cluster, RowForm(tuple(arrays), topic, "", COORDINATES, ""), sink, arrays)


def send_rows(cluster: Cluster, form: RowForm, sink: str, arrays: dict[str, pa.Array]) -> Sent:
    """Send rows as one task does."""
    batch = pa.record_batch(list(arrays.values()), names=list(arrays))
    sender = Sender(Targets(Asked([cluster.nameserver], SETTINGS)), Sending(SETTINGS))
    try:
        sender.send(Forming(form, sink).messages(batch))
        return sender.finish()
    finally:
        sender.close()


def forget(cluster: Cluster) -> None:
    """Make the broker forget who sent what, as it does after 15 minutes."""
    for offset in (0, STRETCH):
        send(cluster, "others", range(offset, offset + REMEMBERED), sink=token_hex())


def counts(cluster: Cluster, topic: str) -> Counter[int]:
    """Return how often each body is there."""
    return Counter(int(each.body) for each in cluster.sent(topic))


def test_a_broker_that_forgot_and_is_not_asked_stores_a_message_twice(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the other tests would prove nothing."""

    def nothing(*_: object) -> dict[str, int]:
        return {}

    monkeypatch.setattr(Stored, "find", nothing)
    for _ in range(2):
        send(cluster, "unasked", range(5))
        forget(cluster)
    assert counts(cluster, "unasked") == Counter([*range(5), *range(5)])


def test_what_was_sent_is_not_sent_again(cluster: Cluster) -> None:
    send(cluster, "all", range(300))
    forget(cluster)
    again = send(cluster, "all", range(310))
    assert (again.rows, again.again) == (310, 300)
    assert counts(cluster, "all") == Counter(range(310))


@pytest.mark.parametrize("delay_level", [0, 1])
def test_of_which_messages_rows_were_sent_is_told_also_of_delayed_ones(
    cluster: Cluster, delay_level: int
) -> None:
    topic = f"told-{delay_level}"
    tasks = [send(cluster, topic, some, delay_level=delay_level) for some in ([1, 2, 3], [3, 4])]
    assert [task.once for task in tasks] == [3, 2]
    assert sent_twice(task.marks.said() for task in tasks) == 1


def test_what_is_not_asked_for_and_a_broker_remembers_counts_as_sent_again(
    cluster: Cluster,
) -> None:
    send(cluster, "remembered", [5, 6])
    assert send(cluster, "remembered", range(10)).again == 2
    assert counts(cluster, "remembered") == Counter(range(10))


def test_what_is_not_asked_for_and_only_the_index_knows_counts_as_sent_again(
    cluster: Cluster,
) -> None:
    send(cluster, "indexed", range(5, 9))
    send(cluster, "indexed", range(200, 350))
    assert send(cluster, "indexed", range(200)).again == 4
    assert counts(cluster, "indexed") == Counter(range(350))


def test_rows_that_another_filter_chose_are_not_sent_again(cluster: Cluster) -> None:
    send(cluster, "odd", range(1, 500, 2))
    forget(cluster)
    assert send(cluster, "odd", range(500)).again == 250
    assert counts(cluster, "odd") == Counter(range(500))


def test_the_later_part_of_a_stretch_is_not_sent_again(cluster: Cluster) -> None:
    send(cluster, "later", range(200, 264))
    forget(cluster)
    assert send(cluster, "later", range(300)).again == 64
    assert counts(cluster, "later") == Counter(range(300))


def test_of_several_queues_the_last_may_have_been_first(cluster: Cluster) -> None:
    """Their batches do not fill, and are not stored, in the order of the rows."""
    cluster.admin.create_topic("sharded", queues=4)
    queues = [spread_of(b"key-%d" % shard) % 4 for shard in range(8)]
    chosen = {shard for shard in range(8) if queues[shard] != queues[0]}
    send(cluster, "sharded", range(80), shards=8, chosen=chosen)
    forget(cluster)
    assert send(cluster, "sharded", range(80), shards=8).again == 10 * len(chosen) > 0
    assert counts(cluster, "sharded") == Counter(range(80))


def test_the_first_message_of_each_stretch_is_asked_for(cluster: Cluster) -> None:
    """So many rows that the second one of the sample would be just behind the last."""
    send(cluster, "second-stretch", [STRETCH])
    forget(cluster)
    rows = range(STRETCH - 10, STRETCH + 33)
    assert send(cluster, "second-stretch", rows).again == 1
    assert counts(cluster, "second-stretch") == Counter(rows)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ids each question to the broker has."""
    found: list[int] = []
    ask = Wire.ask

    def noted(self: Wire, code: int, fields: Mapping[str, str], body: bytes = b"") -> Answer:
        if code == FIND_UNIQUE_KEYS:
            found.append(len(json.loads(body)["keys"]))
        return ask(self, code, fields, body)

    monkeypatch.setattr(Wire, "ask", noted)
    return found


@pytest.mark.parametrize(("stored_ms", "looks"), [(0, [104]), (1_700_000_000_000, [2, 104])])
def test_what_is_new_is_asked_for_a_few_times(
    cluster: Cluster, asked: list[int], stored_ms: int, looks: list[int]
) -> None:
    rows = range(STRETCH - 10, STRETCH + 3190)
    send(cluster, f"new-{stored_ms}", rows, stored_ms=stored_ms)
    assert asked == looks


@pytest.mark.parametrize("size_max", [1, 1_000, 5_000])
def test_most_requests_have_a_message_that_is_asked_for(size_max: int) -> None:
    """A busy broker may have refused the others."""
    sizes = np.random.default_rng(7).integers(1, size_max + 1, 5_000)
    asked = stored._some_of(sizes, 10_000)  # pyright: ignore[reportPrivateUsage]  # What it asks for.
    ends = np.append(asked, len(sizes))
    between = [sizes[first + 1 : end] for first, end in itertools.pairwise(ends.tolist())]
    assert asked[0] == 0
    assert max(map(len, between)) <= 43
    assert max(each.sum() for each in between) < 5_000
    assert len(asked) <= 1 + len(sizes) / 32 + sizes.sum() * 3 / 10_000


def test_what_has_a_key_of_its_own_is_not_asked_for(cluster: Cluster, asked: list[int]) -> None:
    arrays = {"body": pa.array([b"1", b"2"]), "id": pa.array(["a", "b"])}
    form = RowForm(tuple(arrays), "keyed", "", (), "id")
    assert send_rows(cluster, form, "sink", arrays).once == 2
    assert asked == []


def test_of_a_topic_that_a_broker_does_not_have_it_has_stored_nothing(cluster: Cluster) -> None:
    """As when it was deleted since the target was looked up."""
    assert Stored(Sending(SETTINGS)).find(cluster.broker, "not-there", ["A" * 44]) == {}


def test_what_a_broker_cannot_tell_by_its_memory_it_tells_by_its_index(cluster: Cluster) -> None:
    """As with a stretch whose later part is in the tail of the log that a start has read."""
    send(cluster, "untold", range(200, 350))
    again = send(cluster, "untold", range(350))
    assert again.again == 150
    assert counts(cluster, "untold") == Counter(range(350))


def test_a_broker_that_takes_fewer_keys_at_a_time_is_asked_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster, "few-keys", range(40))
    forget(cluster)
    keys_of: list[int] = []
    ask = Wire.ask

    def few(self: Wire, code: int, fields: Mapping[str, str], body: bytes = b"") -> Answer:
        answer = ask(self, code, fields, body)
        if code == FIND_UNIQUE_KEYS:
            keys_of.append(len(json.loads(body)["keys"]))
            if keys_of[-1] > 5:
                return answer._replace(code=1, body=b"")
        return answer

    monkeypatch.setattr(Wire, "ask", few)
    assert send(cluster, "few-keys", range(40)).again == 40
    assert max(keys_of) > 5 >= keys_of[-1]
    assert counts(cluster, "few-keys") == Counter(range(40))


def test_a_topic_that_may_only_be_written_is_asked_all_the_same(cluster: Cluster) -> None:
    cluster.admin.create_topic("write-only", queues=1)
    fields = {"topic": "write-only", "defaultTopic": "TBW102", "perm": "2", "order": "false"}
    fields |= {"readQueueNums": "1", "writeQueueNums": "1", "topicFilterType": "SINGLE_TAG"}
    Asked([cluster.nameserver], SETTINGS).ask(cluster.broker, 17, {**fields, "topicSysFlag": "0"})
    send(cluster, "write-only", range(20))
    forget(cluster)
    assert send(cluster, "write-only", range(20)).again == 20


def test_a_broker_that_does_not_say_fails_the_task(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking that for a no would store messages twice."""
    monkeypatch.setattr("cometmq.pipeline.stored.FIND_UNIQUE_KEYS", 31999)
    with pytest.raises(RefusedError, match="code 3"):
        send(cluster, "silent", range(5))


def test_a_broker_that_fails_at_a_single_key_fails_the_task(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Wire.ask

    def failing(self: Wire, code: int, *rest: Any) -> Answer:
        answer = ask(self, code, *rest)
        return answer._replace(code=1) if code == FIND_UNIQUE_KEYS else answer

    monkeypatch.setattr(Wire, "ask", failing)
    with pytest.raises(RefusedError, match="code 1"):
        send(cluster, "failing", range(300))


def test_a_busy_broker_is_asked_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    send(cluster, "busy", range(9))
    forget(cluster)
    asked: list[int] = []
    ask = Wire.ask

    def busy(self: Wire, code: int, *rest: Any) -> Answer:
        asked.append(code)
        answer = ask(self, code, *rest)
        return answer._replace(code=2) if asked.count(FIND_UNIQUE_KEYS) == 1 else answer

    monkeypatch.setattr(Wire, "ask", busy)
    assert send(cluster, "busy", range(9)).again == 9


def test_a_batch_is_not_lost_when_it_cannot_be_asked_what_is_stored_of_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster, "unasked-604", range(200, 350))
    failures: list[str] = []
    find = Stored.find

    def lost(self: Stored, address: str, topic: str, ids: Sequence[str]) -> dict[str, int]:
        if len(ids) == 200 and not failures:  # The batch, not the looks before it.
            failures.append(address)
            raise ConnectionLostError("it broke")
        return find(self, address, topic, ids)

    monkeypatch.setattr(Stored, "find", lost)
    send(cluster, "unasked-604", range(350))
    assert failures
    assert counts(cluster, "unasked-604") == Counter(range(350))


def test_what_it_told_is_asked_again_when_the_connection_breaks(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what was stored before the answer got lost would be stored twice."""
    send(cluster, "lost", range(200, 350))
    plain: list[Request] = []
    make, receive = lanes._frame, Wire.receive  # pyright: ignore[reportPrivateUsage]  # The seam to a broker.

    def noted(peer: Wire, request: Request, number: int) -> bytes:
        if request.instead_of is not None:
            plain.append(request)
        return make(peer, request, number)

    def lost(self: Wire) -> Answer:
        answer = receive(self)
        if len(plain) == 1:
            plain.append(plain[0])
            raise ConnectionLostError("it broke behind the answer")
        return answer

    monkeypatch.setattr(lanes, "_frame", noted)
    monkeypatch.setattr(Wire, "receive", lost)
    assert send(cluster, "lost", range(350)).again == 350
    assert len(plain) == 2
    assert counts(cluster, "lost") == Counter(range(350))


def test_a_message_of_a_topic_that_was_made_anew_is_not_taken_for_the_one_before(
    cluster: Cluster,
) -> None:
    lives = (1_700_000_000_000, 1_700_000_005_000)
    for stored_ms in lives:
        for _ in range(2):
            forget(cluster)
            send(cluster, "anew", range(50), stored_ms=stored_ms)
    assert counts(cluster, "anew") == Counter([*range(50), *range(50)])
    again = send(cluster, "anew", range(60), stored_ms=lives[1])
    assert (again.rows, again.again) == (60, 50)


def test_what_was_sent_by_rows_without_times_is_not_sent_again_by_rows_with_them(
    cluster: Cluster,
) -> None:
    send(cluster, "untimed", range(300))
    for there, count in ((300, 300), (300, 310), (310, 310)):
        forget(cluster)
        again = send(cluster, "untimed", range(count), stored_ms=1_700_000_000_000)
        assert again.again == there
    assert counts(cluster, "untimed") == Counter(range(310))


def test_what_was_sent_since_with_times_behind_others_without_is_not_sent_again(
    cluster: Cluster,
) -> None:
    """Their first message, and one of each 32, are not among these."""
    stored_ms, later = 1_700_000_000_000, range(230, 236)
    send(cluster, "since", range(100))
    send(cluster, "since", later, stored_ms=stored_ms)
    forget(cluster)
    assert send(cluster, "since", range(300), stored_ms=stored_ms).again == 100 + len(later)
    assert counts(cluster, "since") == Counter(range(300))


@pytest.mark.parametrize("untimed", [{0, 7}, range(25)])
def test_a_row_without_a_time_is_not_taken_for_a_stored_one(
    cluster: Cluster, untimed: Collection[int]
) -> None:
    topic = f"{len(untimed)}-without"
    for count, there in ((20, 0), (25, 20)):
        again = send(cluster, topic, range(count), stored_ms=1_700_000_000_000, untimed=untimed)
        assert again.again == there
        assert counts(cluster, topic) == Counter(range(count))
        forget(cluster)


def test_what_was_sent_without_times_of_another_life_of_a_topic_is_no_copy(
    cluster: Cluster,
) -> None:
    """Of a recreated topic, an earlier version sent the messages after the old topic's end."""
    send(cluster, "lives", range(300))
    send(cluster, "lives", range(300, 305))
    forget(cluster)
    now_ms = round(cluster.sent("lives", count=1)[0].stored_at.timestamp() * 1000)
    for minutes, there in ((59, 305), (61, 0), (61, 310)):
        again = send(cluster, "lives", range(310), stored_ms=now_ms + minutes * 60_000)
        assert again.again == there, minutes
        forget(cluster)


def test_a_delayed_message_that_a_broker_cannot_tell_of_is_told_by_its_index_once_it_has_come(
    cluster: Cluster,
) -> None:
    """Until then nobody knows whether it will come: to send it again would be a guess."""
    assert send(cluster, "to-come", range(300), delay_level=1).rows == 300
    assert cluster.sent("to-come") == []
    with pytest.raises(SinkError, match=r"can no longer tell .* delayed message to topic to-come"):
        send(cluster, "to-come", range(300), delay_level=1)
    cluster.clock.jump(60)
    assert len(cluster.sent("to-come", count=300)) == 300
    assert send(cluster, "to-come", range(300), delay_level=1).rows == 300
    cluster.clock.jump(60)
    assert counts(cluster, "to-come") == Counter(range(300))
