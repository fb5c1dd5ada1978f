"""Every truncation and every flipped byte of a small store: no outcome is a silent loss.

Each damage has one of these outcomes: the exact records; a refusal that names the place; or a cut
at or after the last offset known to be synced, with a copy of what was cut. What no checksum in
force covers is listed here, byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import HOST

from cometmq.proto.message import read_message
from cometmq.store.config import StoreConfig
from cometmq.store.errors import StoreFilesError
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore
from cometmq.store.upkeep.checkpoint import load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = StoreConfig(
    segment_size=4096,
    consume_queue_file_size=400,
    index_slots=8,
    index_items=64,
)
COUNT = 9
LOG = "/s/commitlog/00000000000000000000"
QUEUE = "/s/consumequeue/T/0/00000000000000000000"


@dataclass
class Image:
    """The files of a store that is not open."""

    files: dict[str, bytes]
    config: StoreConfig
    records: list[bytes]
    synced: int

    def disk(self, **changed: bytes | None) -> SimulatedFileSystem:
        disk = SimulatedFileSystem()
        for path, content in {**self.files, **changed}.items():
            if content is None:
                continue
            disk.make_directories(path.rpartition("/")[0])
            file = disk.open(path, create=True)
            file.write(content, 0)
            file.resize(len(content))
            file.sync()
            file.close()
        return disk

    def with_damage(self, path: str, content: bytes | None) -> SimulatedFileSystem:
        return self.disk(**{path: content})


def make(config: StoreConfig, *, clean: bool) -> Image:
    """A store with a few records and a checkpoint in between, stopped in one way or another."""
    disk = SimulatedFileSystem()
    store = MessageStore.open("/s", config, now_ms=1, filesystem=disk, threads=False)
    for number in range(COUNT):
        properties = b"KEYS\x01k%d\x02TAGS\x01t%d\x02" % (number, number % 2)
        store.put("T", 0, b"body %d" % number * 4, properties, Origin(number, number, HOST))
        store.commit()
        store.run_jobs()
        store.advance()
        if number < COUNT // 2:
            store.tick(number * 40_000)
            store.run_jobs()
    records = read_all(store)
    assert len(records) == COUNT
    end = store.end_offset
    if clean:
        assert store.close(1)
    else:
        disk = disk.kill()
    return Image(dict(files_of(disk)), config, records, end)


def files_of(disk: SimulatedFileSystem, folder: str = "/s") -> Iterator[tuple[str, bytes]]:
    for name, is_directory, size, *_ in disk.list(folder):
        path = f"{folder}/{name}"
        if is_directory:
            yield from files_of(disk, path)
        else:
            file = disk.open(path, read_only=True)
            yield path, file.read(size, 0)
            file.close()


def read_all(store: MessageStore) -> list[bytes]:
    """The records of the queue, by queue offset."""
    found: list[bytes] = []
    offset = 0
    while offset < store.max_offset("T", 0):
        result = store.read("T", 0, offset, 32)
        data = b"".join(bytes(piece) for piece in result.slices)
        place = 0
        while place < len(data):
            message = read_message(data, place)
            found.append(message.raw)
            place += message.size
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
    return found


class Outcome:
    """What came of one damage."""

    def __init__(self, image: Image, disk: SimulatedFileSystem) -> None:
        self.refusal: StoreFilesError | None = None
        self.records: list[bytes] = []
        self.kept = b""
        before = dict(files_of(disk))
        try:
            store = MessageStore.open("/s", image.config, now_ms=1, filesystem=disk, threads=False)
        except StoreFilesError as error:
            self.refusal = error
            after = dict(files_of(disk))
            assert [after.get(path) for path in before if "commitlog" in path] == [
                content for path, content in before.items() if "commitlog" in path
            ]
            return
        try:
            self.records = read_all(store)
        except StoreFilesError as error:
            self.refusal = error
            return
        self.end = store.end_offset
        if store.kept:
            self.kept = dict(files_of(disk))[store.kept]
        found = [
            store.query("T", f"k{number}", 9, begin_ms=0, end_ms=1 << 60, now_ms=1)
            for number in range(len(self.records))
        ]
        self.keys = sum(map(len, found))
        assert store.close(1)

    def is_exact(self, image: Image) -> bool:
        return self.refusal is None and self.records == image.records and self.keys == COUNT

    def is_honest_cut(self, image: Image, known: int, log: bytes) -> bool:
        """Whether only what was not promised is gone, and is kept elsewhere."""
        count = len(self.records)
        return (
            self.refusal is None
            and self.records == image.records[:count]
            and self.end >= known
            and self.kept == log[self.end :].rstrip(b"\0")
        )


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "record-crc"])
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return replace(CONFIG, record_crc=request.param)


@pytest.fixture(scope="module")
def stopped(config: StoreConfig) -> Image:
    return make(config, clean=True)


@pytest.fixture(scope="module")
def killed(config: StoreConfig) -> Image:
    return make(config, clean=False)


def without_note(image: Image) -> Image:
    """The same store after a power cut that took the note of the synced offset."""
    checkpoint = image.files["/s/checkpoint"]
    return replace(
        image, files={**image.files, "/s/checkpoint": checkpoint[:512].ljust(4096, b"\0")}
    )


def tail_start(image: Image) -> int:
    return image.synced - sum(len(record) for record in image.records[-3:])


def test_undamaged_stores_open_with_every_record(stopped: Image, killed: Image) -> None:
    for image in (stopped, killed, without_note(killed)):
        assert Outcome(image, image.disk()).is_exact(image)


def test_every_truncation_of_what_was_known_to_be_synced_is_refused(
    stopped: Image, killed: Image
) -> None:
    for image in (stopped, killed):
        log = image.files[LOG]
        for length in range(tail_start(image), image.synced):
            for content in (log[:length], log[:length].ljust(len(log), b"\0")):
                outcome = Outcome(image, image.with_damage(LOG, content))
                assert outcome.refusal is not None, length
                assert "commitlog" in str(outcome.refusal)


def test_every_truncation_of_what_nobody_knew_to_be_synced_is_cut_and_kept(
    killed: Image,
) -> None:
    image = without_note(killed)
    log = image.files[LOG]
    known = load_checkpoint(image.disk(), "/s/checkpoint").claims
    assert known is not None
    cuts = 0
    for length in range(tail_start(image), image.synced):
        for content in (log[:length], log[:length].ljust(len(log), b"\0")):
            outcome = Outcome(image, image.with_damage(LOG, content))
            if length < known.synced_offset:
                assert outcome.refusal is not None, length
            else:
                assert outcome.is_honest_cut(image, known.synced_offset, content), length
                cuts += 1
    assert cuts > 50


def test_every_flipped_byte_of_the_log_is_found_unless_no_checksum_covers_it(
    stopped: Image, killed: Image
) -> None:
    for image in (stopped, killed):
        unseen = flipped(image, LOG, image.synced, masks=(0x10, 0x01))
        if image.config.record_crc:
            assert unseen == []
        elif image is stopped:
            assert unseen == list(uncovered(image))
            assert len(unseen) == 81 * COUNT
        else:
            # A replay notices a record that does not follow the one before it in its queue.
            assert set(unseen) < set(uncovered(image))


def uncovered(image: Image) -> Iterator[int]:
    """Return the bytes of records that no length, place or checksum of the body covers."""
    start = 0
    for record in image.records:
        message = read_message(record)
        fields = [*range(12, 28), *range(36, 84)]
        texts = [
            *range(message.topic_start, message.topic_end),
            *range(message.topic_end + 2, message.end),
        ]
        yield from (start + place for place in (*fields, *texts))
        start += len(record)


def flipped(image: Image, path: str, end: int, *, masks: tuple[int, ...] = (0x10,)) -> list[int]:
    """Flip bits of each byte in turn; return the places where the store opens with other records.

    Several bits, because of bytes with flags: one says how long a host is, others are not noticed.
    """
    sound = image.files[path]
    unseen: list[int] = []
    for position, mask in product(range(end), masks):
        damaged = bytearray(sound)
        damaged[position] ^= mask
        outcome = Outcome(image, image.with_damage(path, bytes(damaged)))
        if outcome.refusal is None and not outcome.is_exact(image) and position not in unseen:
            unseen.append(position)
    return unseen


def test_every_flipped_byte_of_a_queue_is_found_or_healed(stopped: Image, killed: Image) -> None:
    for image in (stopped, killed):
        assert flipped(image, QUEUE, COUNT * 20) == []


def test_every_flipped_byte_of_the_checkpoint_loses_nothing(stopped: Image, killed: Image) -> None:
    for image in (stopped, killed):
        assert flipped(image, "/s/checkpoint", 540) == []


def test_every_flipped_byte_of_what_can_be_made_again_loses_no_record(
    stopped: Image, killed: Image
) -> None:
    """These are all files but the log and the index, in which `verify` finds what is wrong."""
    known = {LOG, QUEUE, "/s/checkpoint"}
    for image in (stopped, killed):
        others = [path for path in image.files if path not in known and "/index/" not in path]
        assert others
        for path in others:
            assert flipped(image, path, len(image.files[path])) == [], path


@pytest.mark.parametrize(
    "missing", ["checkpoint", "abort", "lock", "consumequeue", "index", "commitlog"]
)
def test_a_part_that_is_missing_is_made_again_or_refused(
    stopped: Image, killed: Image, missing: str
) -> None:
    for image in (stopped, killed):
        kept = {
            path: content
            for path, content in image.files.items()
            if not path.startswith(f"/s/{missing}")
        }
        part = replace(image, files=kept)
        outcome = Outcome(part, part.disk())
        if missing == "commitlog":
            assert outcome.refusal is not None
        else:
            assert outcome.is_exact(image), missing
