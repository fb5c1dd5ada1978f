"""Verifying while a broker lets messages expire: these are no damage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import BATCHES, ROOT, SMALL, files_of, open_small_store, overwrite
from tests.store.records import HOST

from cometmq.store.checking.gone_meanwhile import GoneMeanwhile
from cometmq.store.checking.verify import verify
from cometmq.store.disk.filesystem import Entry
from cometmq.store.log.turn import Origin
from cometmq.store.looking.findings import Finding, Kind, Progress, Report
from cometmq.store.looking.inspection import inspect
from cometmq.store.message_store import MessageStore

CONFIG = replace(SMALL, checkpoint_bytes=4096, retention_size_max=6 * 4096)
NOW_MS = 1_700_000_000_000
INNER = b"INNER_NUM\x013\x02KEYS\x01k\x02"


def put(store: MessageStore, numbers: range) -> None:
    for number in numbers:
        now_ms = NOW_MS + number * 1500
        for topic, properties, flag in (("T", b"KEYS\x01k\x02", 0), (BATCHES, INNER, 0xC0)):
            store.put(topic, 0, b"x" * 150, properties, Origin(now_ms, now_ms, HOST, flag))
        store.commit()
        tick(store, now_ms)


def tick(store: MessageStore, now_ms: int) -> None:
    store.run_jobs()
    store.advance()
    store.tick(now_ms)


def expire(store: MessageStore, keep: int) -> None:
    """Let the log expire except for so many bytes, and everything that leads there."""
    store.configure(replace(CONFIG, retention_size_max=keep))
    for number in range(200):
        tick(store, NOW_MS + 1_000_000 + number * 10_000)


@pytest.mark.parametrize("stage", ["log", "blocks", "queues", "index", "ends of queues"])
@pytest.mark.parametrize("keep", [2 * 4096, 4 * 4096])
def test_what_expires_meanwhile_is_no_damage(stage: str, keep: int) -> None:
    disk = SimulatedFileSystem()
    store = open_small_store(disk, CONFIG)
    put(store, range(60))
    report, before = Report(100), set(files_of(disk, f"{ROOT}/consumequeue"))
    steps = verify(inspect(disk.other_process(), ROOT, CONFIG), report)
    assert next(step for step in steps if step.stage == stage) != Progress(stage, 0, 0)
    expire(store, keep)
    assert before - set(files_of(disk, f"{ROOT}/consumequeue"))
    for _ in steps:
        pass
    assert report.findings == []
    said = [note for note in report.notes if note.startswith("expired while this ran")]
    if report.is_complete and stage != "index":  # There the index does not miss what has expired.
        assert said == [
            f"expired while this ran, and not fully checked: the log up to {store.first_offset}"
        ]


def test_what_expires_while_the_store_is_first_looked_at_is_no_damage() -> None:
    """The log's first file was gone already, but the list of the queues' ends did not say so."""
    config = replace(CONFIG, consume_queue_file_size=20, batch_consume_queue_file_size=46)
    disk = SimulatedFileSystem()
    store = open_small_store(disk, config)
    put(store, range(60))
    ends = inspect(disk.other_process(), ROOT, config).ends
    expire(store, 3 * 4096)
    report = Report(100)
    for _ in verify(replace(inspect(disk.other_process(), ROOT, config), ends=ends), report):
        pass
    assert report.findings == []


def test_what_is_lost_while_something_expires_is_damage() -> None:
    """One queue lost an entry of a record that is still there, one a file that nobody let go."""
    disk = SimulatedFileSystem()
    store = open_small_store(disk, CONFIG)
    put(store, range(60))
    report = Report(100)
    steps = verify(inspect(disk.other_process(), ROOT, CONFIG), report)
    assert next(step.stage for step in steps if step.stage != "log") == "blocks"
    expire(store, 4 * 4096)
    first = store.min_offset("T", 0)
    assert 20 < first < 40
    overwrite(
        disk, f"{ROOT}/consumequeue/T/0/{400 * (first // 20):020d}", first % 20 * 20, bytes(20)
    )
    disk.remove(next(files_of(disk, f"{ROOT}/batchconsumequeue")))
    for _ in steps:
        pass
    found = {(each.kind, each.topic, each.queue_offset) for each in report.findings}
    assert (Kind.MISSING_ENTRY, "T", first) in found
    assert any(topic == BATCHES for _, topic, _ in found)


def test_the_log_is_listed_again_only_where_its_first_file_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be many findings, and many files."""
    disk = SimulatedFileSystem()
    store = open_small_store(disk, CONFIG)
    put(store, range(60))
    other, listed = disk.other_process(), list[str]()
    seen = inspect(other, ROOT, CONFIG)
    first = seen.segments.first_offset
    finding = Finding(
        kind=Kind.MISSING_ENTRY, path="", position=0, problem="", physical_offset=first
    )
    list_folder = other.list

    def counted(path: str) -> list[Entry]:
        listed.append(path)
        return list_folder(path)

    monkeypatch.setattr(other, "list", counted)
    gone = GoneMeanwhile(seen)
    assert [gone.explains(finding) for _ in range(3)] == [False] * 3
    assert listed == []
    expire(store, 4 * 4096)
    assert [gone.explains(finding) for _ in range(3)] == [True] * 3
    assert listed == [f"{ROOT}/commitlog"]
