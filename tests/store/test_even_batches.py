"""Batches put as a matrix, whatever they hold, are stored like their messages put one by one."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import HOST

from cometmq.proto.batch import split_batch
from cometmq.proto.errors import MessageError
from cometmq.store.config import Flush, StoreConfig
from cometmq.store.errors import MessageIllegalError, PutRefusedError
from cometmq.store.index.index_keys import NotedBatch
from cometmq.store.index.index_waiting import WaitingRecords
from cometmq.store.log.turn import AppendedBatch, Origin
from cometmq.store.message_store import MessageStore
from cometmq.store.messages.dispatch import UNIQUE_ID, TagsCodes
from cometmq.store.messages.even_batches import COUNT_MIN, even_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from cometmq.store.messages.even_batches import EvenRecords

    Put: TypeAlias = Callable[[MessageStore, bytes], AppendedBatch]

ROOT = "/s"
CONFIG = StoreConfig(
    segment_size=1 << 16,
    consume_queue_file_size=2000,
    index_slots=50,
    index_items=100,
    flush=Flush.ASYNC,
    message_size_max=1 << 15,
)
ORIGIN = Origin(7, 5, HOST)
MORE = b"MSG_REGION\x01R\x02TRACE_ON\x01true\x02"
TAGS = b"TAGS\x01TagA\x02"
ENDS = [TAGS, b"", b"TAGS\x01TagA\x02KEYS\x01a b\x02", b"KEYS\x01k\x02"]


def item(number: int, end: bytes = TAGS, body_size: int = 4, flag: int = 0) -> bytes:
    """One message of a batch."""
    body = b"%0*d" % (body_size, number)
    properties = b"UNIQ_KEY\x01%08X\x02%b" % (number, end)
    size = 22 + len(body) + len(properties)
    return b"".join(
        (
            struct.pack(">IIIiI", size, 0, 0, flag, len(body)),
            body,
            struct.pack(">H", len(properties)),
            properties,
        )
    )


def batch(
    count: int, first: int = 0, end: bytes = TAGS, body_size: int = 4, flag: int = 0
) -> bytes:
    return b"".join(item(first + number, end, body_size, flag) for number in range(count))


def opened(
    disk: SimulatedFileSystem | None = None,
    *,
    with_numpy: bool = True,
    config: StoreConfig = CONFIG,
) -> MessageStore:
    """Open a store and send it a message with each of `ENDS`."""
    disk = disk or SimulatedFileSystem()
    store = MessageStore.open(ROOT, config, now_ms=1, filesystem=disk, threads=False)
    for end in ENDS:
        put_split(store, batch(1, end=end))
    store.commit()
    if with_numpy:
        assert store.query("T", "00000000", 9, begin_ms=0, end_ms=9, now_ms=7)
    return store


def put_split(store: MessageStore, raw: bytes) -> AppendedBatch:
    return store.put_batch("T", 0, split_batch(raw, MORE), ORIGIN)


def put_raw(store: MessageStore, raw: bytes) -> AppendedBatch:
    """As a broker does."""
    return store.put_raw_batch("T", 0, raw, MORE, ORIGIN) or put_split(store, raw)


def outcome(put: Put, raws: list[bytes]) -> tuple[list[object], dict[str, bytes]]:
    """Put batches, each in a turn; return the answer to each, and all files of the store then."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    said: list[object] = []
    for raw in raws:
        try:
            said.append(put(store, raw))
        except (PutRefusedError, MessageError) as error:
            said.append(str(error))
        store.commit()
    assert store.close(9)
    files: dict[str, bytes] = {}
    for folder in ("commitlog", "consumequeue/T/0", "index"):
        for entry in disk.list(f"{ROOT}/{folder}"):
            file = disk.open(f"{ROOT}/{folder}/{entry.name}", read_only=True)
            files[f"{folder}/{entry.name}"] = file.read(entry.size, 0)
    return said, files


def even(raw: bytes, *, start: int = 0, limit: int = 1 << 20) -> EvenRecords | None:
    codes = TagsCodes()
    for end in (*ENDS, TAGS[:-1]):
        codes.code_of(UNIQUE_ID + b"id\x02" + end + MORE)
    return even_records(raw, b"\1T", MORE, codes.known, 0, 0, start, bytes(48), limit)


def is_even(raw: bytes) -> bool:
    """Whether a batch is put as a matrix."""
    try:
        return even(raw) is not None
    except struct.error:
        return False


BATCHES = st.builds(
    batch,
    st.sampled_from([1, COUNT_MIN - 1, COUNT_MIN, COUNT_MIN + 5, 60]),
    st.integers(0, 1 << 31),
    st.sampled_from(ENDS),
    st.sampled_from([0, 1, 8, 90]),
    st.integers(-5, 5),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(BATCHES, min_size=1, max_size=5))
def test_files_are_those_of_messages_that_are_put_one_by_one(raws: list[bytes]) -> None:
    assert outcome(put_raw, raws) == outcome(put_split, raws)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, len(batch(COUNT_MIN)) - 1),
    st.integers(0, 255),
    st.sampled_from(ENDS),
)
def test_whatever_byte_of_a_batch_is_another(at: int, byte: int, end: bytes) -> None:
    raw = bytearray(batch(COUNT_MIN, end=end, body_size=20))
    raw[at] = byte
    raws = [bytes(raw), batch(COUNT_MIN, 700)]
    assert outcome(put_raw, raws) == outcome(put_split, raws)


