"""The crash model: a store lives a few lives on a simulated disk, and each start is checked.

Each seed is one run. In each life the store is opened and does random work, until it is killed,
loses its power or is shut down. A life may end at any operation of the disk, even during a start or
a shutdown. For a power cut, several images of what the disk may hold are drawn, and each is opened
and checked by itself. During a life the disk may refuse room, a sync, or a write after its first
bytes.

The promises in the table of `History` are checked. In addition, the store must agree with the
oracle, which works from the log alone: after each start in its queues, read through the store, and
after each shutdown in the files of the ConsumeQueues and of the index.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from tests.crash.checks import (
    check_files,
    check_journal,
    check_left,
    check_promised,
    check_queue_files,
    check_queues,
    check_tools,
    log_of,
)
from tests.crash.disk import Killed, Moment, Operation, Partial, SimulatedFileSystem
from tests.crash.history import BrokenPromise, Ending, History, Sent, Uncovered
from tests.crash.oracle import BATCH_TOPIC
from tests.crash.spoilt import spoil
from tests.crash.subject import Subject
from tests.crash.tending import tend, write_topics

from cometmq.store.config import Flush, StoreConfig
from cometmq.store.errors import PutRefusedError, StoreFilesError, SyncFailedError
from cometmq.store.log.log_scan import LogScan

if TYPE_CHECKING:
    from collections.abc import Callable

LIVES_MAX = 4
STEPS_MAX = 30
JOURNALLED = 3
"""Seeds with this remainder modulo 4 take their few queues for very many, and write a journal."""
IMAGES_PER_CUT = 3
TOOLS_RATE = 0.05
"""The share of the stores shut down that the offline tools check, too."""
TENDED = 5
"""Seeds with this remainder modulo 8 have their store tended between its lives; see `tending`."""
SPOILT = (1, 7)
"""Seeds with these remainders modulo 8 spoil some images at each end of a life; see `spoilt`.

