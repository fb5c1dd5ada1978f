"""A copy of a queue's folder among the queues is told as that, and can be moved elsewhere."""

from __future__ import annotations

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    SMALL,
    content,
    contents,
    files_of,
    small_store,
    verified,
)
from tests.store.test_rebuilding import rebuilt

from cometmq.store.looking.findings import Kind
from cometmq.store.message_store import MessageStore

SIMPLE, BATCH = "consumequeue", "batchconsumequeue"


def opened(disk: SimulatedFileSystem) -> MessageStore:
    return MessageStore.open(
        ROOT,
        SMALL,
        now_ms=1,
        filesystem=disk,
        is_batch_topic=lambda topic: topic.startswith("B"),  # A copy as well.
        threads=False,
    )


def copy(disk: SimulatedFileSystem, source: str, target: str) -> None:
    for path in list(files_of(disk, source)):
        data, other = content(disk, path), path.replace(source, target, 1)
        disk.make_directories(other.rpartition("/")[0])
        file = disk.open(other, create=True)
        file.resize(len(data))
        file.write(data, 0)
        file.close()


def remove(disk: SimulatedFileSystem, folder: str) -> None:
    for path in list(files_of(disk, folder)):
        disk.remove(path)


def findings(disk: SimulatedFileSystem) -> list[tuple[Kind, str, str]]:
    found = verified(disk).findings
    return [(each.kind, each.path.removeprefix(f"{ROOT}/"), each.problem) for each in found]


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize(
    ("kind", "topic", "other"),
    [(SIMPLE, "T", "T.bak"), (SIMPLE, "T", "T-2"), (BATCH, BATCHES, "B-2")],
)
def test_a_copy_is_misplaced_and_neither_a_rebuild_nor_a_start_adopts_it(
    kind: str, topic: str, other: str, is_clean: bool
) -> None:
    disk = small_store(close=is_clean)
    disk = disk if is_clean else disk.kill()
    if not is_clean:
        assert opened(disk).close(1)
        opened(disk)
        disk = disk.kill()
    original, there = f"{ROOT}/{kind}/{topic}", f"{ROOT}/{kind}/{other}"
    copy(disk, original, there)
    before, told = contents(disk, there), findings(disk)
    assert told
    for queue_id, finding in enumerate(told):
        problem = f"a copy of queue {queue_id} of {topic}: move it elsewhere"
        assert finding == (Kind.MISPLACED, f"{kind}/{other}/{queue_id}", problem)
    rebuilt(disk)
    assert contents(disk, there) == before
    assert findings(disk) == told
    assert opened(disk).close(1)
    remove(disk, there)
    assert findings(disk) == []
    assert opened(disk).close(1)


@pytest.mark.parametrize(("kind", "topic"), [(SIMPLE, "T"), (BATCH, BATCHES)])
def test_a_folder_that_was_renamed_is_no_copy_until_the_original_is_made_again(
    kind: str, topic: str
) -> None:
    disk = small_store()
    copy(disk, f"{ROOT}/{kind}/{topic}", f"{ROOT}/{kind}/Other")
    remove(disk, f"{ROOT}/{kind}/{topic}")
    assert {Kind.MISSING_ENTRY, Kind.EXTRA_ENTRY} <= {found for found, _, _ in findings(disk)}
    rebuilt(disk)
    assert {found for found, _, _ in findings(disk)} == {Kind.MISPLACED}
    remove(disk, f"{ROOT}/{kind}/Other")
    assert findings(disk) == []
