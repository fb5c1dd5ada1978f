"""Reading the log record by record: every record is checked, and a bad one is named."""

from __future__ import annotations

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import HOST, record

from cometmq.proto.record import encode_record
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.record_search import data_end, last_record_behind
from cometmq.store.log.segments import Segments

SIZE = 4096
LOG = "/s/commitlog"


@pytest.fixture
def disk() -> SimulatedFileSystem:
    disk = SimulatedFileSystem()
    disk.make_directories(LOG)
    return disk


def lay(disk: SimulatedFileSystem, *contents: bytes) -> Segments:
    """Make segments that begin with these bytes."""
    for number, content in enumerate(contents):
        file = disk.open(f"{LOG}/{number * SIZE:020d}", create=True)
        file.resize(SIZE)
        file.write(content, 0)
        file.close()
    return Segments(disk, LOG, SIZE)


def row(count: int, start: int = 0, *, record_crc: bool = False) -> tuple[bytes, list[int]]:
    """Return consecutive records, and the offset where each ends."""
    data, ends = b"", list[int]()
    for number in range(count):
        data += record(start + len(data), b"%d" % number * 20, record_crc=record_crc)
        ends.append(start + len(data))
    return data, ends


def run(segments: Segments, start: int = 0) -> tuple[int, int, str | None]:
    scan = LogScan(segments, start)
    return len(list(scan)), scan.end_offset, scan.problem


def test_a_scan_goes_over_blank_records_to_the_first_zeros(disk: SimulatedFileSystem) -> None:
    data, ends = row(3)
    data += (SIZE - len(data)).to_bytes(4, "big") + b"\xcb\xd4\x31\x94" + b"left as it was"
    more, more_ends = row(2, SIZE)
    segments = lay(disk, data, more, b"")
    assert run(segments) == (5, more_ends[-1], None)
    assert run(segments, ends[1]) == (3, more_ends[-1], None)
    assert data_end(segments, more_ends[-1]) == more_ends[-1]


def test_a_blank_record_that_does_not_end_its_segment_is_none(disk: SimulatedFileSystem) -> None:
    data, ends = row(3)
    data += (SIZE - len(data) - 1).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"
    count, end, problem = run(lay(disk, data, row(2, SIZE)[0]))
    assert (count, end) == (3, ends[-1])
    assert problem is not None


@pytest.mark.parametrize(("queue_id", "queue_offset"), [(-1, 0), (0, -1)])
def test_a_record_of_a_queue_that_can_be_none_is_not_sound(
    disk: SimulatedFileSystem, queue_id: int, queue_offset: int
) -> None:
    good = record(0)
    bad = record(len(good), queue_id=queue_id, queue_offset=queue_offset)
    problem = "its queue offset or queue id is negative"
    assert run(lay(disk, good + bad)) == (1, len(good), problem)


def test_an_empty_log_ends_where_it_begins(disk: SimulatedFileSystem) -> None:
    assert run(lay(disk)) == (0, 0, None)
    assert run(lay(disk, b"")) == (0, 0, None)


@pytest.mark.parametrize("topic", [b"\xff", b"a/b", b"..", b"a\0b"])
@pytest.mark.parametrize("record_crc", [False, True])
def test_a_record_of_a_topic_that_can_be_none_is_not_sound(
    disk: SimulatedFileSystem, topic: bytes, record_crc: bool
) -> None:
    """A topic names a folder, and is in the texts of answers."""
    good = record(0, b"good")
    bad = encode_record(
        topic=topic,
        body=b"bad",
        properties=b"",
        queue_id=0,
        queue_offset=1,
        physical_offset=len(good),
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=2,
        store_host=HOST,
        record_crc=record_crc,
    )
    segments = lay(disk, good + bad)
    assert run(segments) == (1, len(good), f"its topic {topic!r} cannot be the name of one")
    assert last_record_behind(segments, len(good), len(good + bad)) is None


@pytest.mark.parametrize("record_crc", [False, True])
def test_every_flipped_byte_that_a_checksum_covers_is_found_where_it_is(
    disk: SimulatedFileSystem, record_crc: bool
) -> None:
    data, ends = row(3, record_crc=record_crc)
    unseen: list[int] = []
    for position in range(ends[0], ends[1]):
        flipped = bytearray(data)
        flipped[position] ^= 0x10
        count, end, problem = run(lay(disk, bytes(flipped)))
        if problem is None:
            assert (count, end) == (3, ends[2])
            unseen.append(position - ends[0])
        else:
            assert (count, end) == (1, ends[0])
    # Not covered by any length, place or checksum of the body: queue id, flag, queue offset,
    # sysFlag except the bit that says how long a host is, hosts, times, and the topic's letters.
    uncovered = [*range(12, 28), *range(36, 39), *range(40, 84), ends[1] - ends[0] - 3]
    assert unseen == ([] if record_crc else uncovered)


