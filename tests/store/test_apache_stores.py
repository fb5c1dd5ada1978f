"""Stores that a live Apache RocketMQ wrote: every message is found in every way there is."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import archives
from tests.store.damaged_stores import contents, overwrite

from cometmq.proto.java import tags_code
from cometmq.proto.message import StoredMessage, read_message
from cometmq.store.config import StoreConfig
from cometmq.store.disk.cold import Cold
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.errors import CorruptionError
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore
from cometmq.store.messages.reading import Filter, ReadStatus
from cometmq.store.queues.consume_queue import Boundary
from cometmq.store.upkeep.checkpoint import load_checkpoint

VECTORS = Path(__file__).parent.parent / "vectors" / "store"
NOW_MS = 1795256000000
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"
CONFIG = StoreConfig(index_slots=200, index_items=400, batch_consume_queue_file_size=4600)
"""No file tells the sizes of the index; a queue's only file may be half made after a kill."""


def unpack(name: str, folder: Path) -> Path:
    archives.unpack(VECTORS / f"{name}.tar.xz", folder, timer_wheel=True)
    return folder / "store"


class Store:
    """One unpacked archive, its manifest, and the store opened on it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.root = unpack(name, folder)
        self.manifest: dict[str, Any] = json.loads((VECTORS / f"{name}.manifest.json").read_text())
        self.messages: list[dict[str, Any]] = self.manifest["messages"]
        if name == "killed":
            clean = json.loads((VECTORS / "clean.manifest.json").read_text())
            self.messages = clean["messages"] + self.messages
        self.store = self.open()

    def open(self) -> MessageStore:
        return MessageStore.open(str(self.root), CONFIG, now_ms=NOW_MS, threads=False)

    def reopen(self) -> None:
        assert self.store.close(NOW_MS)
        self.store = self.open()

    def record(self, physical_offset: int) -> StoredMessage:
        found = self.store.find_record(physical_offset)
        if isinstance(found, Cold):
            found = self.store.find_record(physical_offset, [self.store.fetch(found)])
        assert found is not None
        assert not isinstance(found, Cold)
        return read_message(bytes(found))

    def dispatched(self) -> list[dict[str, Any]]:
        """The messages that consumers get; none from a topic that was deleted before the end."""
        queues = {*self.manifest["consumequeue"], *self.manifest["batchconsumequeue"]}
        return [
            message
            for message in self.messages
            if f"{message['topic']}/{message['queueId']}" in queues
        ]


@pytest.fixture(params=["clean", "killed", "ext"])
def apache(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(request.param, tmp_path)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_log_ends_where_apache_ended_it_and_the_segments_have_their_size(
    apache: Store,
) -> None:
    assert apache.store.end_offset == apache.manifest["commitlogEnd"]
    assert apache.store.segments.size == int(apache.manifest["settings"]["mappedFileSizeCommitLog"])
    assert apache.store.kept is None


def test_every_message_is_found_by_physical_offset(apache: Store) -> None:
    for expected in apache.messages:
        message = apache.record(expected["physicalOffset"])
        assert message.size == expected["size"]
        assert message.topic == expected["topic"]
        assert message.properties == expected["properties"]
        assert digest(message.body) == expected["storedBodySha256"]
        assert message.is_body_intact()
        assert apache.store.find_record(expected["physicalOffset"] + 1) is None


def test_every_message_is_found_by_queue_offset(apache: Store) -> None:
    checked = 0
    for expected in apache.dispatched():
        offset = expected["queueOffset"]
        result = apache.store.read(expected["topic"], expected["queueId"], offset, 1)
        assert result.status is ReadStatus.FOUND
        message = read_message(bytes(result.slices[0]))
        assert message.physical_offset == expected["physicalOffset"]
        checked += 1
    assert checked > len(apache.messages) * 0.9


def test_whole_queues_are_read_in_order_however_they_lie_in_the_log(apache: Store) -> None:
    for name in apache.manifest["consumequeue"]:
        topic, _, queue_id = name.rpartition("/")
        expected = [
            message["physicalOffset"]
            for message in apache.messages
            if f"{message['topic']}/{message['queueId']}" == name
        ]
        assert read_all(apache.store, topic, int(queue_id)) == expected


def read_all(store: MessageStore, topic: str, queue_id: int) -> list[int]:
    """The physical offsets of all messages of a queue, read 32 at a time."""
    found: list[int] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.read(topic, queue_id, offset, 32)
        assert result.status is ReadStatus.FOUND
        data = b"".join(bytes(piece) for piece in result.slices)
        assert len(data) == result.size
        place = 0
        while place < len(data):
            message = read_message(data, place)
            found.append(message.physical_offset)
            place += message.size
        assert found[-1] == result.last_physical_offset
        offset = result.next_begin_offset
    return found


def test_every_message_is_found_by_each_of_its_keys(apache: Store) -> None:
    for expected in apache.messages:
        properties = expected["properties"]
        keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
        for key in filter(None, keys):
            found = apache.store.query(
                expected["topic"], key, 2000, begin_ms=0, end_ms=NOW_MS, now_ms=NOW_MS
            )
            assert expected["physicalOffset"] in found, (key, expected)


def test_every_message_is_found_by_time(apache: Store) -> None:
    for expected in apache.dispatched():
        topic, queue_id = expected["topic"], expected["queueId"]
        if topic in apache.store.queues.batch.topics():
            continue
        time = expected["storeTimestamp"]
        low = apache.store.offset_by_time(topic, queue_id, time, Boundary.LOWER)
        high = apache.store.offset_by_time(topic, queue_id, time, Boundary.UPPER)
        assert not isinstance(low, Cold)
        assert not isinstance(high, Cold)
        assert low <= expected["queueOffset"] <= high


def test_opening_and_closing_changes_no_queue_entry_and_no_record(
    apache: Store, tmp_path: Path
) -> None:
    untouched = unpack(apache.manifest["store"], tmp_path / "untouched")
    assert apache.store.close(NOW_MS)
    compared = 0
    for folder in ("commitlog", "consumequeue", "batchconsumequeue"):
        for original in sorted((untouched / folder).rglob("*")):
            if original.is_file():
                ours = apache.root / original.relative_to(untouched)
                assert ours.read_bytes() == original.read_bytes(), ours
                compared += 1
    assert compared > 5


def test_what_is_appended_to_an_apache_store_goes_on_where_apache_stopped(apache: Store) -> None:
    store = apache.store
    before = store.max_offset("S_roll", 0)
    origin = Origin(NOW_MS, NOW_MS, HOST)
    for number in range(500):
        put = store.put("S_roll", 0, b"ours %d" % number, b"KEYS\x01ours%d\x02" % number, origin)
        assert put.queue_offset == before + number
    store.commit()
    store.run_jobs()
    store.advance()
    apache.reopen()
    assert apache.store.max_offset("S_roll", 0) == before + 500
    found = apache.store.query("S_roll", "ours7", 9, begin_ms=0, end_ms=NOW_MS * 2, now_ms=NOW_MS)
    assert [apache.record(offset).body for offset in found] == [b"ours 7"]
    test_every_message_is_found_by_queue_offset(apache)
    test_every_message_is_found_by_each_of_its_keys(apache)
    assert apache.store.close(NOW_MS)


def test_a_clean_shutdown_of_ours_leaves_no_sign_of_a_crash_and_nothing_to_catch_up(
    apache: Store,
) -> None:
    end = apache.store.end_offset
    assert apache.store.close(NOW_MS)
    assert not (apache.root / "abort").exists()
    assert (apache.root / "lock").read_bytes() == b"lock"
    checkpoint = load_checkpoint(RealFileSystem(), str(apache.root / "checkpoint"))
    assert checkpoint.longs.queues_offset == end
    assert checkpoint.claims is not None
    assert checkpoint.claims.recover_from == end


def test_while_the_store_is_open_abort_holds_our_pid(apache: Store) -> None:
    assert (apache.root / "abort").read_text() == str(os.getpid())
    script = (
        "import sys; from cometmq.store.config import StoreConfig;"
        "from cometmq.store.message_store import MessageStore;"
        "MessageStore.open(sys.argv[1], StoreConfig(), now_ms=1)"
    )
    other = subprocess.run(
        [sys.executable, "-c", script, str(apache.root)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert f"another process (pid {os.getpid()})" in other.stderr
    assert apache.store.close(NOW_MS)


def test_messages_are_picked_by_tag_where_apache_put_the_codes_into_an_extension(
    tmp_path: Path,
) -> None:
    apache = Store("ext", tmp_path)
    for name in apache.manifest["consumequeue"]:
        topic, _, queue_id = name.rpartition("/")
        of_queue = [m for m in apache.messages if f"{m['topic']}/{m['queueId']}" == name]
        tags = of_queue[0]["properties"].get("TAGS", "")
        expected = [m for m in of_queue if m["properties"].get("TAGS", "") == tags][:32]
        wanted = Filter(codes={tags_code(tags.encode()) if tags else 0})
        result = apache.store.read(topic, int(queue_id), 0, 32, wanted=wanted)
        assert result.status is ReadStatus.FOUND
        assert result.record_count == len(expected)
        assert result.last_physical_offset == expected[-1]["physicalOffset"]
        other = apache.store.read(topic, int(queue_id), 0, 32, wanted=Filter(codes={1}))
        assert other.status is ReadStatus.NO_MATCHED_MESSAGE
    assert apache.store.close(NOW_MS)


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_store_whose_log_is_missing_is_refused_and_not_changed(name: str, tmp_path: Path) -> None:
    root, disk = unpack(name, tmp_path), RealFileSystem()
    for path in (root / "commitlog").iterdir():
        path.unlink()
    before = contents(disk, str(root))
    with pytest.raises(CorruptionError, match="check that its disk is mounted"):
        MessageStore.open(str(root), CONFIG, now_ms=1, threads=False)
    assert contents(disk, str(root)) == before


@pytest.mark.parametrize("name", ["clean", "killed"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_store_that_lacks_the_last_files_of_its_log_is_refused(
    name: str, count: int, tmp_path: Path
) -> None:
    root, disk = unpack(name, tmp_path), RealFileSystem()
    for path in sorted((root / "commitlog").iterdir())[-count:]:
        path.unlink()
    before = contents(disk, str(root))
    with pytest.raises(CorruptionError, match="restore the missing files"):
        MessageStore.open(str(root), CONFIG, now_ms=1, threads=False)
    assert contents(disk, str(root)) == before


def test_a_damaged_entry_that_leads_behind_the_log_is_no_witness(tmp_path: Path) -> None:
    root, disk = unpack("clean", tmp_path), RealFileSystem()
    store = MessageStore.open(str(root), CONFIG, now_ms=1, threads=False)
    topic = next(each for each in store.queues.simple.topics() if store.max_offset(each, 0) == 1)
    assert store.close(1)
    root = unpack("clean", tmp_path / "again")
    overwrite(disk, str(next((root / "consumequeue" / topic / "0").iterdir())), 0, b"\x01")
    store = MessageStore.open(str(root), CONFIG, now_ms=1, threads=False)
    assert store.max_offset(topic, 0) == 1
    assert store.close(1)


def test_a_single_entry_that_leads_to_the_very_next_byte_is_a_witness(tmp_path: Path) -> None:
    """The last file of the log had one message, and is missing, and no checkpoint says so."""
    root, disk = unpack("clean", tmp_path), RealFileSystem()
    (root / "checkpoint").unlink()
    last = max((root / "commitlog").iterdir())
    last.unlink()
    for path in (root / "consumequeue").glob("*/*/*"):
        for at, (physical_offset, _, _) in enumerate(struct.iter_unpack(">qiq", path.read_bytes())):
            if physical_offset > int(last.name):
                overwrite(disk, str(path), at * 20, bytes(20))
    with pytest.raises(CorruptionError, match="restore the missing files"):
        MessageStore.open(str(root), CONFIG, now_ms=1, threads=False)
