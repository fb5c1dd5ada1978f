"""What may come of a store that was spoilt: see `spoiling` for how.

=======================  ==========================================================================
where the damage is      what a start may do
=======================  ==========================================================================
the log, promised        refuse it, naming the place, with no byte changed; `repair` then keeps all
                         that is sound
the log, unpromised      the same, or cut in front of it
the log's first file     the same, or begin behind it, as if it had expired
queues                   refuse it, naming the queue; or serve all others, and refuse what is
                         damaged of this one; or make it again. `rebuild` gives all of it back
all else                 exactly what it would have done
=======================  ==========================================================================

Never is another message read than was put, never a number given out twice that was promised, and
never does `verify` call a store sound that lacks something. In the end, whatever was refused or
mended, the files are those that the oracle makes of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tests.crash.checks import (
    check_queue_files,
    check_queues,
    files_of,
    log_of,
)
from tests.crash.history import BrokenPromise, Ending, History, Sent, Uncovered
from tests.crash.oracle import ROOT, Log
from tests.crash.repairs import sent_of
from tests.crash.spoiling import (
    CHECKPOINT,
    COVERED,
    ENDS,
    LOG,
    QUEUE_FOLDERS,
    Damage,
    choose,
    files_below,
    inflict,
)
from tests.crash.subject import Subject
from tests.crash.tending import write_topics

from cometmq.store.checking.verify import verify
from cometmq.store.errors import PutRefusedError, StoreFilesError
from cometmq.store.looking.findings import Kind, Report
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.store_reader import StoreReader
from cometmq.store.mending.placeholders import FILLER_TOPIC
from cometmq.store.mending.rebuilding import Rebuilt, rebuild
from cometmq.store.mending.repairing import Plan, carry_out, make_plan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.crash.disk import SimulatedFileSystem
    from tests.crash.model import Run
    from tests.crash.oracle import Record

    from cometmq.store.config import StoreConfig

IMAGES_EACH = 3
"""How many images of each end of a life are spoilt."""
MENDS_MAX = 3
KEYS_MAX = 12
"""Messages that are looked for by their keys, each time."""
OF_THE_LOG = {Kind.RECORD, Kind.BLOCK, Kind.LOST_MESSAGE}
MADE_BY_A_START = {Kind.CHECKPOINT, Kind.QUEUE_ENDS}

Queue = tuple[str, int]


def spoil(run: Run, rng: Random, topics: Iterable[str], disk_size: int) -> int:
    """Cut the power some times where a run stands, spoil what is left, and check what comes of it.

    The run itself goes on as if nothing had been. Returns how many images were looked at.
    """
    if run.history.deleted or run.history.deleting:
        return 0  # As of a tended run: the model has no word for what a rebuild makes of that.
    dead, count = run.disk, 0
    run.disk = dead.kill()
    for _ in range(IMAGES_EACH):
        image = dead.power_cut(Random(rng.random()))
        image.total = disk_size
        spoilt = Spoilt(image, run.config, run.history.copy(), run.ending, run.now_ms)
        try:
            count += spoilt.run(rng, topics)
        except Uncovered:  # As where the flipped bit is in a field that nothing covers.
            count += 1
        except BaseException as error:
            error.add_note("spoilt:\n  " + "\n  ".join(spoilt.trace))
            raise
    return count


@dataclass
class Spoilt:
    """One image."""

    disk: SimulatedFileSystem
    config: StoreConfig
    history: History
    ending: Ending
    now_ms: int
    known: int = 0
    """How far the store knows the log to be on the disk."""
    safe: int = 0
    """How far that was promised, or is known."""
    hurt: set[Queue] = field(default_factory=set[Queue])
    """Queues that were refused, in whole or in part."""
    unknown: set[Queue] = field(default_factory=set[Queue])
    """Queues of which nothing is left in the log: what their next number is, nobody can say."""
    puts: int = 0
    trace: list[str] = field(default_factory=list[str])

    def run(self, rng: Random, topics: Iterable[str]) -> bool:
        """Spoil it and judge; False when there was nothing to spoil."""
        if not self.disk.exists(LOG):
            return False
        write_topics(self.disk, topics)
        if self.ending is not Ending.CLOSED:
            self.ending = Ending.POWER_CUT
        intact = log_of(self.disk)
        if not self._is_as_written(intact):
            return False  # A sector was torn in a way that nothing covers.
        store = inspect(self.disk, ROOT, self.config)
        end = self.history.committed[-1].end if self.history.committed else 0
        promised = end if self.ending is Ending.CLOSED else self.history.synced_offset
        self.known = (store.start.synced_offset or 0) if store.start.is_noted else 0
        self.safe = max(self.known, promised)
        damage = choose(self, rng)
        if damage is None or (damage.is_of_queues and not self.disk.exists(ENDS)):
            return False  # Until the first checkpoint behind a start nobody may know what is lost.
        self.trace.append(str(damage))
        inflict(self, damage, rng)
        if damage.is_of_log and (damage.is_lost or not _is_alike(intact, log_of(self.disk))):
            self._judge_log(damage, intact)
        else:
            self._judge_rest(damage)
        return True

    def _is_as_written(self, log: Log) -> bool:
        history = self.history
        sent: dict[int, list[Sent]] = {}
        for each in history.committed + history.in_flight + history.doubtful:
            sent.setdefault(each.physical_offset, []).append(each)
        return all(
            any(is_same(each, record) for each in sent.get(record.physical_offset, ()))
            for record in log.records
        )

    # What is no message

    def _judge_rest(self, damage: Damage) -> None:
        subject = self._open_or_refuse(damage)
        if subject is None:
            self._mend()
            subject = self._open()
        covered = self.config.record_crc and damage.path != CHECKPOINT
        self.history.check_log(log_of(self.disk), self.ending, is_covered=covered)
        self._go_on(subject, damage)
        self._finish()

    def _go_on(self, subject: Subject, damage: Damage | None) -> None:
        """Check what an open store serves, put to it, and close it."""
        self._check_served(subject, damage)
        self._put(subject, damage)
        if not subject.close(self.now_ms) and not self.hurt:
            raise BrokenPromise("a shutdown without any trouble was not clean")
        self.ending = Ending.CLOSED
        self.history.synced_offset = log_of(self.disk).end

    def _finish(self) -> None:
        """See that `verify` knows what is missing, and that nothing is once it was mended."""
        report = self._verify()
        missing = self._missing_keys()
        self.trace.append(f"hurt: {self.hurt}, keys missing: {missing}, {report.counts}")
        if report.is_sound and (self.hurt or missing):
            raise BrokenPromise(f"verify finds nothing; refused: {self.hurt}, not found: {missing}")
        if not report.is_sound:
            self._mend()
        self.hurt = set()
        subject = self._open()
        self.history.check_log(log_of(self.disk), Ending.CLOSED, is_covered=True)
        self._go_on(subject, None)
        check_queue_files(self.disk, log_of(self.disk), self.history, self.config)
        report = self._verify()
        if report.counts or self._missing_keys():
            raise BrokenPromise(f"in the end: {'; '.join(map(str, report.findings))}")

    def _check_served(self, subject: Subject, damage: Damage | None) -> None:
        log = log_of(self.disk)
        for queue in self._queues():
            if queue in self.unknown:
                continue
            of_queue = Log(
                [each for each in log.records if (each.topic, each.queue_id) == queue],
                log.start,
                log.end,
            )
            history = History([each for each in self.history.committed if _queue(each) == queue])
            try:
                if damage is not None and _may_hurt(damage, queue):
                    subject.read_all(*queue)  # What is refused may be more than what is wanted.
                check_queues(subject, of_queue, history)
            except StoreFilesError as error:
                self._note_hurt(queue, damage, error)
                put = {each.queue_offset: each.body for each in of_queue.records}
                if not (found := subject.read_sound(*queue)).items() <= put.items():
                    raise BrokenPromise(f"{queue}: {found} was read, {put} was put") from error

    def _note_hurt(self, queue: Queue, damage: Damage | None, error: Exception) -> None:
        if damage is None or not _may_hurt(damage, queue):
            raise BrokenPromise(f"{queue} is refused: {error}") from error
        self.trace.append(f"refused: {error}")
        self.hurt.add(queue)

    def _put(self, subject: Subject, damage: Damage | None) -> None:
        """Put a message to each queue: it must get the next number, or be refused."""
        put: list[Sent] = []
        for topic, queue_id in sorted(self._queues()):
            queue, body = (topic, queue_id), f"{len(self.history.committed)}".encode()
            self.puts += 1
            properties = {"UNIQ_KEY": f"put {self.puts}"}
            try:
                appended = subject.put(topic, queue_id, body, properties, self.now_ms)
            except (PutRefusedError, StoreFilesError) as error:
                self._note_hurt(queue, damage, error)
                continue
            expected = self.history.next_queue_offset(topic, queue_id)
            if queue in self.unknown:
                expected = appended.queue_offset
                self.unknown.remove(queue)
                others = [each for each in self.history.committed if _queue(each) != queue]
                self.history.committed = [*_expired(queue, expected), *others]
            if appended.queue_offset != expected:
                raise BrokenPromise(
                    f"{queue}: queue offset {appended.queue_offset} was given, not {expected}"
                )
            place = appended.physical_offset, appended.size
            where = topic, queue_id, appended.queue_offset
            put.append(Sent(*where, *place, body, properties, self.now_ms))
        subject.commit()
        subject.sync()
        self.history.committed += put

    def _queues(self) -> set[Queue]:
        return {_queue(each) for each in self.history.committed}

    # The log

    def _judge_log(self, damage: Damage, intact: Log) -> None:
        log = log_of(self.disk)
        segment = int(damage.path.rpartition("/")[2])
        start, end = segment + damage.start, segment + damage.end
        if damage.is_lost:
            start, end = segment, segment + self.config.segment_size
        victims = [
            each
            for each in intact.records
            if each.physical_offset < end and start < each.physical_offset + each.size
        ]
        low = min([start, *(each.physical_offset for each in victims)])
        self.trace.append(f"{len(victims)} victims, from {low}, known {self.known}")
        is_first = damage.is_lost and segment == intact.start and bool(log.records)
        if is_first:
            low = 0
        subject = self._open_or_refuse(damage)
        if subject is None:
            self._repair(damage, intact, victims, low)
            self._finish()
            return
        if is_first:
            self.history.first_offset = log.start
        elif low < self.known and not (damage.is_lost and segment > intact.end):
            raise BrokenPromise(f"damage at {low} was not noticed, promised up to {self.known}")
        else:
            self.ending = Ending.POWER_CUT
            self.history.synced_offset = min(self.history.synced_offset, low)
        covered = not damage.field or damage.field in COVERED or self.config.record_crc
        self.history.check_log(log_of(self.disk), self.ending, is_covered=covered)
        self._go_on(subject, damage)
        self._finish()

    def _repair(self, damage: Damage, intact: Log, victims: list[Record], low: int) -> None:
        """Have the log repaired, and see that nothing else went."""
        left = files_below(self, LOG)
        if damage.is_lost and left and left[0] < damage.path < left[-1]:
            self._fill_in(damage)
        plan = Plan()
        store = inspect(self.disk, ROOT, self.config)
        for _ in make_plan(store, plan, cut=False):
            pass
        plan.accepts_blocks = plan.is_log_kept
        carry_out(store, plan, 1)
        self.trace.append(f"repaired, {len(plan.steps)} steps, cut at {plan.cut_at}")
        subject = self._open()
        log = log_of(self.disk)
        here = {each.physical_offset: each for each in log.records}
        for record in intact.records:
            is_needed = record.physical_offset + record.size <= self.known
            if record in victims or (record.physical_offset not in here and not is_needed):
                continue
            if here.get(record.physical_offset) != record:
                raise BrokenPromise(f"{record} was sound, and is lost by a repair")
        self._check_ghosts(log, low)
        self._learn(log, intact)
        self._go_on(subject, None)

    def _check_ghosts(self, log: Log, low: int) -> None:
        """See that there is nothing but what was put, and from `low` on what takes its place."""
        sent = [*self.history.committed, *self.history.in_flight]
        at = {each.physical_offset: each for each in sent}
        numbers = {
            (*_queue(each), each.queue_offset + number)
            for each in sent
            for number in range(each.batch_size)
        }
        for record in log.records:
            if (put := at.get(record.physical_offset)) is not None and is_same(put, record):
                continue
            is_filler = FILLER_TOPIC.startswith(record.topic.encode()) and not record.batch_size
            is_instead = (*_queue(record), record.queue_offset) in numbers
            is_instead &= not record.body.strip(b"\0")
            if record.physical_offset < low or not (is_filler or is_instead):
                raise BrokenPromise(f"a record that was never accepted: {record}")

    def _learn(self, log: Log, intact: Log) -> None:
        """Go on from what is left of a log."""
        here = {each.physical_offset for each in log.records}
        gone = [each for each in intact.records if each.physical_offset not in here]
        before, kept = self.history.committed, [sent_of(each) for each in log.records]
        queues = self._queues()
        for queue in sorted(queues):
            first = next((each for each in kept if _queue(each) == queue), None)
            if first is not None:
                kept = [*_expired(queue, first.queue_offset), *kept]
            elif any(_queue(each) == queue for each in gone):
                self.unknown.add(queue)
                kept = [*_expired(queue, 1), *kept]
            else:
                expired = [
                    each
                    for each in before
                    if each.physical_offset < intact.start and _queue(each) == queue
                ]
                kept = [*_expired(queue, sum(each.batch_size for each in expired)), *kept]
        self.history = History(kept, first_offset=log.start, synced_offset=log.end)

    def _fill_in(self, damage: Damage) -> None:
        """Put zeros where a segment in the middle is lost, as the refusal says."""
        file = self.disk.open(damage.path, create=True)
        file.resize(self.config.segment_size)
        file.sync()
        file.close()
        self.disk.sync_directory(LOG)

    # The tools

    def _open(self) -> Subject:
        try:
            return Subject(self.disk, self.config, self.now_ms)
        except StoreFilesError as error:
            raise BrokenPromise(f"the store does not open: {error}") from error

    def _open_or_refuse(self, damage: Damage) -> Subject | None:
        """Open the store; None when it is refused, as it may be then."""
        before = self._bytes()
        try:
            return Subject(self.disk, self.config, self.now_ms)
        except StoreFilesError as error:
            refusal = str(error)
        self.trace.append(f"refused: {refusal}")
        if self._bytes() != before:
            raise BrokenPromise(f"it was refused, and changed: {refusal}")
        names = [damage.path, damage.path.rpartition("/")[0]]
        names += [QUEUE_FOLDERS[0], QUEUE_FOLDERS[1]] if _may_hurt(damage, None) else []
        if not any(name in refusal for name in names[: 1 if not damage.is_lost else None]) and not (
            damage.queue is not None and "{}/{}".format(*damage.queue) in refusal
        ):
            raise BrokenPromise(f"{damage}: the refusal does not name it: {refusal}")
        if not damage.is_lost or not damage.is_of_log:
            report = self._verify()
            if report.is_sound:
                raise BrokenPromise(f"it was refused, and verify finds nothing: {refusal}")
        return None

    def _bytes(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for folder in {path.rpartition("/")[0] for path in files_below(self, ROOT)}:
            of_folder = files_of(self.disk, folder)
            found |= {f"{folder}/{name}": data for name, data in of_folder.items()}
        return found

    def _verify(self) -> Report:
        report = Report(findings_max=5)
        for _ in verify(inspect(self.disk, ROOT, self.config), report):
            pass
        return report

    def _mend(self) -> None:
        """Do what `verify` says, until it finds nothing but what a start makes anew."""
        report = self._verify()
        for _ in range(MENDS_MAX):
            self.trace.append(f"to mend: {'; '.join(map(str, report.findings[:2]))}")
            if report.counts.keys() <= MADE_BY_A_START:
                return
            if report.counts.keys() & OF_THE_LOG:
                raise BrokenPromise(f"the log is sound, and verify says {report.findings}")
            done = Rebuilt()
            try:
                for _ in rebuild(inspect(self.disk, ROOT, self.config), done, self.now_ms):
                    pass
            except StoreFilesError as error:
                raise BrokenPromise(f"it is not rebuilt: {error}") from error
            self.trace.append(f"rebuilt: {done}")
            report = self._verify()
        raise BrokenPromise(f"a rebuild does not mend {report.findings}")

    def _missing_keys(self) -> int:
        """Count messages that the index does not find; it may find nothing else for them."""
        reader, missing = StoreReader(ROOT, self.config, filesystem=self.disk), 0
        here = [
            sent
            for sent in self.history.committed
            if sent.physical_offset >= self.history.first_offset and "UNIQ_KEY" in sent.properties
        ]
        for sent in here[:: len(here) // KEYS_MAX + 1]:
            key = sent.properties["UNIQ_KEY"]
            try:
                found = reader.query(sent.topic, key, 9)
            except StoreFilesError:
                found = []
            if found and set(found) != {sent.physical_offset}:
                raise BrokenPromise(f"{key} is found at {found}, not at {sent.physical_offset}")
            missing += not found
        reader.close()
        return missing


def is_same(sent: Sent, record: Record) -> bool:
    """Whether a record is what was put, to the byte."""
    mine = sent_of(record)
    stored_ms = sent.stored_ms or mine.stored_ms
    return (
        mine._replace(properties={}) == sent._replace(properties={}, stored_ms=stored_ms)
        and sent.properties.items() <= mine.properties.items()
    )


def _is_alike(left: Log, right: Log) -> bool:
    return (left.records, left.start, left.end) == (right.records, right.start, right.end)


def _queue(message: Sent | Record) -> Queue:
    return message.topic, message.queue_id


def _expired(queue: Queue, count: int) -> list[Sent]:
    """Numbers that were given out, and of which the log has nothing."""
    return [Sent(*queue, number, 0, 0, b"", {}) for number in range(count)]


def _may_hurt(damage: Damage, queue: Queue | None) -> bool:
    """Whether a queue, or any, may be refused for that."""
    if damage.queue is not None:
        return queue in (None, damage.queue)
    return damage.path in QUEUE_FOLDERS