This does not affect what else they do. Those with the second remainder have a journal."""
LEFT_EACH = 3
"""Every third image of a run, beginning with the first, is checked offline before it is opened."""
DISK_SIZE = 4 << 20
QUEUES = range(2)
TOPICS = ("A", "B", "%RETRY%g", BATCH_TOPIC)


@dataclass
class Chaos:
    """The hook of one life: ends it at one operation, and refuses some before that."""

    rng: Random
    end_at: int
    fault_rate: float
    faults: int = 0
    struck: Operation | None = None
    moment: Moment = field(init=False)

    def __post_init__(self) -> None:
        self.moment = self.rng.choice(list(Moment))

    def __call__(self, operation: Operation) -> None:
        """End the process, refuse the operation, or let it pass."""
        if operation.number == self.end_at and operation.moment is self.moment:
            self.struck = operation
            killed = Killed(operation)
            if operation.verb == "write" and operation.moment is Moment.BEFORE:
                raise Partial(self.rng.randrange(4000), killed)
            raise killed
        if operation.moment is Moment.BEFORE and self.rng.random() < self.fault_rate:
            self._refuse(operation)

    def _refuse(self, operation: Operation) -> None:
        error = OSError(errno.EIO, "refused by the model", operation.path)
        self.faults += 1
        if operation.verb == "write":
            raise Partial(self.rng.randrange(4000), error)
        raise error


@dataclass
class Run:
    """The run of one seed."""

    rng: Random
    config: StoreConfig
    disk: SimulatedFileSystem
    history: History = field(default_factory=History)
    ending: Ending = Ending.CLOSED
    """The worst ending since the store was last opened."""
    images: int = 0
    """How many images were opened and checked."""
    spoilt: int = 0
    """How many more were spoilt, and then opened."""
    uncovered: int = 0
    """How many were given up because of `Uncovered`; spoilt ones do not count."""
    trace: list[str] = field(default_factory=list[str])
    now_ms: int = 1_700_000_000_000
    ticked_ms: int = 0
    """When the store last had a tick."""
    length: int = 1
    """How many times as long as usual its lives may be."""
    is_tended: bool = False
    knows_checked: bool = True
    """Whether the checkpoint is there, which says where records with a checksum begin."""
    has_cut: bool = False
    """Whether a repair cut the log since the last clean shutdown: entries may come back then."""
    subject: Subject | None = None
    chaos: Chaos | None = None

    def life(self) -> None:
        """Open the store, work, and end."""
        rng = self.rng
        kind = rng.choice(list(Ending))
        end_at = self.disk.operations + rng.randint(1, 120 * self.length)
        if kind is Ending.CLOSED and rng.random() < 0.7:
            end_at = 1 << 30
        self.chaos = Chaos(rng, end_at, rng.choice((0.0, 0.0, 0.01, 0.05)))
        self.disk.hook = self.chaos
        self.disk.total = DISK_SIZE
        closed = False
        try:
            closed = self._work()
        except Killed:
            self.trace.append(f"struck at {self.chaos.struck}")
        except OSError as error:
            self.trace.append(f"stopped by {error}")
            if not self.chaos.faults and error.errno != errno.ENOSPC:
                raise
        if self.subject is not None:
            self.history.note_first(self.subject.first_offset)
            self.subject = None
        if kind is Ending.CLOSED:
            kind = rng.choice((Ending.KILLED, Ending.POWER_CUT))
        if not closed:
            self.ending = max(self.ending, kind, key=lambda ending: ending.value)
        self._end(kind)

    def _end(self, kind: Ending) -> None:
        self.trace.append(f"ends by {kind.name}, to be checked as after {self.ending.name}")
        self.disk.hook = None
        dead = self.disk
        if kind is Ending.KILLED:
            self.disk = dead.kill()
            return
        self.disk = dead.power_cut(Random(self.rng.random()))
        for _ in range(IMAGES_PER_CUT - 1):
            seed = self.rng.random()
            image = dead.power_cut(Random(seed))
            other = Run(Random(seed), self.config, image, is_tended=self.is_tended)
            other.history = self.history.copy()
            other.ending, other.now_ms = self.ending, self.now_ms
            other.knows_checked, other.has_cut = self.knows_checked, self.has_cut
            other.trace = [*self.trace, "a sister image"]
            try:
                other.tend()
                other.last_life()
            except Uncovered:
                self.uncovered += 1
            finally:
                self.images += other.images
                if other.images == 0 or other.subject is not None:
                    self.trace = other.trace

    def end_tool(self, name: str, kind: Ending) -> None:
        """End the process of a tool, which had the store without serving it."""
        self.trace.append(f"{name} ends by {kind.name}")
        self.ending = max(self.ending, kind, key=lambda ending: ending.value)
        self.disk.hook = None
        if kind is Ending.POWER_CUT:
            self.disk = self.disk.power_cut(Random(self.rng.random()))
        elif kind is Ending.KILLED:
            self.disk = self.disk.kill()

    def tend(self) -> None:
        """Do what an operator may do while the store is stopped."""
        if self.is_tended:
            self.disk.hook = None
            self.disk.total = DISK_SIZE
            tend(self, lambda number: Chaos(self.rng, number, 0.0))

    def _work(self) -> bool:
        """Do random things; return whether the store was shut down and everything went well."""
        subject = self.open()
        for _ in range(self.rng.randint(1, STEPS_MAX * self.length)):
            step = self.rng.choices(_STEPS, _WEIGHTS)[0]
            if self.is_tended and step is delete:
                continue
            self.trace.append(f"{self.disk.operations} {step.__name__}")
            step(self, subject)
            self.history.check_synced(subject.synced_offset)
            self._check_kept(subject)
            if subject.has_failed:
                self.trace.append("the store says that it must stop")
                return False
        return self.close(subject)

    def _check_kept(self, subject: Subject) -> None:
        """Check that no more is gone than the quota, or a disk filling up, asked for."""
        before = self.history.first_offset
        self.history.note_first(subject.first_offset)
        quota = self.config.retention_size_max
        if subject.first_offset == before or self.config.disk_used_percent_force < 100:
            return
        if quota is None or subject.kept_size + self.config.segment_size <= quota:
            raise BrokenPromise(f"{subject.kept_size} bytes are kept, the quota is {quota}")

    def open(self) -> Subject:
        """Open the store and check what it found."""
        check_journal(self.disk)
        if self.images % LEFT_EACH == 0:
            check_left(self.disk, self.config)
        try:
            subject = Subject(self.disk, self.config, self.now_ms)
        except StoreFilesError as error:
            raise BrokenPromise(f"the store does not open: {error}") from error
        self.images += 1
        self.subject = subject
        self.ticked_ms = 0
        try:
            is_covered = self.config.record_crc and self.knows_checked
            self.history.check_log(log_of(self.disk), self.ending, is_covered=is_covered)
        except Uncovered:
            check_promised(subject, self.history.promised(self.ending))
            raise
        self.ending, self.knows_checked = Ending.CLOSED, True
        if self.history.deleting is not None:
            topic, _ = self.history.deleting
            is_done = all(subject.range_of(topic, number) == (0, 0) for number in QUEUES)
            self.history.note_deletion(is_done=is_done)
        check_queues(subject, log_of(self.disk), self.history)
        self.trace.append(f"open, {len(self.history.committed)} messages")
        return subject

    def close(self, subject: Subject) -> bool:
        """Shut the store down and check its files; return whether the shutdown was clean."""
        is_clean = subject.close(self.now_ms)
        self.subject = None
        self.trace.append(f"closed, {'' if is_clean else 'not '}cleanly")
        if not is_clean:
            if self.chaos is None or not (self.chaos.faults or self.disk.space("/").free < 1 << 20):
                raise BrokenPromise("a shutdown without any trouble was not clean")
            return False
        self.has_cut = False
        log = log_of(self.disk)
        self.history.check_synced(log.end)
        self.history.note_first(max(log.start, self.history.first_offset))
        if self.is_tended:  # The log does not tell how its index came about.
            check_queue_files(self.disk, log, self.history, self.config)
        else:
            check_files(self.disk, log, self.history, self.config)
        if self.is_tended or self.rng.random() < TOOLS_RATE:
            check_tools(self.disk, self.history, self.config)
        return True

    def last_life(self) -> None:
        """Open the image twice without any fault: the second start must find the same."""
        self.disk.hook = self.chaos = None
        self.disk.total = DISK_SIZE
        self.close(self.open())
        self.close(self.open())


def turn(run: Run, subject: Subject) -> None:
    """Put some messages and commit them."""
    run.now_ms += run.rng.choice((0, 1, 900, 5000))
    run.disk.now_ms = run.now_ms
    try:
        for _ in range(run.rng.choice((1, 1, 2, 3, 8, 30))):
            run.history.in_flight.append(_put(run, subject))
    except PutRefusedError as error:
        run.trace.append(f"put refused: {error}")
    assert run.chaos is not None or run.disk.hook is None
    faults = run.chaos.faults if run.chaos else 0
    try:
        subject.commit()
    except SyncFailedError as error:
        run.trace.append(f"sync failed: {error}")
    except PutRefusedError as error:
        run.trace.append(f"turn refused: {error}")
        if run.chaos is not None and run.chaos.faults > faults + 1:
            run.history.doubtful = run.history.in_flight
        run.history.in_flight = []
    else:
        run.history.committed += run.history.in_flight
        if run.history.in_flight:  # Otherwise nothing was written, so nothing was erased first.
            run.history.doubtful = []
        run.history.in_flight = []


def _put(run: Run, subject: Subject) -> Sent:
    rng = run.rng
    topic, queue_id = rng.choice(TOPICS), rng.choice(QUEUES)
    body = rng.randbytes(rng.choice((0, 10, 100, 700, 3000)))
    properties = {"UNIQ_KEY": f"{rng.getrandbits(64):016X}"}
    if rng.random() < 0.5:
        properties["TAGS"] = rng.choice(("a", "b", "tag"))
    if rng.random() < 0.3:
        properties["KEYS"] = f"k{rng.randrange(9)} k{rng.randrange(9)}"
    count = 1
    if topic == BATCH_TOPIC and rng.random() < 0.7:
        count = rng.randint(1, 5)
        properties["INNER_NUM"] = str(count)
    pending = sum(
        sent.batch_size
        for sent in run.history.in_flight
        if (sent.topic, sent.queue_id) == (topic, queue_id)
    )
    appended = subject.put(topic, queue_id, body, properties, run.now_ms)
    expected = run.history.next_queue_offset(topic, queue_id) + pending
    if appended.queue_offset != expected:
        raise BrokenPromise(f"queue offset {appended.queue_offset} was given, not {expected}")
    return Sent(
        topic,
        queue_id,
        appended.queue_offset,
        appended.physical_offset,
        appended.size,
        body,
        properties,
        run.now_ms,
        count,
    )


def sync(run: Run, subject: Subject) -> None:
    """Let the threads take a step."""
    subject.sync()
    if run.config.flush is Flush.ASYNC and not subject.has_failed:
        run.history.check_synced(subject.synced_offset)
        run.history.check_interval(run.ticked_ms - run.config.flush_interval_ms)


def upkeep(run: Run, subject: Subject) -> None:
    """Let the background work proceed a little."""
    run.now_ms += run.rng.choice((0, 100, 2000))
    subject.upkeep(run.now_ms)
    run.ticked_ms = run.now_ms


def checkpoint(run: Run, subject: Subject) -> None:
    """Make a checkpoint."""
    subject.checkpoint(run.now_ms)


def read(run: Run, subject: Subject) -> None:
    """Read all queues: what may be read must be what was committed, and as safe as promised."""
    log = log_of(run.disk)
    check_queues(subject, log, run.history, only_synced=run.config.flush is Flush.SYNC)


def delete(run: Run, subject: Subject) -> None:
    """Delete a topic, which may come back later."""
    topic = run.rng.choice(TOPICS)
    run.history.deleting = (topic, subject.end_offset)
    subject.delete(topic)
    run.history.note_deletion(is_done=True)


def fill_disk(run: Run, subject: Subject) -> None:
    """Leave no room on the disk, or only a little."""
    space = run.disk.space("/")
    run.disk.total = space.total - space.free + run.rng.choice((0, 4096, 20_000))


def empty_disk(run: Run, subject: Subject) -> None:
    """Make room."""
    run.disk.total = DISK_SIZE


_TABLE: list[tuple[int, Callable[[Run, Subject], None]]] = [
    (40, turn),
    (20, sync),
    (15, upkeep),
    (6, checkpoint),
    (4, read),
    (2, delete),
    (2, fill_disk),
    (4, empty_disk),
]
_WEIGHTS = [weight for weight, _ in _TABLE]
_STEPS = [step for _, step in _TABLE]


def config_for(rng: Random) -> StoreConfig:
    """Small sizes, so that everything rolls over, and both ways to flush."""
    segment_size = rng.choice((8192, 16_384, 65_536))
    minds_the_disk = rng.random() < 0.2
    return StoreConfig(
        segment_size=segment_size,
        consume_queue_file_size=20 * rng.choice((5, 20)),
        batch_consume_queue_file_size=46 * rng.choice((3, 20)),
        index_slots=16,
        index_items=rng.choice((20, 200)),
        flush=rng.choice(list(Flush)),
        zero_ahead_size=rng.choice((0, 4096, 16_384, 1 << 20)),
        checkpoint_bytes=rng.choice((10_000, 1 << 20)),
        hot_size=rng.choice((4096, 1 << 20)),
        consume_queue_files_max=rng.choice((1, 8)),
        segment_maps_max=rng.choice((1, 8)),
        record_crc=rng.random() < 0.3,
        integrity=rng.random() < 0.8,
        retention_size_max=rng.choice((None, segment_size, 3 * segment_size)),
        retention_interval_ms=2000,
        disk_used_percent_force=85 if minds_the_disk else 100,
        disk_used_percent_max=90 if minds_the_disk else 100,
    )


def run_seed(seed: int, *, spoils: bool = True) -> Run:
    """Run one seed to its end; a `BrokenPromise`, or whatever the store raises, is a finding.

    The error gets the run's trace as a note, so that it tells how it came about. Without `spoils`
    no images are spoilt; in the seeds that do it, spoiling takes most of the time.
    """
    rng = Random(seed)
    run = Run(rng, config_for(rng), SimulatedFileSystem(total=DISK_SIZE))
    if seed % 4 == JOURNALLED:
        run.config = replace(
            run.config,
            consume_queue_journal_queues_min=1,
            consume_queue_unwritten_size_max=rng.choice((2400, 1 << 20)),
        )
        run.length = rng.choice((1, 2, 4))
    if seed % 8 == TENDED:
        run.is_tended = True
        write_topics(run.disk, TOPICS)
    usual = LogScan.stretches_after
    # The logs here are too short for stretches; every other seed looks for them early all the same.
    LogScan.stretches_after = usual if seed % 2 else 2
    try:
        for _ in range(rng.randint(1, LIVES_MAX)):
            run.life()
            if spoils and seed % 8 in SPOILT:
                run.spoilt += spoil(run, Random(f"{seed} {run.images}"), TOPICS, DISK_SIZE)
            run.tend()
        run.chaos = None
        run.last_life()
    except Uncovered:
        run.uncovered += 1
    except BaseException as error:
        error.add_note(f"seed {seed}:\n  " + "\n  ".join([str(run.config), *run.trace]))
        raise
    finally:
        LogScan.stretches_after = usual
    return run
