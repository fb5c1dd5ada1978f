"""Stretches of records give the same as the records taken one by one."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.crash.disk import SimulatedFileSystem
from tests.store.queue_model import files_below
from tests.store.records import HOST

from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.record import encode_record
from cometmq.proto.sysflag import SysFlag
from cometmq.store.config import StoreConfig
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.deletions import Deletions
from cometmq.store.index.index import Index
from cometmq.store.log import log_stretch
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.log_stretch import find_stretch
from cometmq.store.log.segments import Segments
from cometmq.store.messages.dispatch import note_record, place_record
from cometmq.store.queues.consume_queues import ConsumeQueues
from cometmq.store.starting.replay import Replay
from cometmq.store.starting.tail_check import Succession

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.log.log_stretch import Stretch

START = 4096
"""Where the first record of a test is in the log."""

CONFIG = StoreConfig(consume_queue_file_size=2000, index_slots=50, index_items=1000)
AFTER = 3
"""How many records are read one by one here before stretches are looked for."""

ROLLED_BACK = int(SysFlag.TRANSACTION_PREPARED | SysFlag.TRANSACTION_COMMITTED)
COMMITTED = int(SysFlag.TRANSACTION_COMMITTED)
IPV6 = bytes(16) + b"\0\0\x2a\x9f"

PLAIN = b"UNIQ_KEY\x01id\x02TAGS\x01tag\x02"
PROPERTIES = [
    PLAIN,
    b"",
    b"KEYS\x01a b\x02UNIQ_KEY\x010123456789\x02",
    b"n\x011234567890\x02",
    b"zero\x01\0\x02",
    b"DELAY\x013\x02",
    b"__CRC32#\x01",
]


@pytest.fixture(autouse=True, scope="module")
def _soon() -> Iterator[None]:
    """Look for stretches soon: a thousand records per example would take too long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogScan, "stretches_after", AFTER)
        yield


def odd_record(kind: int, place: int, number: int, queue: tuple[bytes, int]) -> bytes:
    """A record of one of many kinds; kind 0 is the common one."""
    topic, queue_id = queue
    return encode_record(
        topic=topic,
        body=b"body" * kind,
        properties=PROPERTIES[kind] if kind < len(PROPERTIES) else PLAIN,
        queue_id=queue_id,
        queue_offset=number,
        physical_offset=place,
        born_timestamp=1,
        born_host=IPV6 if kind == 9 else HOST,
        store_timestamp=1000 + number,
        store_host=HOST,
        sys_flag={10: ROLLED_BACK, 12: COMMITTED}.get(kind, 0),
        record_crc=kind == 11,
    )


def lay(kinds: list[int], seed: int = 0) -> tuple[SimulatedFileSystem, Segments, list[bytes]]:
    """Return a log of such records, of a few queues, and the records."""
    random = Random(seed)
    ends: dict[tuple[bytes, int], int] = {}
    records: list[bytes] = []
    place = 0
    # If there is a batch topic, a stretch is replayed record by record.
    names = [b"T", b"T", b"U", b"SCHEDULE_TOPIC_XXXX", b"Batch" if seed % 2 else b"V"]
    for kind in kinds:
        topic = random.choice(names)
        queue = (b"T" * 200 if kind == 8 else topic, random.choice([0, 1]))
        number = ends.get(queue, 0)
        if kind != 10:
            ends[queue] = number + 1
        records.append(odd_record(kind, place, number, queue))
        place += len(records[-1])
    disk = SimulatedFileSystem()
    disk.make_directories("/s/commitlog")
    file = disk.open("/s/commitlog/" + "0" * 20, create=True)
    file.resize(1 << 20)
    file.write(b"".join(records), 0)
    file.close()
    return disk, Segments(disk, "/s/commitlog", 1 << 20), records


def raws(records: list[StoredMessage | Stretch]) -> list[bytes]:
    """Return the records one by one, whether or not they came in stretches."""
    found: list[bytes] = []
    for each in records:
        if isinstance(each, StoredMessage):
            found.append(each.raw)
        else:
            found += [each.chunk[a:b] for a, b in zip(each.starts, each.ends, strict=True)]
    return found


def admit(topic: bytes) -> bool:
    return topic in (b"T", b"U")


def stretch_of(data: bytes, *, is_verified: bool = False) -> int:
    """Return how many records a stretch at the beginning of the data has."""
    found = find_stretch(data, 0, len(data), START, admit, is_verified=is_verified, count_max=99)
    return 0 if found is None else len(found.starts)


