"""What an operator may do to a stopped store, in those runs of the model that are tended.

The index is turned off or on, its folder or the checkpoint is removed, the queues are rebuilt, and
the log is damaged and repaired. A rebuild or a repair may end anywhere, like any other process.
Such a run deletes no topics: where a power cut brings back what was deleted, a rebuild keeps its
offsets, and the model cannot express that.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.crash.disk import Killed
from tests.crash.history import BrokenPromise, Ending
from tests.crash.oracle import BATCH_TOPIC, ROOT
from tests.crash.repairs import damage_and_repair

from cometmq.store.errors import StoreFilesError
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending.rebuilding import Rebuilt, rebuild
from cometmq.store.queues.queue_ends import listed_to, load_queue_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.crash.disk import Operation, SimulatedFileSystem
    from tests.crash.model import Run

INDEX = f"{ROOT}/index"
CHECKPOINT = f"{ROOT}/checkpoint"


def write_topics(disk: SimulatedFileSystem, topics: Iterable[str]) -> None:
    """Write the table of topics and their kinds, as a broker does: a rebuild reads it."""
    table = {
        topic: {
            "topicName": topic,
            "attributes": {"queue.type": "BatchCQ"} if topic == BATCH_TOPIC else {},
        }
        for topic in topics
    }
    folder = f"{ROOT}/config"
    disk.make_directories(folder)
    file = disk.open(f"{folder}/topics.json", create=True)
    file.write(json.dumps({"dataVersion": {}, "topicConfigTable": table}).encode(), 0)
    file.sync()
    file.close()
    for each in (folder, ROOT, "/"):
        disk.sync_directory(each)


def tend(run: Run, ends_at: Callable[[int], Callable[[Operation], None]]) -> None:
    """Do some of that at random; `ends_at` makes the hook that ends a process at an operation."""
    rng = run.rng
    if rng.random() < 0.3:
        run.config = replace(run.config, index=not run.config.index)
        run.trace.append(f"the index is {'on' if run.config.index else 'off'}")
    if rng.random() < 0.2 and run.disk.exists(INDEX):
        for entry in run.disk.list(INDEX):
            run.disk.remove(f"{INDEX}/{entry.name}")
        run.disk.sync_directory(INDEX)  # If half of it came back, the index would have holes.
        run.disk.remove_directory(INDEX)
        run.disk.sync_directory(ROOT)
        run.trace.append("the index is removed")
    if rng.random() < 0.15 and run.disk.exists(CHECKPOINT) and _names_records(run.disk):
        run.disk.remove(CHECKPOINT)
        run.disk.sync_directory(ROOT)
        run.knows_checked = False
        run.trace.append("the checkpoint is lost")
    while rng.random() < 0.4 and run.disk.exists(f"{ROOT}/commitlog"):
        if rng.random() < 0.5:
            run.disk.hook = ends_at(run.disk.operations + rng.randint(1, 250))
        _rebuild(run)
    if rng.random() < 0.3 and run.disk.exists(f"{ROOT}/commitlog"):
        damage_and_repair(run, ends_at)


def _names_records(disk: SimulatedFileSystem) -> bool:
    """Whether the list of the queues' ends tells a torn record from a sound one in the tail.

    If nothing says what was promised, all records that look sound count, because in a store of
    Apache's numbers may begin again. A torn number then takes earlier records out of its queue.
    """
    ends = load_queue_ends(disk, ROOT)
    return ends is not None and listed_to(ends) > 0


def _rebuild(run: Run) -> None:
    kind = run.rng.choice((Ending.CLOSED, Ending.CLOSED, Ending.POWER_CUT))
    done = Rebuilt()
    try:
        for _ in rebuild(inspect(run.disk, ROOT, run.config), done, run.now_ms):
            pass
        run.trace.append(f"rebuilt, {done}")
    except Killed as killed:
        kind = run.rng.choice((Ending.KILLED, Ending.POWER_CUT))
        run.trace.append(f"rebuild struck at {killed}")
    except StoreFilesError as error:
        raise BrokenPromise(f"it is not rebuilt: {error}") from error
    run.end_tool("rebuild", kind)
