"""Compare what a store serves, and what it wrote, with what its log means."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tests.crash.history import BrokenPromise
from tests.crash.oracle import (
    INNER_BATCH,
    ROOT,
    Log,
    Record,
    batch_queues,
    consume_queues,
    index_files,
    index_items,
    read_log,
)

from cometmq.store.checking.verify import verify
from cometmq.store.looking.findings import Kind, Report
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.store_reader import StoreReader
from cometmq.store.queues.journal_reading import load_journal
from cometmq.store.upkeep.checkpoint import load_checkpoint

if TYPE_CHECKING:
    from tests.crash.history import History, Sent
    from tests.crash.subject import Subject

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import FileSystem


OF_NO_SHAPE = frozenset({Kind.INDEX_HEADER, Kind.INDEX_FILE})
"""Findings in index files that a power cut left without their shape, or with a wrong one."""


def files_of(disk: FileSystem, folder: str) -> dict[str, bytes]:
    """The files directly in a folder, by name."""
    found: dict[str, bytes] = {}
    for entry in disk.list(folder):
        if not entry.is_directory:
            file = disk.open(f"{folder}/{entry.name}", read_only=True)
            found[entry.name] = file.read(entry.size, 0)
            file.close()
    return found


def log_of(disk: FileSystem, root: str = ROOT) -> Log:
    """The log as it is on the disk (or in its cache) now."""
    files = files_of(disk, f"{root}/commitlog")
    return read_log({int(name): data for name, data in files.items()})


def check_queues(
    subject: Subject, log: Log, history: History, *, only_synced: bool = False
) -> None:
    """Read every queue through the store and compare it, message by message.

    With `only_synced` nothing may be readable that the store does not claim to be synced.
    """
    by_queue: dict[tuple[str, int], list[Record]] = {
        (sent.topic, sent.queue_id): [] for sent in history.committed
    }
    for record in log.records:
        # After the end there may be what the disk refused to erase of a refused turn.
        is_in_log = subject.first_offset <= record.physical_offset < subject.end_offset
        if is_in_log and record.batch_size and history.is_alive(record):
            by_queue[record.topic, record.queue_id].append(record)
    for (topic, queue_id), records in by_queue.items():
        synced = subject.synced_offset if only_synced else log.end
        _check_queue(subject, records, history.next_queue_offset(topic, queue_id), synced)
        readable = [record.body for record in records if record.physical_offset < synced]
        if subject.read_all(topic, queue_id) != readable:
            raise BrokenPromise(f"{topic}/{queue_id}: other messages are read than were put")
    for topic, queue_id in by_queue:
        ends = history.next_queue_offset(topic, queue_id)
        first, end = subject.range_of(topic, queue_id)
        if not by_queue[topic, queue_id] and (first, end) != (ends, ends):
            raise BrokenPromise(f"{topic}/{queue_id}: {first} to {end} is empty, and not at {ends}")


def _check_queue(subject: Subject, records: list[Record], next_offset: int, synced: int) -> None:
    """Compare the offsets of a queue with its records in the log."""
    if not records:
        return
    name = f"{records[0].topic}/{records[0].queue_id}"
    first = end = readable = records[0].queue_offset
    for record in records:
        if record.queue_offset != end:
            raise BrokenPromise(f"{name}: queue offsets with holes or twice")
        end += record.batch_size
        if record.physical_offset < synced:
            readable = end
    if end != next_offset:
        raise BrokenPromise(f"{name}: ends at {end}, and {next_offset} comes next")
    found = subject.range_of(records[0].topic, records[0].queue_id)
    if found != (first, readable):
        raise BrokenPromise(f"{name}: offsets {found} are readable, not {first} to {readable}")


def check_promised(subject: Subject, promised: list[Sent]) -> None:
    """Check that these messages can be read through the store, whatever else there is."""
    bodies: dict[tuple[str, int], list[bytes]] = {}
    for sent in promised:
        key = (sent.topic, sent.queue_id)
        if key not in bodies:
            bodies[key] = subject.read_all(*key)
        if sent.physical_offset >= subject.first_offset and sent.body not in bodies[key]:
            raise BrokenPromise(f"{key}: message {sent.queue_offset} was promised, and is lost")


def check_files(
    disk: FileSystem, log: Log, history: History, config: StoreConfig, root: str = ROOT
) -> None:
    """Compare the files of the ConsumeQueues and of the index, byte for byte, after a shutdown."""
    check_queue_files(disk, log, history, config, root)
    _check_index_files(disk, log, history, f"{root}/index", config)


def check_queue_files(
    disk: FileSystem, log: Log, history: History, config: StoreConfig, root: str = ROOT
) -> None:
    """Compare the files of the ConsumeQueues only."""
    alive = Log([record for record in log.records if history.is_alive(record)], log.start, log.end)
    for folder, queues, file_size, entry_size in (
        ("consumequeue", consume_queues(alive), config.consume_queue_file_size, 20),
        ("batchconsumequeue", batch_queues(alive), config.batch_consume_queue_file_size, 46),
    ):
        for (topic, queue_id), entries in queues.items():
            path = f"{root}/{folder}/{topic}/{queue_id}"
            first = _check_queue_files(disk, log, path, entries, file_size, entry_size)
            if entry_size == 20 and first != min(entries):
                raise BrokenPromise(f"{path}: entry {min(entries)} stands at {first}")


def check_journal(disk: FileSystem, root: str = ROOT) -> None:
    """Check that the journal named by a checkpoint is whole; else a start would read more log."""
    claims = load_checkpoint(disk, f"{root}/checkpoint").claims
    if claims is None or claims.journal is None or claims.complete_to <= claims.recover_from:
        return
    if load_journal(disk, root, claims.journal.start, claims.journal.size) is None:
        raise BrokenPromise(f"the checkpoint names {claims.journal}, and it is not whole")


def check_left(disk: FileSystem, config: StoreConfig, root: str = ROOT) -> None:
    """Check that the offline tools take nothing for damage that the next start rebuilds."""
    if not disk.exists(f"{root}/commitlog"):
        return
    store, report = inspect(disk, root, config), Report(findings_max=5)
    for _ in verify(store, report):
        pass
    has_shape = store.config.index_slots == config.index_slots
    if has_shape and report.counts.keys() - OF_NO_SHAPE:
        raise BrokenPromise(f"verify: {'; '.join(map(str, report.findings))}")


def check_tools(disk: FileSystem, history: History, config: StoreConfig, root: str = ROOT) -> None:
    """Check that the offline tools find every message and no damage in a store shut down."""
    report = Report(findings_max=5)
    for _ in verify(inspect(disk, root, config), report):
        pass
    # While the index is off, nothing mends what a power cut left of it.
    if report.counts.keys() - (set() if config.index else OF_NO_SHAPE):
        raise BrokenPromise(f"verify: {'; '.join(map(str, report.findings))}")
    reader = StoreReader(root, config, filesystem=disk)
    for sent in history.committed if config.index else ():
        if sent.physical_offset >= history.first_offset and "UNIQ_KEY" in sent.properties:
            found = reader.query(sent.topic, sent.properties["UNIQ_KEY"], 9)
            if found != [sent.physical_offset]:
                raise BrokenPromise(f"{sent.topic}: found by its key at {found}, not where it is")
    reader.close()


def _check_queue_files(
    disk: FileSystem, log: Log, folder: str, entries: dict[int, bytes], file_size: int, size: int
) -> int:
    """Compare the files of one queue; return the index of the first entry that is in the log."""
    expected = [entries[number] for number in sorted(entries)]
    files = files_of(disk, folder)
    names = sorted(files)
    for left, name in pairwise(tuple(names)):
        if int(name) != int(left) + file_size:  # A power cut only undid an older removal.
            names = names[names.index(name) :]
    data = b"".join(files[name] for name in names)
    start = int(names[-1]) + file_size - len(data) if names else 0
    if [int(name) for name in names] != list(range(start, start + len(data), file_size)):
        raise BrokenPromise(f"{folder}: files {names} are no row")
    found = [data[at : at + size] for at in range(0, len(data), size)]
    while found and not any(found[-1]):
        found.pop()
    before = found[: -len(expected)]
    if found[-len(expected) :] != expected:
        raise BrokenPromise(f"{folder}: the entries are not those of the log")
    if any(int.from_bytes(entry[:8], "big") >= log.start for entry in before if log.start):
        raise BrokenPromise(f"{folder}: entries of no record stand in front of the first")
    return start // size + len(before)


def _check_index_files(
    disk: FileSystem, log: Log, history: History, root: str, config: StoreConfig
) -> None:
    files = files_of(disk, root)
    known = {record.physical_offset: record for record in log.records}
    ever = [known.get(sent.physical_offset) or _as_record(sent) for sent in history.committed]
    made = index_files(index_items(Log(ever)), config.index_slots, config.index_items)
    made = [each for each in made if _end_offset(each) >= log.start]
    found = [files[name] for name in sorted(files) if files[name]]  # A full disk leaves empty ones.
    if found and not any(found[-1][40:]):
        found.pop()  # Made ahead.
    found = [each for each in found if _end_offset(each) >= log.start]
    if len(found) != len(made):
        raise BrokenPromise(f"{len(found)} index files, not {len(made)}: {sorted(files)}")
    for number, (ours, theirs) in enumerate(zip(made, found, strict=True)):
        # The header's times may differ.
        if ours[16:] != theirs[16 : len(ours)] or theirs[len(ours) :].strip(b"\0"):
            raise BrokenPromise(f"index file {number} is not what the log makes")


def _end_offset(index_file: bytes) -> int:
    return int.from_bytes(index_file[24:32], "big")


def _as_record(sent: Sent) -> Record:
    flag = INNER_BATCH if "INNER_NUM" in sent.properties else 0
    return Record(
        sent.physical_offset,
        sent.size,
        sent.topic,
        sent.queue_id,
        sent.queue_offset,
        flag,
        sent.stored_ms,
        sent.body,
        sent.properties,
    )
