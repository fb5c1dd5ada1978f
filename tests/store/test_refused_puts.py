"""A put that is refused leaves the turn as it was, even at the end of a segment.

There a put moves to the next segment. If it is refused after that, the turn must not end where the
segment does: the messages before the put would be acknowledged, but never written.
"""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import pytest
from tests.crash.disk import Operation, SimulatedFileSystem
from tests.store.held_stores import BATCH_QUEUE, BATCHES, CONFIG, SIMPLE_QUEUE, Held, hole
from tests.store.records import HOST, messages_in

from cometmq.proto.sysflag import SysFlag
from cometmq.store.errors import (
    CorruptionError,
    MessageIllegalError,
    StoreFormatError,
    StoreNotWriteableError,
)
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK: Final = b"UNIQ_KEY\x010123\x02TAGS\x01TagA\x02"
WITH_NUL: Final = b"a\x01zero\0\x02"
BODY: Final = b"y" * 300
"""More than the segment has room for."""
ROOM: Final = 250
NO_NUMBER: Final = 1 << 40
ORIGIN: Final = Origin(9000, 9000, HOST)
INNER: Final = Origin(9000, 9000, HOST, int(SysFlag.INNER_BATCH))


Refused: TypeAlias = "tuple[type[Exception], Callable[[MessageStore], object]]"
"""What a refused put raises, and that put."""

REFUSED: Final[dict[str, Refused]] = {
    "to a damaged queue": (CorruptionError, lambda s: s.put("T", 0, BODY, b"", ORIGIN)),
    "with a unique id, to a damaged queue": (
        CorruptionError,
        lambda s: s.put("T", 0, BODY, QUICK, ORIGIN),
    ),
    "to a damaged queue of batches": (
        CorruptionError,
        lambda s: s.put(BATCHES, 0, BODY, b"", ORIGIN),
    ),
    "of a batch that stays one, to a damaged queue": (
        CorruptionError,
        lambda s: s.put(BATCHES, 0, BODY, b"INNER_NUM\x013\x02", INNER),
    ),
    "of a batch to a damaged queue": (
        CorruptionError,
        lambda s: s.put_batch("T", 0, [(0, BODY, QUICK)] * 3, ORIGIN),
    ),
    "of an odd batch to a damaged queue": (
        CorruptionError,
        lambda s: s.put_batch("T", 0, [(0, BODY, WITH_NUL)] * 3, ORIGIN),
    ),
    "of a batch to a topic of batches": (
        MessageIllegalError,
        lambda s: s.put_batch(BATCHES, 0, [(0, BODY, b"")], ORIGIN),
    ),
    "of messages as a batch in one record": (
        MessageIllegalError,
        lambda s: s.put_batch("Other", 0, [(0, BODY, b"")], INNER),
    ),
    "a record longer than a file of the log": (
        MessageIllegalError,
        lambda s: s.put("Other", 0, bytes(CONFIG.segment_size), b"", ORIGIN),
    ),
    "a flag that fits no record": (
        MessageIllegalError,
        lambda s: s.put("Other", 0, BODY, b"", ORIGIN, NO_NUMBER),
    ),
    "a flag that fits no record, with a checksum": (
        MessageIllegalError,
        lambda s: s.put("Fresh", 0, BODY, WITH_NUL, ORIGIN, NO_NUMBER),
    ),
    "a flag that fits no record, of a batch that stays one": (
        MessageIllegalError,
        lambda s: s.put(BATCHES, 1, BODY, b"INNER_NUM\x013\x02", INNER, NO_NUMBER),
    ),
    "a flag that fits no record, of the half of a transaction": (
        MessageIllegalError,
        lambda s: s.put("Other", 0, BODY, b"", Origin(1, 1, HOST, 4), NO_NUMBER),
    ),
    "a time that fits no record": (
        MessageIllegalError,
        lambda s: s.put("Other", 0, BODY, b"", Origin(1, 1 << 80, HOST)),
    ),
    "a host that is none": (
        MessageIllegalError,
        lambda s: s.put("Other", 0, BODY, b"", Origin(1, 1, b"abc")),
    ),
    "a host that is none, of a batch": (
        MessageIllegalError,
        lambda s: s.put_batch("Other", 0, [(0, BODY, b"")], Origin(1, 1, b"abc")),
    ),
    "a queue id that fits no record": (
        MessageIllegalError,
        lambda s: s.put("Other", NO_NUMBER, BODY, b"", ORIGIN),
    ),
    "a flag in the middle of a batch": (
        MessageIllegalError,
        lambda s: s.put_batch("Other", 0, [(0, BODY, QUICK), (NO_NUMBER, BODY, QUICK)], ORIGIN),
    ),
    "a flag in the middle of an odd batch": (
        MessageIllegalError,
        lambda s: s.put_batch("Other", 0, [(0, b"", WITH_NUL), (NO_NUMBER, BODY, b"")], ORIGIN),
    ),
    "what is no body, whatever that raises": (
        TypeError,
        lambda s: s.put("Other", 0, cast("bytes", "y" * 300), b"", ORIGIN),
    ),
}


def near_the_end() -> Held:
    """A store with two damaged queues, whose last segment has little room left."""
    held = Held()
    held.stop(clean=True)
    hole(held, SIMPLE_QUEUE, 20)
    hole(held, BATCH_QUEUE, 46)
    store = held.opened()
    room = CONFIG.segment_size - store.end_offset % CONFIG.segment_size
    record_size = held.store.put("Other", 0, b"", b"", ORIGIN).size
    store.take_back()
    held.put(bytes(room - record_size - 8 - ROOM), "Other")
    return held