OWN, NONE, COPIED = "own", "none", "copied"


@pytest.mark.parametrize(
    ("kinds", "sound"),
    [
        ((NONE, COPIED, NONE), 3),
        ((COPIED, NONE), 2),
        ((COPIED, COPIED, COPIED), 3),
        ((NONE, COPIED), 2),
        ((OWN, NONE, COPIED), 3),
        ((COPIED,), 0),
        ((COPIED, OWN), 0),
        ((NONE, OWN, COPIED, OWN), 2),
        ((OWN, COPIED), 1),
    ],
)
def test_a_checksum_that_a_sender_copied_is_none_unless_a_record_beside_has_its_own(
    disk: SimulatedFileSystem, kinds: tuple[str, ...], sound: int
) -> None:
    """Apache's brokers keep such a property, if they do not add their own."""
    data, ends = b"", [0]
    for number, kind in enumerate(kinds):
        properties = b"a\x01b\x02" + b"__CRC32#\x010123456789\x02" * (kind == COPIED)
        body = b"%d" % number * 20
        data += record(len(data), body, properties=properties, record_crc=kind == OWN)
        ends.append(len(data))
    problem = None if sound == len(kinds) else "the checksum of the record is wrong"
    segments = lay(disk, data)
    assert run(segments) == (sound, ends[sound], problem)
    first = kinds.index(COPIED)
    for strict in (
        LogScan(segments, 0, checked_from=ends[first]),
        LogScan(segments, 0, ours_from=ends[first]),
    ):
        assert len(list(strict)) == first
        assert strict.problem == "the checksum of the record is wrong"


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_flipped_byte_of_a_record_with_its_own_is_found_wherever_it_is(
    disk: SimulatedFileSystem, victim: int
) -> None:
    data, ends = row(3, record_crc=True)
    start = [0, *ends][victim]
    for position in range(start, ends[victim]):
        flipped = bytearray(data)
        flipped[position] ^= 0x10
        count, end, problem = run(lay(disk, bytes(flipped)))
        assert (count, end) == (victim, start)
        assert problem is not None


def test_a_record_that_reaches_behind_the_file_or_its_segment_is_none(
    disk: SimulatedFileSystem,
) -> None:
    data, ends = row(2)
    segments = lay(disk, data)
    file = segments.file(next(iter(segments)))
    file.resize(ends[1] - 1)
    count, end, problem = run(segments)
    assert (count, end) == (1, ends[0])
    assert problem is not None
    file.resize(ends[0] + 5)
    count, end, problem = run(segments)
    assert (count, end) == (1, ends[0])
    assert problem is not None
    file.resize(ends[0])
    assert run(segments) == (1, ends[0], None)


def test_a_bad_sector_is_an_error_that_names_the_file(disk: SimulatedFileSystem) -> None:
    segments = lay(disk, row(2)[0])
    disk.make_unreadable(f"{LOG}/{0:020d}", 100, 101)
    with pytest.raises(OSError, match=f"{0:020d}"):
        run(segments)


def test_records_behind_a_bad_one_are_found_by_their_magic(disk: SimulatedFileSystem) -> None:
    data, ends = row(4)
    bad = data[: ends[0]] + b"\xff" * 7 + bytes(ends[1] - ends[0] - 7) + data[ends[1] :]
    segments = lay(disk, bad, b"\xda\xa3\x20\xa7 is not enough")
    assert run(segments)[:2] == (1, ends[0])
    end = data_end(segments, ends[0])
    assert end == SIZE + len(b"\xda\xa3\x20\xa7 is not enough")
    assert last_record_behind(segments, ends[0] + 1, end) == ends[2]
    assert last_record_behind(segments, ends[2] + 1, end) is None
    assert last_record_behind(segments, ends[0] + 1, ends[2]) == ends[1]


def test_a_copy_of_a_record_at_another_place_is_no_record(disk: SimulatedFileSystem) -> None:
    data, ends = row(2)
    segments = lay(disk, data + data)
    assert run(segments)[:2] == (2, ends[1])
    assert last_record_behind(segments, ends[1], SIZE) is None