def common(count: int) -> list[bytes]:
    records: list[bytes] = []
    for number in range(count):
        place = START + sum(map(len, records))
        records.append(odd_record(0, place, number, (b"T", 1)))
    return records


def test_a_stretch_has_the_columns_of_its_records() -> None:
    records = common(5)
    data = b"x" * 7 + b"".join(records) + b"behind"
    found = find_stretch(data, 7, len(data), START, admit, is_verified=False, count_max=99)
    assert found is not None
    messages = [read_message(data, int(start)) for start in found.starts]
    assert [message.raw for message in messages] == records
    assert found.offsets.tolist() == [message.physical_offset for message in messages]
    assert found.queue_ids.tolist() == [1] * 5
    assert found.queue_offsets.tolist() == list(range(5))
    assert found.store_times.tolist() == [message.store_timestamp for message in messages]
    assert found.topics == [b"T"] * 5
    assert found.properties == [PLAIN] * 5
    assert found.size == sum(map(len, records))


def test_a_stretch_has_at_most_as_many_records_as_were_asked_for() -> None:
    data = b"".join(common(9))
    for count_max in (1, 4, 9):
        found = find_stretch(
            data, 0, len(data), START, admit, is_verified=False, count_max=count_max
        )
        assert found is not None
        assert len(found.starts) == count_max


@pytest.mark.parametrize("between", [5, 20, 40, 300])
def test_records_that_are_not_common_do_not_have_others_looked_at_again(
    between: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, segments, records = lay([*[0] * AFTER, *[*[0] * between, 10] * (2000 // between)])
    looked_at = 0
    chain = vars(log_stretch)["_chain"]

    def counting(*arguments: Any) -> Any:
        nonlocal looked_at
        found = chain(*arguments)
        looked_at += len(found[0])
        return found

    monkeypatch.setattr(log_stretch, "_chain", counting)
    found = list(LogScan(segments, 0).stretches())
    assert raws(found) == records
    assert looked_at < 3 * len(records)
    if between >= 20:
        alone = sum(isinstance(each, StoredMessage) for each in found)
        assert alone < 3 * 2000 // between + 100


def test_every_flipped_byte_ends_a_stretch_where_a_scan_ends_too() -> None:
    records = common(3)
    data = b"".join(records)
    for at in range(len(records[0]), len(data) - len(records[2])):
        for flip in (0xFF, 0x01, 0x80):
            damaged = bytearray(data)
            damaged[at] ^= flip
            disk = SimulatedFileSystem()
            disk.make_directories("/s/commitlog")
            file = disk.open(f"/s/commitlog/{0:020d}", create=True)
            file.resize(2 * START)
            file.write(damaged, START)
            file.close()
            scan = LogScan(Segments(disk, "/s/commitlog", 2 * START), START)
            assert stretch_of(bytes(damaged)) <= len(list(scan))


def test_a_stretch_ends_before_the_limit_whatever_the_sizes_say() -> None:
    data = b"".join(common(4))
    for limit in range(len(data) + 1):
        found = find_stretch(data, 0, limit, START, admit, is_verified=False, count_max=99)
        assert found is None or found.ends[-1] <= limit
    for size in (0, -1, 90, 1 << 30):
        assert stretch_of(size.to_bytes(4, "big", signed=True) + data[4:]) == 0
    assert stretch_of(b"") == 0


@pytest.mark.parametrize("kind", range(13))
def test_what_is_not_common_is_left_to_the_scan(kind: int) -> None:
    before = common(2)
    place = START + sum(map(len, before))
    data = b"".join([*before, odd_record(kind, place, 2, (b"T" * (200 if kind == 8 else 1), 1))])
    assert stretch_of(data) == (3 if kind in (0, 1, 5, 7, 12) else 2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 12), max_size=60),
    st.integers(0, 1 << 16),
    st.booleans(),
    st.integers(0, 60),
)
def test_a_scan_in_stretches_finds_what_a_scan_finds(
    odd: list[int], seed: int, is_verified: bool, damaged: int
) -> None:
    kinds = [*[0] * AFTER, *[k for each in odd for k in (each, *[0] * (seed % 70))]]
    _, segments, records = lay(kinds, seed)
    if damaged and not is_verified:
        place = sum(map(len, records[: AFTER + damaged])) + 89
        file = segments.file(next(iter(segments)))
        file.write(bytes([file.read(1, place)[0] ^ 1]), place)
    plain = LogScan(segments, 0, is_verified=is_verified)
    expected = [message.raw for message in plain]
    quick = LogScan(segments, 0, is_verified=is_verified)
    assert raws(list(quick.stretches())) == expected
    assert (quick.end_offset, quick.problem) == (plain.end_offset, plain.problem)


IS_BATCH = frozenset(["Batch"]).__contains__
LEVELS = DelayLevels.always(CONFIG.delay_levels_ms)


class Empty:
    """Empty queues and an empty index, and a replay that fills them."""

    def __init__(self, disk: SimulatedFileSystem) -> None:
        self.disk = disk
        self.queues = ConsumeQueues(disk, "/s", CONFIG, clean=True)
        self.queues.expect_all(0)
        self.index = Index(disk, "/s", CONFIG, clean=True)
        deletions = Deletions(disk, "/s")
        self.replay = Replay(
            self.queues, self.index, deletions, is_batch_topic=IS_BATCH, levels=LEVELS, now_ms=1
        )

    def files(self) -> dict[str, bytes]:
        """Write and close all, and return the files."""
        assert self.index.finish(1)
        assert self.queues.write_behind(1 << 62, 1 << 30)
        self.queues.close()
        self.index.close()
        return files_below(self.disk, "/s")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 12), max_size=100), st.integers(0, 1 << 16), st.integers(0, 150))