def check(held: Held, acknowledged: dict[int, bytes]) -> None:
    """Check that all acknowledged messages of `Other` can be read, and that the log has no gap."""
    store = held.store
    begin, end = min(acknowledged), max(acknowledged) + 1
    assert store.max_offset("Other", 0) == end
    found: dict[int, bytes] = {}
    while begin < end:
        result = store.read("Other", 0, begin, 32)
        found |= {each.queue_offset: each.body for each in messages_in(result.slices)}
        begin = result.next_begin_offset
    assert found == acknowledged
    scan = LogScan(store.segments, store.first_offset)
    for _ in scan:
        pass
    assert (scan.problem, scan.end_offset) == (None, store.end_offset)


def commit(held: Held) -> int:
    end = held.store.commit()
    held.store.run_jobs()
    assert held.store.advance() == end
    return end


@pytest.mark.parametrize("ends", ["killed", "without power"])
@pytest.mark.parametrize("behind", [False, True], ids=["as the last one", "in the middle"])
@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_the_others_of_its_turn_are_there(refused: Refused, behind: bool, ends: str) -> None:
    error, refused_put = refused
    held = near_the_end()
    acknowledged: dict[int, bytes] = {}

    def put(body: bytes) -> None:
        acknowledged[held.store.put("Other", 0, body, QUICK, ORIGIN).queue_offset] = body

    put(b"in front")
    before = held.store.pending_size
    for _ in range(2):
        with pytest.raises(error):
            refused_put(held.store)
    assert held.store.pending_size == before
    if behind:
        put(b"small, behind")
        put(b"z" * 300)
    commit(held)
    check(held, acknowledged)
    held.disk = held.disk.kill() if ends == "killed" else held.disk.power_cut(Random(7))
    held.opened()
    check(held, acknowledged)
    put(b"after the start")
    commit(held)
    check(held, acknowledged)


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_turn_of_nothing_else_is_empty(refused: Refused) -> None:
    error, refused_put = refused
    held = near_the_end()
    end = held.store.end_offset
    with pytest.raises(error):
        refused_put(held.store)
    assert commit(held) == end
    acknowledged = {held.put(b"small", "Other"): b"small"}
    assert held.store.end_offset < end + ROOM, "it still fits the segment"
    check(held, acknowledged)
    held.disk = held.disk.kill()
    held.opened()
    check(held, acknowledged)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a refused put"])
def test_a_segment_that_the_disk_has_no_room_for_loses_nothing_in_front_of_it(beside: bool) -> None:
    held = near_the_end()
    acknowledged = {held.put(b"in front", "Other"): b"in front"}

    def full(operation: Operation) -> None:
        if operation.verb == "allocate":
            raise OSError(errno.ENOSPC, "full")

    for segments in (2, 3):  # The first one was made ahead.
        held.store.put("Other", 0, b"with it", QUICK, ORIGIN)
        for _ in range(segments):
            held.store.put("Other", 0, bytes(5000), QUICK, ORIGIN)
            if beside:
                with pytest.raises(CorruptionError):
                    held.store.put("T", 0, bytes(5000), b"", ORIGIN)
        held.disk.hook = full
        with pytest.raises(StoreNotWriteableError):
            held.store.commit()
        held.disk.hook = None
        assert held.store.pending_size == 0
        check(held, acknowledged)
    acknowledged |= {held.put(body, "Other"): body for body in (b"small", BODY, b"behind")}
    check(held, acknowledged)
    held.disk = held.disk.power_cut(Random(7))
    held.opened()
    check(held, acknowledged)


def test_a_queue_id_that_a_start_would_refuse_is_refused() -> None:
    disk = SimulatedFileSystem()
    store = MessageStore.open("/s", CONFIG, now_ms=1, filesystem=disk, threads=False)
    half = Origin(9000, 9000, HOST, int(SysFlag.TRANSACTION_PREPARED))
    puts: list[Callable[[], object]] = [
        lambda: store.put("T", -1, b"x", b"", ORIGIN),
        lambda: store.put("T", -1, b"x", b"", half),
        lambda: store.put_batch("T", -1, [(0, b"x", b"")], ORIGIN),
    ]
    for put in puts:
        with pytest.raises(MessageIllegalError, match="T: no queue has the id -1"):
            put()
    store.commit()
    assert store.end_offset == 0
    assert store.close(9001)


class CaseBlindDisk(SimulatedFileSystem):
    """A disk that takes `A` for `a` in names, as far as these tests ask."""

    def exists(self, path: str) -> bool:
        return super().exists(path.lower())


def test_where_the_disk_takes_two_topics_for_one_folder_only_the_first_is_taken() -> None:
    """Otherwise their queues would share files, and consumers of one get the other's messages."""
    store = MessageStore.open("/s", CONFIG, now_ms=1, filesystem=CaseBlindDisk(), threads=False)
    store.put("orders", 0, b"x", b"", ORIGIN)
    for put in (
        lambda: store.put("Orders", 0, b"x", b"", ORIGIN),
        lambda: store.put("Orders", 0, b"x", QUICK, ORIGIN),
        lambda: store.put_batch("ORDERS", 1, [(0, b"x", b"")], ORIGIN),
    ):
        with pytest.raises(StoreFormatError, match="for that of topic orders: use a topic"):
            put()
    store.put("orders", 1, b"x", b"", ORIGIN)
    store.put("others", 0, b"x", b"", ORIGIN)
    store.delete_topics(["orders"] if store.commit() else [])
    store.put("Orders", 0, b"x", b"", ORIGIN)
    store.commit()
    assert store.close(9001)
    store = MessageStore.open(
        "/s", CONFIG, now_ms=1, filesystem=SimulatedFileSystem(), threads=False
    )
    for topic in ("orders", "Orders"):
        store.put(topic, 0, b"x", b"", ORIGIN)
