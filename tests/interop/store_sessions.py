"""Opening a store of ours for a while: in this process, or in one that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.interop.store_content import INNER, Known, clock, store_config, write, write_turn

from cometmq.store.message_store import MessageStore
from cometmq.store.queues.entry_journal import JOURNAL_FOLDER

if TYPE_CHECKING:
    from collections.abc import Generator

REPOSITORY = Path(__file__).parents[2]
FOREVER = 1_000_000
PIPE_SIZE = 16_384
"""How far a writer may be ahead of its killer: some 90 messages, also on a busy machine.

After a kill Apache restores the keys of ten segments at most.
"""


JOURNALLED_COUNT = 300
"""After this many messages some entries are in a journal, which Apache does not know."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_store(root: Path, **settings: Any) -> MessageStore:
    return MessageStore.open(
        str(root),
        store_config(**settings),
        now_ms=now_ms(),
        is_batch_topic=lambda topic: topic == INNER,
    )


@contextmanager
def opened(root: Path, **settings: Any) -> Generator[MessageStore]:
    """Open a store, and shut it down cleanly in the end."""
    store = open_store(root, **settings)
    yield store
    assert store.close(now_ms())


def write_and_close(
    root: Path, first: int, count: int, *, before_ms: int = 0, **settings: Any
) -> list[Known]:
    """Write at least `count` messages, from a number and a time on."""
    with opened(root, **settings) as store:
        return write(store, first, count, now_ms() - before_ms)


def write_and_be_killed(root: Path, first: int, count: int) -> list[Known]:
    """Have a process write, and kill it midway, once it has reported `count` messages."""
    paths = [str(REPOSITORY), *sys.path]
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.interop.store_sessions", str(root), str(first)],
        stdout=subprocess.PIPE,
        pipesize=PIPE_SIZE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        text=True,
    )
    told: list[Known] = []
    try:
        assert writer.stdout is not None
        with writer.stdout:
            for line in writer.stdout:
                if line.endswith("\n"):
                    told.append(Known.from_line(line))
                if len(told) == count:
                    writer.kill()
    finally:
        writer.kill()
        writer.wait()
    assert len(told) >= count, "the writer ended by itself"
    assert (root / "abort").exists()
    if count >= JOURNALLED_COUNT:
        assert list((root / JOURNAL_FOLDER).iterdir()), "no entries wait in a journal"
    return told


def main() -> None:
    """Write, and report each message once its turn is committed, until killed."""
    root, first = Path(sys.argv[1]), int(sys.argv[2])
    # Checkpoints are frequent, so the kill comes some time after one; some name a journal.
    store = open_store(root, checkpoint_bytes=60_000, consume_queue_journal_queues_min=1)
    times = clock(now_ms())
    for _ in range(FOREVER):
        turn = write_turn(store, first, times)
        first += len(turn)
        sys.stdout.writelines(f"{known.to_line()}\n" for known in turn)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