def test_a_replay_of_stretches_makes_what_a_replay_of_records_makes(
    odd: list[int], seed: int, there: int
) -> None:
    kinds = [*[0, 12, 5, 1] * 25, *[7 if k == 6 else k for k in odd]]
    made: list[dict[str, bytes]] = []
    for quickly in (False, True):
        disk, segments, records = lay(kinds, seed)
        new = Empty(disk)
        for message in list(LogScan(segments, 0))[:there]:
            place_record(new.queues, message, IS_BATCH, LEVELS)
        scan = LogScan(segments, 0)
        if quickly:
            begin = sum(map(len, records[:there]))
            middle = new.replay.run(scan.stretches(), begin, begin + 5000)
            if middle is not None:
                assert middle >= begin + 5000
                new.replay.run(LogScan(segments, middle).stretches(), middle, 1 << 62)
        else:
            for number, message in enumerate(scan):
                if number >= there:
                    place_record(new.queues, message, IS_BATCH, LEVELS)
                note_record(new.index, message)
        made.append(new.files())
    assert made[0] == made[1]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 12), max_size=60),
    st.integers(0, 1 << 16),
    st.integers(1, 100),
    st.booleans(),
)
def test_a_log_that_is_replayed_again_from_its_beginning_is_in_the_index_once(
    odd: list[int], seed: int, broken_off_at: int, in_stretches: bool
) -> None:
    """For example, a queue turns out to lack entries from before where the first replay began."""
    kinds = [*[0, 12, 5, 1] * 25, *[7 if k == 6 else k for k in odd]]
    made: list[dict[str, bytes]] = []
    for is_again in (False, True):
        disk, segments, records = lay(kinds, seed)
        new = Empty(disk)
        ends = [sum(map(len, records[:broken_off_at])), 1 << 62] if is_again else [1 << 62]
        for end in ends:
            new.queues.expect_all(0)
            scan = LogScan(segments, 0)
            new.replay.run(scan.stretches() if in_stretches else scan, 0, end)
        made.append(new.files())
    assert made[0] == made[1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 12), max_size=60),
    st.integers(0, 1 << 16),
    st.lists(st.tuples(st.integers(0, 150), st.integers(0, 9)), max_size=3),
    st.integers(0, 150),
)
def test_the_first_record_out_of_order_is_the_same_in_stretches(
    odd: list[int], seed: int, wrong: list[tuple[int, int]], before: int
) -> None:
    kinds = [*[0] * 60, *odd, *[0] * 30]
    disk, segments, records = lay(kinds, seed)
    file = segments.file(next(iter(segments)))
    for number, queue_offset in wrong:
        place = sum(map(len, records[:number]))
        if number < len(records):
            file.write(queue_offset.to_bytes(8, "big"), place + 20)
    queues = ConsumeQueues(disk, "/s", CONFIG, clean=True)
    deletions = Deletions(disk, "/s")
    start = sum(map(len, records[:before]))
    found: list[int | None] = []
    for scan in (LogScan(segments, 0), LogScan(segments, 0).stretches()):
        succession = Succession(start, deletions, frozenset(["Batch"]).__contains__)
        for each in scan:
            succession.look_at(each)
        found.append(succession.first_contradiction(queues, seed % 2))
    assert found[0] == found[1]
    assert found[0] is None or found[0] >= start
