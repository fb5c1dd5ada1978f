"""Compare what a store serves, and what it wrote, with what its log means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.crash.history import BrokenPromise
from tests.crash.oracle import ROOT, Log, consume_queues, index_files, index_items, read_log

if TYPE_CHECKING:
    from tests.crash.history import Sent
    from tests.crash.subject import Subject

    from cometmq.store.config import StoreConfig
    from cometmq.store.filesystem import FileSystem


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
    """The log as it lies on the disk (or in its cache) now."""
    files = files_of(disk, f"{root}/commitlog")
    return read_log({int(name): data for name, data in files.items()})


def check_queues(subject: Subject, log: Log, *, only_synced: bool = False) -> None:
    """Read every queue through the store and compare it, message by message.

    With `only_synced` nothing may be readable that the store does not claim to be synced.
    """
    by_queue: dict[tuple[str, int], list[tuple[int, int, bytes]]] = {}
    for record in log.records:
        messages = by_queue.setdefault((record.topic, record.queue_id), [])
        messages.append((record.queue_offset, record.physical_offset + record.size, record.body))
    for (topic, queue_id), messages in by_queue.items():
        if [message[0] for message in messages] != list(range(len(messages))):
            raise BrokenPromise(f"{topic}/{queue_id}: queue offsets with holes or twice")
        minimum, maximum = subject.range_of(topic, queue_id)
        may_wait = sum(1 for message in messages if message[1] > subject.synced_offset)
        readable = len(messages) - (may_wait if only_synced else 0)
        if minimum != 0 or maximum > len(messages) or (maximum != readable):
            raise BrokenPromise(
                f"{topic}/{queue_id}: offsets {minimum} to {maximum} are readable,"
                f" not 0 to {readable}"
            )
        bodies = subject.read_all(topic, queue_id)
        if bodies != [message[2] for message in messages[:maximum]]:
            raise BrokenPromise(f"{topic}/{queue_id}: other messages are read than were put")


def check_promised(subject: Subject, promised: list[Sent]) -> None:
    """Read these messages through the store, whatever else there is."""
    bodies: dict[tuple[str, int], list[bytes]] = {}
    for sent in promised:
        key = (sent.topic, sent.queue_id)
        if key not in bodies:
            bodies[key] = subject.read_all(*key)
        if bodies[key][sent.queue_offset : sent.queue_offset + 1] != [sent.body]:
            raise BrokenPromise(f"{key}: message {sent.queue_offset} was promised, and is lost")


def check_files(disk: FileSystem, log: Log, config: StoreConfig, root: str = ROOT) -> None:
    """Compare the files of the ConsumeQueues and of the index, byte for byte, after a shutdown."""
    _check_queue_files(disk, log, f"{root}/consumequeue", config.consume_queue_file_size)
    _check_index_files(disk, log, f"{root}/index", config)


def _check_queue_files(disk: FileSystem, log: Log, root: str, file_size: int) -> None:
    for (topic, queue_id), entries in consume_queues(log).items():
        expected = b"".join(entries[number] for number in sorted(entries))
        folder = f"{root}/{topic}/{queue_id}"
        files = files_of(disk, folder)
        found = b"".join(files[name] for name in sorted(files))
        if [int(name) for name in sorted(files)] != list(range(0, len(found), file_size)):
            raise BrokenPromise(f"{folder}: files {sorted(files)} are no row")
        if found.rstrip(b"\0") != expected.rstrip(b"\0"):
            raise BrokenPromise(f"{folder}: the entries are not those of the log")


def _check_index_files(disk: FileSystem, log: Log, root: str, config: StoreConfig) -> None:
    files = files_of(disk, root)
    made = index_files(index_items(log), config.index_slots, config.index_items)
    found = [files[name] for name in sorted(files)]
    if len(found) > len(made) and not any(found[-1][40:]):
        found.pop()  # Made ahead, or left empty.
    if len(found) != len(made):
        raise BrokenPromise(f"{len(found)} index files, not {len(made)}: {sorted(files)}")
    for number, (ours, theirs) in enumerate(zip(made, found, strict=True)):
        # The header's times may differ.
        if ours[16:] != theirs[16 : len(ours)] or theirs[len(ours) :].strip(b"\0"):
            raise BrokenPromise(f"index file {number} is not what the log makes")