EVEN = batch(COUNT_MIN)
ITEM = len(item(0))
LAST = (COUNT_MIN - 1) * ITEM
ID = ITEM - len(TAGS) - 9


def with_byte(at: int, byte: int) -> bytes:
    return EVEN[:at] + bytes([byte]) + EVEN[at + 1 :]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (EVEN, True),
        (batch(COUNT_MIN, end=b""), True),
        (batch(COUNT_MIN, body_size=0), False),
        (batch(COUNT_MIN, flag=-7), True),
        (batch(COUNT_MIN - 1), False),
        (batch(COUNT_MIN, end=b"TAGS\x01never seen\x02"), False),
        (batch(COUNT_MIN, end=TAGS[:-1]), False),
        (EVEN + item(99, end=ENDS[2]), False),
        (EVEN[:-1], False),
        (EVEN + b"\0", False),
        (b"", False),
        (EVEN[:19], False),
        (with_byte(LAST + 15, 1), False),
        (with_byte(LAST + ID, 2), False),
        (with_byte(LAST + ID, 0), False),
        (with_byte(LAST + ID, 1), True),
        (with_byte(LAST + ID - 1, 2), False),
        (with_byte(LAST + ID + 8, ord("x")), False),
        (with_byte(len(EVEN) - 1, ord("x")), False),
        (with_byte(len(EVEN) - 3, ord("x")), False),
        (with_byte(LAST + 24, 1), False),
        (with_byte(LAST + 25, 1), False),
        (with_byte(LAST + 20, ord("x")), True),
        (with_byte(3, ITEM - 1), False),
        (with_byte(3, 0), False),
        (with_byte(19, 255), False),
    ],
)
def test_only_what_is_alike_and_known_is_put_as_a_matrix(raw: bytes, expected: bool) -> None:
    assert is_even(raw) is expected


def test_a_matrix_is_not_put_where_there_is_no_room_for_all_of_it() -> None:
    size = put_split(opened(), EVEN).size
    assert even(EVEN, start=1000, limit=1000 + size) is not None
    assert even(EVEN, start=1000, limit=1000 + size - 1) is None


def test_a_queue_id_that_no_record_can_hold_is_refused_like_any_other() -> None:
    store = opened()
    assert store.put_raw_batch("T", 1 << 31, EVEN, MORE, ORIGIN) is None
    with pytest.raises(MessageIllegalError, match="does not fit its field"):
        store.put_batch("T", 1 << 31, split_batch(EVEN, MORE), ORIGIN)


def test_until_numpy_is_loaded_batches_are_put_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(with_numpy=False)
    made: list[int] = []

    def noting(*arguments: Any) -> EvenRecords | None:
        found = even_records(*arguments)
        made.append(0 if found is None else found.record_count)
        return found

    monkeypatch.setattr("cometmq.store.messages.even_batches.even_records", noting)
    assert put_raw(store, EVEN).queue_offset == len(ENDS)
    assert not made
    assert store.query("T", "00000000", 9, begin_ms=0, end_ms=9, now_ms=7)
    assert put_raw(store, EVEN).queue_offset == len(ENDS) + COUNT_MIN
    assert made == [COUNT_MIN]


def test_without_an_index_batches_are_put_one_by_one() -> None:
    store = opened(with_numpy=False, config=replace(CONFIG, index=False))
    assert put_raw(store, EVEN).queue_offset == len(ENDS)
    store.commit()
    assert store.max_offset("T", 0) == len(ENDS) + COUNT_MIN


def test_a_batch_of_a_turn_that_is_taken_back_is_forgotten() -> None:
    store = opened()
    put_raw(store, EVEN)
    store.take_back()
    put = put_raw(store, EVEN)
    assert put.queue_offset == len(ENDS)
    appender = store._parts.appender  # pyright: ignore[reportPrivateUsage]  # It counts for queues.
    before = appender.published_count
    store.commit()
    assert appender.published_count == before + COUNT_MIN
    assert store.max_offset("T", 0) == len(ENDS) + COUNT_MIN
    found = store.query("T", f"{COUNT_MIN - 1:08X}", 9, begin_ms=0, end_ms=9, now_ms=7)
    assert found == [put.physical_offsets[-1]]


def test_what_waits_for_the_index_is_counted_and_built_by_whole_batches() -> None:
    waiting = WaitingRecords()
    one = (0, b"t", b"UNIQ_KEY\x01a\x02", 7)
    many = NotedBatch(100, b"t", b"UNIQ_KEY\x01b\x02UNIQ_KEY\x01c\x02", 7, 50, 2)
    waiting.add([one, many], 3)
    waiting.add([one, many, one], 4)
    assert (waiting.count, waiting.first_offset) == (7, 0)
    assert waiting.take(2) == [one, many]
    assert (waiting.count, waiting.first_offset) == (4, 0)
    assert waiting.take(1) == [one]
    assert (waiting.count, waiting.first_offset) == (3, 100)
    assert waiting.take(9) == [many, one]
    assert (waiting.count, waiting.first_offset, waiting.take(9)) == (0, None, [])
