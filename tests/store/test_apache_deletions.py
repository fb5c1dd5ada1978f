"""Topics that an Apache broker deleted, and whose records a start reads back.

These records are at the end of the log of a clean shutdown, where nothing after them shows that
they had their entries, or in the last segment of a killed store.
"""

from __future__ import annotations

import itertools
import json
import shutil
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
import tests.store.test_deletions as simulated
from tests.crash.disk import KillAt, Killed, SimulatedFileSystem
from tests.store.apache_stores import DELETED_TOPICS, config, unpack
from tests.store.damaged_stores import content, flip, overwrite, repaired, verified
from tests.store.held_stores import bodies
from tests.store.records import HOST

from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore
from cometmq.store.upkeep.checkpoint import FILE_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOW_MS = 1_795_256_000_000
GONE = "TRANS_CHECK_MAX_TIME_TOPIC", "%DLQ%g_sretry"
"""The topics of the last three records."""
USERS = "S_mix", *GONE
"""The same, and the topic of earlier records."""
OURS_ALONE = "deleted_topics.json", "queue_ends.json"
"""Notes that Apache does not write."""


def topics_of(root: Path) -> dict[str, dict[str, dict[str, str]]]:
    text = (root / "config/topics.json").read_text()
    table: dict[str, dict[str, dict[str, str]]] = json.loads(text)["topicConfigTable"]
    return table


def delete(root: Path, topics: tuple[str, ...]) -> None:
    """Delete topics as Apache does: their records stay."""
    path = root / "config/topics.json"
    tree = json.loads(path.read_text())
    for topic in topics:
        shutil.rmtree(root / "consumequeue" / topic)
        del tree["topicConfigTable"][topic]
    path.write_text(json.dumps(tree))


def opened(root: Path, disk: SimulatedFileSystem | None = None) -> MessageStore:
    """Open a store, or what `on_a_disk` made of it."""
    batches = {
        topic: settings.get("attributes", {}).get("queue.type") == "BatchCQ"
        for topic, settings in topics_of(root).items()
    }
    return MessageStore.open(
        str(root),
        config("clean"),
        now_ms=NOW_MS,
        filesystem=disk,
        is_batch_topic=batches.get,
        threads=False,
    )


def on_a_disk(root: Path) -> SimulatedFileSystem:
    """Put a store on a simulated disk, in a folder of the same name."""
    disk = SimulatedFileSystem()
    folders = {root, *root.parents}
    for path in root.rglob("*"):
        if path.is_dir():
            folders.add(path)
            continue
        disk.make_directories(str(path.parent))
        file = disk.open(str(path), create=True)
        file.write(path.read_bytes(), 0)
        file.sync()
        file.close()
    for folder in sorted(folders):
        disk.make_directories(str(folder))
        disk.sync_directory(str(folder))
    return disk


def cut_off_starts(
    store: SimulatedFileSystem, start: Callable[[SimulatedFileSystem], MessageStore]
) -> Iterator[tuple[int, SimulatedFileSystem]]:
    """End a start at each of its operations in turn; yield what a power cut or a kill leaves."""
    for number in itertools.count(1):
        disk = store.kill()
        disk.hook = KillAt(disk.operations + number)
        try:
            start(disk)
        except Killed:
            yield number, disk.power_cut(Random(number)) if number % 2 else disk.kill()
        else:
            return


@pytest.mark.parametrize("is_killed", [False, True])
def test_they_stay_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_killed: bool
) -> None:
    root = unpack("clean", tmp_path)
    delete(root, GONE)
    assert not verified(RealFileSystem(), str(root), config("clean")).findings
    store = opened(root)
    (told,) = [each for each in caplog.messages if "deleted" in each]
    assert "nor a file: %DLQ%g_sretry, TRANS_CHECK_MAX_TIME_TOPIC; they stay deleted" in told
    caplog.clear()
    killed = shutil.copytree(root, tmp_path / "killed")
    assert store.close(NOW_MS)
    root = killed if is_killed else root
    assert not verified(RealFileSystem(), str(root), config("clean")).findings
    store = opened(root)
    assert not any("deleted" in each for each in caplog.messages)
    for topic in GONE:
        assert store.max_offset(topic, 0) == 0
        assert not (root / "consumequeue" / topic).exists()
        origin = Origin(NOW_MS, NOW_MS, b"\x7f\0\0\x01\0\0\x2a\x9f")
        assert store.put(topic, 0, b"new", b"", origin).queue_offset == 0
    store.commit()
    assert store.close(NOW_MS)
    assert not verified(RealFileSystem(), str(root), config("clean")).findings


