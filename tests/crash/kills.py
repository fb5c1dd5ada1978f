"""Real kills of a writer on the real disk, at each named point: `python -m tests.crash.kills`.

A point is a moment, a verb and a kind of file: "before sync checkpoint.new". A first run without a
kill finds all points. Then, for each, a writer is forked that kills itself (SIGKILL) when it passes
the point for the n-th time. A second writer opens what the first left and is killed at a random
point, often during its start. The last start is checked as in the model.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import traceback
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

from tests.crash.checks import check_files, check_queues, log_of
from tests.crash.disk import Operation
from tests.crash.history import BrokenPromise, Ending, History, Sent
from tests.crash.hooked import HookedFileSystem, failpoint_of
from tests.crash.subject import Subject

from cometmq.store.config import Flush, StoreConfig
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.errors import PutRefusedError

if TYPE_CHECKING:
    from typing import IO

STEPS = 40
NOW_MS = 1_700_000_000_000


def config_for(flush: Flush) -> StoreConfig:
    """Small sizes, so that each kind of operation happens in a short life."""
    return StoreConfig(
        segment_size=16_384,
        consume_queue_file_size=20 * 10,
        index_slots=16,
        index_items=30,
        flush=flush,
        record_crc=True,
        consume_queue_journal_queues_min=1 if flush is Flush.ASYNC else 1024,
        zero_ahead_size=16_384,
        disk_used_percent_force=100,  # However full the disk is that this runs on.
        disk_used_percent_max=100,
    )


def write(
    root: str, config: StoreConfig, rng: Random, disk: HookedFileSystem, out: IO[str]
) -> None:
    """One life of a writer, which tells what it did, line by line."""

    def tell(*what: Any) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    subject = Subject(disk, config, NOW_MS, root)
    tell("opened", subject.end_offset)
    for step in range(STEPS):
        now_ms = NOW_MS + 500 * step
        for _ in range(rng.randint(1, 6)):
            _put(subject, rng, now_ms, tell)
        try:
            subject.commit()
            tell("committed")
        except PutRefusedError:
            tell("refused")
        if rng.random() < 0.5:
            subject.sync()
        tell("synced", subject.synced_offset)
        if rng.random() < 0.5:
            subject.upkeep(now_ms)
        if rng.random() < 0.1:
            subject.checkpoint(now_ms)
    subject.close(NOW_MS)
    tell("closed")


def _put(subject: Subject, rng: Random, now_ms: int, tell: Any) -> None:
    topic, queue_id = rng.choice("AB"), rng.randrange(2)
    body = rng.randbytes(rng.choice((10, 300, 1500)))
    properties = {"UNIQ_KEY": f"{rng.getrandbits(64):016X}", "TAGS": rng.choice(("a", "b"))}
    done = subject.put(topic, queue_id, body, properties, now_ms)
    place = (done.queue_offset, done.physical_offset, done.size)
    tell("put", topic, queue_id, *place, body.hex(), properties)


def life(root: str, config: StoreConfig, seed: int, point: str | None, hit: int) -> list[list[Any]]:
    """Fork a writer that kills itself at a point; return what it said until then."""
    incoming, outgoing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(incoming)
        passed: Counter[str] = Counter()

        def hook(operation: Operation) -> None:
            name = failpoint_of(operation, root)
            passed[name] += 1
            if name == point and passed[name] == hit:
                os.kill(os.getpid(), signal.SIGKILL)

        status = 1
        try:
            with os.fdopen(outgoing, "w") as out:
                write(root, config, Random(seed), HookedFileSystem(RealFileSystem(), hook), out)
                out.write(json.dumps(["points", passed]) + "\n")
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(outgoing)
    with os.fdopen(incoming) as lines:
        said = [json.loads(line) for line in lines if line.endswith("\n")]
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) not in (0, -signal.SIGKILL):
        raise BrokenPromise("the writer failed; see above")
    return said


def follow(history: History, said: list[list[Any]]) -> None:
    """Note what a writer said that it did."""
    for word, *rest in said:
        match word:
            case "opened":
                sent = history.committed + history.in_flight
                kept = [one for one in sent if one.end <= rest[0]]
                if len(kept) < len(history.committed):
                    raise BrokenPromise("a start lost messages that were committed")
                history.committed, history.in_flight = kept, []
                history.synced_offset = rest[0]
            case "put":
                topic, queue_id, queue_offset, physical_offset, size, body, properties = rest
                history.in_flight.append(
                    Sent(
                        topic,
                        queue_id,
                        queue_offset,
                        physical_offset,
                        size,
                        bytes.fromhex(body),
                        properties,
                    )
                )
            case "committed":
                history.committed += history.in_flight
                history.in_flight = []
            case "refused":
                history.in_flight = []
            case "synced":
                history.check_synced(rest[0])
            case _:
                pass


def kill_at(point: str, points: Counter[str], flush: Flush, seed: int) -> None:
    """Kill a writer at one point, the next one at another, and check what is left."""
    rng = Random(f"{point} {flush} {seed}")
    config = config_for(flush)
    disk = RealFileSystem()
    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/store"
        history = History()
        follow(history, life(root, config, seed, point, rng.randint(1, points[point])))
        second = rng.choice(sorted(points))
        follow(history, life(root, config, seed + 1, second, rng.randint(1, 3)))
        subject = Subject(disk, config, NOW_MS, root)
        log = log_of(disk, root)
        history.check_log(log, Ending.KILLED, is_covered=True)
        check_queues(subject, log, history)
        if not subject.close(NOW_MS):
            raise BrokenPromise("a shutdown without any trouble was not clean")
        check_files(disk, log, history, config, root)


def find_points(flush: Flush) -> Counter[str]:
    """Let a writer live to its end; return the points that it passed, and how often."""
    with tempfile.TemporaryDirectory() as folder:
        said = life(f"{folder}/store", config_for(flush), 1, None, 0)
    return Counter(said[-1][1])


def main() -> int:
    """Kill writers at all points, or at every n-th."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.kills", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take only every n-th point")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    failures = kills = 0
    names: set[str] = set()
    for flush in Flush:
        points = find_points(flush)
        names |= points.keys()
        for point in sorted(points)[:: arguments.every]:
            kills += 1
            try:
                kill_at(point, points, flush, arguments.seed)
            except Exception:
                failures += 1
                sys.stderr.write(f"{point}, {flush}\n")
                traceback.print_exc()
    sys.stdout.write(f"{kills} kills at {len(names)} named points, {failures} failures\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
