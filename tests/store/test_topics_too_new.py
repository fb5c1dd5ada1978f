"""Topics that are newer than a store's notes: none is taken for a deleted one.

A kill may come before the table of topics is saved, and all but the log may be from an older copy.
Neither the table nor a file of a queue shows such a topic, but a start reads its messages back.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import tests.store.test_apache_deletions as apache
from tests.crash.disk import Killed, Operation, SimulatedFileSystem
from tests.store.apache_stores import config, unpack
from tests.store.damaged_stores import contents, damage, flip, repaired, verified
from tests.store.held_stores import bodies
from tests.store.test_deletions import CONFIG, ROOT, opened, put
from tests.store.test_rebuilding import rebuilt

from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.log.log_scan import LogScan
from cometmq.store.looking.inspection import looking_at
from cometmq.store.upkeep.checkpoint import load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cometmq.store.message_store import MessageStore

MESSAGES = [b"%d" % number for number in range(20)]


def known() -> SimulatedFileSystem:
    """Make a store whose table has its one topic."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, *MESSAGES)
    assert store.close(1)
    write_table(disk)
    return disk


def write_table(disk: SimulatedFileSystem) -> None:
    disk.make_directories(f"{ROOT}/config")
    file = disk.open(f"{ROOT}/config/topics.json", create=True)
    file.write(json.dumps({"topicConfigTable": {"T": {"topicName": "T"}}}).encode(), 0)
    file.close()


def put_new(disk: SimulatedFileSystem) -> MessageStore:
    store = opened(disk)
    put(store, *MESSAGES, topic="New")
    put(store, b"last")
    return store


def killed() -> SimulatedFileSystem:
    """Make such a store that was killed before it wrote anything but the log."""
    disk = known()
    put_new(disk)
    return disk.kill()


def older_but_for_the_log() -> SimulatedFileSystem:
    """Make one of which all but the log is from a copy from before the topic was created."""
    copy, disk = known(), known()
    assert put_new(disk).close(1)
    for path, data in contents(disk).items():
        if path.startswith(f"{ROOT}/commitlog/"):
            file = copy.open(path, create=True)
            file.write(data, 0)
            file.close()
    return copy


def killed_with_an_old_name() -> SimulatedFileSystem:
    """Make a killed one in which Apache once deleted a topic of that name."""
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, *MESSAGES, topic="New")
    store.delete_topics(["New"])
    put(store, *MESSAGES)
    end = store.end_offset
    assert store.close(1)
    apache.take_our_notes(disk, end)
    disk.remove(f"{ROOT}/abort")
    write_table(disk)
    assert opened(disk).close(1)
    put_new(disk)
    return disk.kill()


def rebuild(disk: SimulatedFileSystem) -> None:
    assert not rebuilt(disk, ROOT, CONFIG).deleted_topics


def repair(disk: SimulatedFileSystem) -> None:
    """Damage an earlier message, and have it stepped over."""
    with looking_at(disk, ROOT, CONFIG) as left:
        damage(disk, list(LogScan(left.segments, 0))[3])
    repaired(disk, ROOT, CONFIG)


def look(disk: SimulatedFileSystem) -> None:
    assert not verified(disk, ROOT, CONFIG).records_of_deleted_topics


@pytest.mark.parametrize("tool", [look, rebuild, repair])
@pytest.mark.parametrize("store", [killed, older_but_for_the_log])
def test_no_tool_takes_one_for_deleted(
    store: Callable[[], SimulatedFileSystem], tool: Callable[[SimulatedFileSystem], None]
) -> None:
    disk = store()
    tool(disk)
    again = opened(disk)
    assert bodies(again, "New") == MESSAGES
    assert bodies(again)[-1] == b"last"
    assert again.close(1)
    assert verified(disk, ROOT, CONFIG).is_sound


@pytest.mark.parametrize("tool", ["verify", "rebuild"])
def test_nor_where_one_of_the_same_name_was_deleted_before(tool: str) -> None:
    """Only messages before those that our checkpoint covers belong to the deleted one."""
    disk = killed_with_an_old_name()
    if tool == "verify":
        assert verified(disk, ROOT, CONFIG).records_of_deleted_topics == len(MESSAGES)
    else:
        assert rebuilt(disk, ROOT, CONFIG).deleted_topics == {"New": len(MESSAGES)}
    again = opened(disk)
    assert bodies(again, "New") == MESSAGES
    assert again.close(1)
    assert verified(disk, ROOT, CONFIG).is_sound


def test_a_cut_that_is_killed_and_done_again_keeps_no_offset_of_a_deleted_topic(
    tmp_path: Path,
) -> None:
    """It is killed after the first of its checkpoints, which are ours, and before the cut."""
    root = unpack("clean", tmp_path)
    flip(RealFileSystem(), str(root / "commitlog/00000000000000131072"), 350)
    disk = apache.on_a_disk(root)

    def kill(operation: Operation) -> None:
        if operation.verb == "create" and operation.path == f"{root}/abort":
            raise Killed(operation)

    disk.hook = kill
    with pytest.raises(Killed):
        repaired(disk, str(root), config("clean"), cut=True)
    disk = disk.kill()
    assert load_checkpoint(disk, f"{root}/checkpoint").claims is not None
    repaired(disk, str(root), config("clean"), cut=True)
    assert apache.opened(root, disk).max_offset("S_del", 0) == 0