@pytest.mark.parametrize(("name", "gone"), [("clean", GONE), ("killed", ())])
def test_so_they_do_where_the_first_start_is_killed(
    tmp_path: Path, name: str, gone: tuple[str, ...]
) -> None:
    """This holds also for topics whose records are before others."""
    root = unpack(name, tmp_path)
    delete(root, gone)
    number = 0
    for number, disk in cut_off_starts(on_a_disk(root), partial(opened, root)):
        store = opened(root, disk)
        for topic in (*gone, *DELETED_TOPICS):
            assert store.max_offset(topic, 0) == 0, (number, topic)
        assert store.close(NOW_MS)
        assert not verified(disk, str(root), config("clean")).findings, number
    assert number > 15


def test_what_was_deleted_before_a_kill_stays_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = unpack("killed", tmp_path)
    store = opened(root)
    assert any("nor a file: S_del; they stay deleted" in each for each in caplog.messages)
    assert store.max_offset("S_del", 0) == 0
    assert store.close(NOW_MS)
    assert not (root / "consumequeue/S_del").exists()
    assert not verified(RealFileSystem(), str(root), config("killed")).findings


def damaged_and_repaired(root: Path) -> None:
    """Damage a message before those of the deleted topic, and have it stepped over."""
    filesystem = RealFileSystem()
    flip(filesystem, str(root / "commitlog/00000000000000131072"), 350)  # In a body.
    plan = repaired(filesystem, str(root), config("clean"))
    assert [step.damage.start for step in plan.steps] == [131_331]


@pytest.mark.parametrize("is_ours", [False, True])
@pytest.mark.parametrize("name", ["clean", "killed"])
def test_behind_a_repair_they_stay_deleted(tmp_path: Path, name: str, *, is_ours: bool) -> None:
    """The start reads back all records after the damage, even those that Apache noted as safe."""
    root = unpack(name, tmp_path)
    if is_ours:
        assert opened(root).close(NOW_MS)
    damaged_and_repaired(root)
    store = opened(root)
    for topic in DELETED_TOPICS:
        assert store.max_offset(topic, 0) == 0
        assert not (root / "consumequeue" / topic).exists()
    assert store.max_offset("S_roll", 0) == {"clean": 1440, "killed": 1500}[name]
    assert store.close(NOW_MS)
    assert not verified(RealFileSystem(), str(root), config("clean")).findings


