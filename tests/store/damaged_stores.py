"""A small store that has one of everything, and ways to damage it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.crash.disk import SimulatedFileSystem
from tests.store.records import HOST

from cometmq.store.checking.verify import verify
from cometmq.store.config import StoreConfig
from cometmq.store.log.turn import Origin
from cometmq.store.looking.findings import Report
from cometmq.store.looking.inspection import inspect, looking_at
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.mending.repair_plan import Plan, make_plan
from cometmq.store.mending.repairing import carry_out
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME
from cometmq.store.upkeep.checkpoint import CheckpointFile, load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.proto.message import StoredMessage
    from cometmq.store.disk.filesystem import FileSystem

ROOT = "/s"
BATCHES = "Batches"
SMALL = StoreConfig(
    segment_size=4096,
    consume_queue_file_size=400,
    batch_consume_queue_file_size=460,
    index_slots=20,
    index_items=40,
)
INNER = b"INNER_NUM\x013\x02"


def small_store(config: StoreConfig = SMALL, *, close: bool = True) -> SimulatedFileSystem:
    """Some 50 records over three segments: tags, keys, delays, halves of transactions, batches."""
    disk = SimulatedFileSystem()
    write_small_store(disk, ROOT, config, close=close)
    return disk


def open_small_store(
    disk: FileSystem, config: StoreConfig = SMALL, *, root: str = ROOT, now_ms: int = 1
) -> MessageStore:
    """Open the small store, or one that has its batch topic."""
    return MessageStore.open(
        root,
        config,
        now_ms=now_ms,
        filesystem=disk,
        is_batch_topic=lambda topic: topic == BATCHES,
        threads=False,
    )


def write_small_store(
    disk: FileSystem, root: str, config: StoreConfig = SMALL, *, close: bool = True
) -> MessageStore:
    """Write the small store into a folder."""
    store = open_small_store(disk, config, root=root, now_ms=1000)
    for number in range(40):
        now_ms = 1_700_000_000_000 + number * 1500
        origin = Origin(now_ms, now_ms - 5, HOST)
        keys = b"UNIQ_KEY\x01U%03d\x02KEYS\x01k%d all\x02TAGS\x01t%d\x02" % (
            number,
            number,
            number % 3,
        )
        body = b"body of message %d " % number * (number % 5)
        store.put("T", number % 2, body, keys, origin)
        if number % 8 == 0:
            half = Origin(now_ms, now_ms, HOST, 0x4)
            store.put("T", 0, b"half", b"KEYS\x01half\x02", half)
            store.put("SCHEDULE_TOPIC_XXXX", 2, b"later", b"DELAY\x013\x02", origin)
        if number % 10 == 0:
            inner = Origin(now_ms, now_ms, HOST, 0xC0)
            store.put(BATCHES, 0, b"abc", INNER, inner)
            store.put(BATCHES, 0, b"single", b"", origin)
        store.commit()
        store.run_jobs()
        store.advance()
        store.tick(now_ms)
    if close:
        assert store.close(1_700_000_100_000)
    return store


def verified(disk: FileSystem, root: str = ROOT, config: StoreConfig = SMALL) -> Report:
    """Verify a store, and keep all findings.

    The note that these stores have no table of topics is dropped, see `test_unlisted`.
    """
    report = Report(100_000)
    for _ in verify(inspect(disk, root, config), report):
        pass
    report.notes = [note for note in report.notes if not note.startswith("config/topics.json has")]
    return report


def planned(disk: FileSystem, *, cut: bool = False) -> Plan:
    """Plan the repair of the small store."""
    plan = Plan()
    for _ in make_plan(inspect(disk, ROOT, SMALL), plan, cut=cut):
        pass
    return plan


def messages(disk: FileSystem) -> list[StoredMessage]:
    """Return the sound records of the small store."""
    return list(LogCheck(inspect(disk, ROOT, SMALL)))


def repaired(
    disk: FileSystem, root: str = ROOT, config: StoreConfig = SMALL, *, cut: bool = False
) -> Plan:
    """Repair a store; return what was planned."""
    plan = Plan()
    with looking_at(disk, root, config) as store:
        for _ in make_plan(store, plan, cut=cut):
            pass
        carry_out(store, plan, 1)
    return plan


def files_of(disk: FileSystem, folder: str) -> Iterator[str]:
    """Walk all files under a folder."""
    for entry in disk.list(folder):
        path = f"{folder}/{entry.name}"
        if entry.is_directory:
            yield from files_of(disk, path)
        else:
            yield path


def content(disk: FileSystem, path: str) -> bytes:
    """Read a whole file."""
    file = disk.open(path, read_only=True)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def contents(disk: FileSystem, folder: str = ROOT) -> dict[str, bytes]:
    """Read all files under a folder."""
    return {path: content(disk, path) for path in files_of(disk, folder)}


def open_in(folder: Path) -> list[Path]:
    """Return the files that this process has open there, without the listing's own descriptor."""
    links = list[Path]()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(each.readlink())
    return [link for link in links if link.is_relative_to(folder)]


def overwrite(disk: FileSystem, path: str, position: int, data: bytes) -> None:
    """Change some bytes of a file."""
    file = disk.open(path)
    file.write(data, position)
    file.close()


def flip(disk: FileSystem, path: str, position: int, mask: int = 1) -> None:
    """Flip bits of one byte."""
    overwrite(disk, path, position, bytes((content(disk, path)[position] ^ mask,)))


def damage(disk: FileSystem, message: StoredMessage) -> None:
    """Damage a record of the small store."""
    start = message.physical_offset // SMALL.segment_size * SMALL.segment_size
    flip(disk, f"{ROOT}/commitlog/{start:020d}", message.physical_offset - start + 31)


def forget_shape(disk: SimulatedFileSystem) -> None:
    """Take from a store the notes of its index files' shape, as in stores of older versions."""
    disk.remove(f"{ROOT}/{QUEUE_ENDS_NAME}")
    path = f"{ROOT}/checkpoint"
    checkpoint = load_checkpoint(disk, path)
    assert checkpoint.claims is not None
    file = CheckpointFile(disk, path)
    file.write(checkpoint.longs, replace(checkpoint.claims, index_shape=None))
    file.close()