@pytest.mark.parametrize("lost", ["config/topics.json", "consumequeue", "consumequeue/*"])
def test_a_repair_takes_none_for_deleted_where_nobody_knows(tmp_path: Path, lost: str) -> None:
    """There is no table of topics, or no queue at all; the start after it does the same."""
    root = unpack("clean", tmp_path)
    table = root / "config/topics.json"
    text = table.read_text()
    for path in list(root.glob(lost)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    damaged_and_repaired(root)
    table.write_text(text)
    store = opened(root)
    assert store.max_offset("S_del", 0) == 10
    assert store.close(NOW_MS)


def test_a_repair_marks_none_behind_what_was_noted_as_safe(tmp_path: Path) -> None:
    """The record noted had its entry; later ones may merely have lost theirs."""
    root = unpack("killed", tmp_path)
    note_dispatched(root, 460_385)
    damaged_and_repaired(root)
    store = opened(root)
    assert [store.min_offset("S_del", 0), store.max_offset("S_del", 0)] == [7, 10]
    assert store.close(NOW_MS)


def note_dispatched(root: Path, offset: int) -> None:
    """Write into Apache's checkpoint up to which record the entries are on the disk."""
    with (root / "checkpoint").open("r+b") as file:
        file.seek(40)
        file.write(offset.to_bytes(8, "big"))


def as_a_killed_apache_leaves_it(topic: str, *deleted: str) -> SimulatedFileSystem:
    """A store in which a topic was deleted, and made again by a send, all in the last segment.

    After that, other topics were deleted, and the table of topics is not written yet.
    """
    disk = SimulatedFileSystem()
    store = simulated.opened(disk)
    simulated.put(store, b"old 0", b"old 1", topic=topic)
    store.delete_topics([topic])
    simulated.put(store, b"other 0", topic="Other")
    simulated.put(store, b"new 0", topic=topic)
    for each in deleted:
        simulated.put(store, b"gone 0", b"gone 1", topic=each)
    store.delete_topics(deleted)
    simulated.put(store, b"other 1", topic="Other")
    end = store.end_offset
    assert store.close(1)
    take_our_notes(disk, end if deleted else 0)
    return disk


def take_our_notes(disk: SimulatedFileSystem, dispatched_to: int) -> None:
    """Make our store one of a killed Apache broker, which noted entries up to an offset."""
    for name in OURS_ALONE:
        if disk.exists(f"/s/{name}"):
            disk.remove(f"/s/{name}")
    file = disk.open("/s/checkpoint")
    file.write(bytes(FILE_SIZE), 0)
    file.write((1000).to_bytes(8, "big"), 0)
    file.write(dispatched_to.to_bytes(8, "big"), 40)
    file.sync()
    disk.open("/s/abort", create=True)


@pytest.mark.parametrize("topic", ["T", "Batches"])
@pytest.mark.parametrize("is_clean", [False, True])
def test_messages_of_its_first_life_are_missed_by_no_verify(topic: str, *, is_clean: bool) -> None:
    disk = as_a_killed_apache_leaves_it(topic)
    if is_clean:
        disk.remove("/s/abort")
        assert not verified(disk, "/s", simulated.CONFIG).findings
    assert simulated.opened(disk).close(1)
    assert not verified(disk, "/s", simulated.CONFIG).findings


@pytest.mark.parametrize("after", [0, 1 << 20])
def test_a_topic_made_again_hides_none_that_was_deleted_behind_it(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogScan, "stretches_after", after)
    disk = as_a_killed_apache_leaves_it("T", "Gone")
    disk.make_directories("/s/config")
    settings = {each: {"topicName": each} for each in ("T", "Other")}
    disk.open("/s/config/topics.json", create=True).write(
        json.dumps({"topicConfigTable": settings}).encode(), 0
    )
    store = MessageStore.open("/s", simulated.CONFIG, now_ms=1, filesystem=disk, threads=False)
    assert bodies(store) == [b"new 0"]
    assert bodies(store, "Other") == [b"other 0", b"other 1"]
    assert store.max_offset("Gone", 0) == 0


@pytest.mark.parametrize("topic", ["T", "Batches"])
def test_a_start_behind_such_a_kill_that_is_cut_off_loses_no_message(topic: str) -> None:
    """If another program wrote the log, numbers that do not follow are no torn tail."""
    number = 0
    for number, disk in cut_off_starts(as_a_killed_apache_leaves_it(topic), simulated.opened):
        store = simulated.opened(disk)
        assert store.kept is None, number
        assert bodies(store, topic) == [b"new 0"], number
        assert bodies(store, "Other") == [b"other 0", b"other 1"], number
    assert number > 10


def test_nor_does_one_where_the_first_messages_behind_a_deletion_are_marked(
    tmp_path: Path,
) -> None:
    root = unpack("killed", tmp_path)
    note_dispatched(root, 460_385)
    apaches = on_a_disk(root)
    for number in range(20, 60, 5):
        disk = apaches.kill()
        disk.hook = KillAt(disk.operations + number)
        with pytest.raises(Killed):
            opened(root, disk)
        store = opened(root, disk.kill())
        assert (store.end_offset, store.max_offset("%DLQ%g_sretry", 0)) == (505_832, 1), number


def test_behind_the_last_note_of_a_killed_broker_nobody_knows(tmp_path: Path) -> None:
    """S_del's messages 5 to 9 are in the last segment; entries from 7 on may merely be lost."""
    root = unpack("killed", tmp_path)
    note_dispatched(root, 460_385)  # Where message 6 begins, the last that had an entry.
    store = opened(root)
    assert [store.min_offset("S_del", 0), store.max_offset("S_del", 0)] == [7, 10]
    assert store.close(NOW_MS)
    assert not verified(RealFileSystem(), str(root), config("killed")).findings


@pytest.mark.parametrize("backup", [False, True])
def test_of_a_killed_store_the_table_tells_alone(tmp_path: Path, *, backup: bool) -> None:
    """A topic that it lists has only lost its files; a backup of an older one does not count."""
    root = unpack("killed", tmp_path)
    table = root / "config/topics.json"
    text = table.read_text()
    if backup:
        table.rename(f"{table}.bak")
    else:
        table.write_text(text.replace('"S_mix"', '"S_del"'))
    store = MessageStore.open(str(root), config("killed"), now_ms=NOW_MS, threads=False)
    assert store.max_offset("S_del", 0) == 10
    assert store.close(NOW_MS)


def without_files(tmp_path: Path) -> Path:
    """A store that lost the files of topics that are still in its table."""
    root = unpack("clean", tmp_path)
    table = root / "config/topics.json"
    text = table.read_text()
    delete(root, GONE)
    table.write_text(text)
    return root


def test_one_of_which_the_table_tells_has_only_lost_its_files(tmp_path: Path) -> None:
    root = without_files(tmp_path)
    store = opened(root)
    assert [store.max_offset(topic, 0) for topic in GONE] == [2, 1]
    assert store.close(NOW_MS)


def test_without_a_table_nobody_knows(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    delete(root, GONE)
    (root / "config/topics.json").unlink()
    store = MessageStore.open(str(root), config("clean"), now_ms=NOW_MS, threads=False)
    assert [store.max_offset(topic, 0) for topic in GONE] == [2, 1]
    assert store.close(NOW_MS)


def test_without_any_queues_the_table_does_not_count(tmp_path: Path) -> None:
    """Copying a store without its queues, and adding another table, loses no topic."""
    root = unpack("clean", tmp_path)
    before = {topic: len(list((root / "consumequeue" / topic).iterdir())) for topic in USERS}
    delete(root, USERS)
    shutil.rmtree(root / "consumequeue")
    store = opened(root)
    for topic, count in before.items():
        assert sum(store.max_offset(topic, queue_id) for queue_id in range(count)) > 0
    assert store.close(NOW_MS)


def test_who_opens_it_need_not_have_asked_the_table(tmp_path: Path) -> None:
    root = without_files(tmp_path)
    store = MessageStore.open(str(root), config("clean"), now_ms=NOW_MS, threads=False)
    assert [store.max_offset(topic, 0) for topic in GONE] == [2, 1]
    assert store.close(NOW_MS)


@pytest.mark.parametrize("content", ["", "no table"])
def test_a_backup_of_the_table_does_not_tell(tmp_path: Path, content: str) -> None:
    """It is from before the last change, which may have created the topic."""
    root = unpack("clean", tmp_path)
    delete(root, GONE)
    table = root / "config/topics.json"
    table.rename(f"{table}.bak")
    table.write_text(content)
    store = MessageStore.open(str(root), config("clean"), now_ms=NOW_MS, threads=False)
    assert [store.max_offset(topic, 0) for topic in GONE] == [2, 1]
    assert store.close(NOW_MS)


@pytest.mark.parametrize("is_clean", [True, False])
def test_no_message_goes_for_a_checksum_that_its_sender_copied(*, is_clean: bool) -> None:
    """A broker of Apache's that adds none keeps it, where ours leaves it out."""
    disk = SimulatedFileSystem()
    store = simulated.opened(disk)
    copied = b"__XXXXX#\x010123456789\x02"
    for properties in (b"", copied, b"", copied, copied):
        store.put("T", 0, b"body", b"a\x01b\x02" + properties, Origin(1, 1, HOST))
        store.commit()
    assert store.close(1)
    log = f"/s/commitlog/{0:020d}"
    overwrite(disk, log, 0, content(disk, log).replace(b"__XXXXX#", b"__CRC32#"))
    take_our_notes(disk, 0)
    if is_clean:
        disk.remove("/s/abort")
    report = verified(disk, "/s", simulated.CONFIG)
    assert (report.findings, report.records) == ([], 5)
    assert bodies(simulated.opened(disk)) == [b"body"] * 5
    assert not disk.exists("/s/cut")
