"""What may come of a store that was spoilt; see `spoiling` for how.

=======================  ==========================================================================
where the damage is      what a start may do
=======================  ==========================================================================
the log, promised        refuse the store, naming the place, without changing a byte; `repair` then
                         keeps everything sound
the log, unpromised      the same, or cut the log before the damage
the log's first file     the same, or begin the log after this file, as if it had expired
queues                   refuse the store, naming the queue; or serve all other queues, and refuse
                         the damaged part of this one; or rebuild it. `rebuild` restores all of it
`abort`, lost            take what a power cut left of the log and the queues for damage, as above
`deleted_topics.json`    refuse the store, naming the file, until it is removed. Then, or if it is
                         lost, deleted topics come back, or their queues are refused, until they
                         are deleted again; and the unpromised tail may be cut
all else                 exactly what it would have done without the damage
=======================  ==========================================================================

If there are two damages, a refusal may name either of them; what it says is done, until a start is
not refused. Never is a message read other than one that was put, a promised number given out twice,
or a sound record cut that is in no side file; and `verify` never calls a store sound if something
is missing. In the end, whatever was refused or mended, the files are those that the oracle makes of
the log.
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
from tests.crash.oracle import ROOT, Log, Record
from tests.crash.repairs import sent_of
from tests.crash.spoiling import (
    ABORT,
    CHECKPOINT,
    COVERED,
    DELETED,
    ENDS,
    LOG,
    QUEUE_FOLDERS,
    TOPICS,
    Damage,
    choose,
    choose_more,
    files_below,
    inflict,
)
from tests.crash.subject import Subject
from tests.crash.tending import write_topics

from cometmq.store.checking.verify import verify
from cometmq.store.errors import PutRefusedError, StoreFilesError
from cometmq.store.log.fillers import FILLER_TOPIC
from cometmq.store.looking.findings import Kind, Report
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.store_reader import StoreReader
from cometmq.store.mending.rebuilding import Rebuilt, rebuild
from cometmq.store.mending.repair_plan import Plan, make_plan
from cometmq.store.mending.repairing import carry_out

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from tests.crash.disk import SimulatedFileSystem
    from tests.crash.model import Run

    from cometmq.store.config import StoreConfig
    from cometmq.store.looking.inspection import Inspected

IMAGES_EACH = 3
"""How many images of each end of a life get one damage; as many get two."""
MENDS_MAX = 3
KEYS_MAX = 12
"""About how many messages are looked up by their keys, each time."""
OF_THE_LOG = {Kind.RECORD, Kind.BLOCK, Kind.LOST_MESSAGE}
MADE_BY_A_START = {Kind.CHECKPOINT, Kind.QUEUE_ENDS}
OF_NO_MARK = {Kind.OFFSET_TWICE, Kind.OUT_OF_REACH}
"""Findings that a rebuild leaves if nothing says any more that a topic was deleted."""

CUT = f"{ROOT}/cut"

Queue = tuple[str, int]


def spoil(run: Run, rng: Random, topics: Iterable[str], disk_size: int) -> int:
    """Cut the power several times where a run is now; spoil and check what each cut leaves.

    The run itself continues as if nothing had happened. Return how many images were checked.
    """
    dead, count = run.disk, 0
    run.disk = dead.kill()
    for number in range(2 * IMAGES_EACH):
        image = dead.power_cut(Random(rng.random()))
        image.total = disk_size
        spoilt = Spoilt(image, run.config, run.history.copy(), run.ending, run.now_ms)
        try:
            count += spoilt.run(rng, topics, choose_more if number >= IMAGES_EACH else _choose_one)
        except Uncovered:  # For example, a bit flipped in a field that nothing covers.
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
    """How far the log was promised to be there, or is known to be on the disk."""
    hurt: set[Queue] = field(default_factory=set[Queue])
    """Queues that were refused, in whole or in part."""
    unknown: set[Queue] = field(default_factory=set[Queue])
    """Queues of which nothing is left in the log: nobody can say what their next number is."""
    topics: Iterable[str] = ()
    """All that there ever were."""
    damages: list[Damage] = field(default_factory=list[Damage])
    intact: Log = field(default_factory=Log)
    """The log before it was spoilt, its files, and the records that the damages hit."""
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    hit: list[Record] = field(default_factory=list[Record])
    refusal: str = ""
    """The refusal of the last start."""
    is_repaired: bool = False
    """Whether the log was repaired."""
    rebuilt: int = 0
    """How many times the queues were rebuilt."""
    puts: int = 0
    trace: list[str] = field(default_factory=list[str])

    def run(
        self, rng: Random, topics: Iterable[str], chosen: Callable[[Spoilt, Random], list[Damage]]
    ) -> bool:
        """Spoil the image and judge what comes of it; return False if nothing could be spoilt."""
        if not self.disk.exists(LOG):
            return False
        self.topics = topics
        write_topics(self.disk, topics)
        if self.ending is not Ending.CLOSED:
            self.ending = Ending.POWER_CUT
        self.intact, self.files = log_of(self.disk), files_of(self.disk, LOG)
        if not self._is_as_written(self.intact):
            return False  # A sector was torn in a way that nothing covers.
        store = inspect(self.disk, ROOT, self.config)
        if self.history.deleting is not None:
            topic, mark = self.history.deleting
            self.history.note_deletion(is_done=store.deletions.offsets.get(topic.encode()) == mark)
        self._note_known(store)
        self.damages = chosen(self, rng)
        has_list = self.disk.exists(ENDS)
        if not self.damages or (not has_list and any(each.is_of_queues for each in self.damages)):
            return False  # Until the first checkpoint after a start, nobody may know what is lost.
        self.trace += map(str, self.damages)
        of_log = self._inflict_all(rng)
        if self._is_spoilt(CHECKPOINT) and not (self.known or _are_flips_covered(of_log, ())):
            raise Uncovered("nobody knows any more where the tail begins")
        self._judge(of_log)
        return True

    def _inflict_all(self, rng: Random) -> list[Damage]:
        """Do the damages; return those that make a difference to the log."""
        of_log = [each for each in self.damages if each.is_of_log]
        of_marks = [each for each in self.damages if each.path == DELETED]
        for damage in self.damages:
            if damage not in of_log + of_marks:
                inflict(self, damage, rng)
        self._note_known(inspect(self.disk, ROOT, self.config))
        for damage in of_marks:
            inflict(self, damage, rng)
        felt: list[Damage] = []
        for damage in of_log:
            before = log_of(self.disk)
            inflict(self, damage, rng)
            hit = self._hit_by(damage)[0]
            self.hit += hit
            if hit or damage.is_lost or not _is_alike(before, log_of(self.disk)):
                felt.append(damage)  # Others hit bytes after a blank, which nobody reads.
        is_lost = any(each.is_lost for each in felt)
        return felt if is_lost or not _is_alike(self.intact, log_of(self.disk)) else []

    def _note_known(self, store: Inspected) -> None:
        """Note how far the log is known to be on the disk, by what is left of the other files."""
        end = self.history.committed[-1].end if self.history.committed else 0
        promised = end if self.ending is Ending.CLOSED else self.history.synced_offset
        self.known = (store.start.synced_offset or 0) if store.start.is_noted else 0
        self.safe = max(self.known, promised)

    def _is_spoilt(self, path: str) -> bool:
        return any(damage.path == path for damage in self.damages)

    @property
    def _is_unmarked(self) -> bool:
        """Whether the store passes for one that was shut down, but was not."""
        return any(damage.path == ABORT and damage.is_lost for damage in self.damages)

    def _is_as_written(self, log: Log) -> bool:
        history = self.history
        sent: dict[int, list[Sent]] = {}
        for each in history.committed + history.in_flight + history.doubtful:
            sent.setdefault(each.physical_offset, []).append(each)
        return all(
            any(is_same(each, record) for each in sent.get(record.physical_offset, ()))
            for record in log.records
        )

    def _judge(self, of_log: list[Damage]) -> None:
        """Open what is left, or do what the refusal says; then check what is there."""
        log, intact = log_of(self.disk), self.intact
        starts = [int(each.path.rpartition("/")[2]) for each in of_log]
        has_gone = [
            each.is_lost and bool(log.records) and at < log.start
            for each, at in zip(of_log, starts, strict=True)
        ]  # As if it had expired.
        lows = [
            (each, self._hit_by(each)[1])
            for each, is_gone in zip(of_log, has_gone, strict=True)
            if not is_gone
        ]
        first = min([low for _, low in lows], default=intact.end)
        self.trace.append(f"{len(self.hit)} records hit, from {first}, known {self.known}")
        subject = self._open_or_refuse()
        if subject is None:
            subject = self._follow(of_log)
        else:
            for damage, low in lows:
                is_ahead = damage.is_lost and low > intact.end
                if low < self.known and not is_ahead:
                    raise BrokenPromise(f"{damage} was not noticed, promised up to {self.known}")
                self.ending = Ending.POWER_CUT
                self.history.synced_offset = min(self.history.synced_offset, low)
        self._check_cut()
        if self.is_repaired:
            self._check_repaired(of_log, 0 if any(has_gone) else first)
        else:
            if any(has_gone):
                self.history.first_offset = log.start
            self._check_start(of_log)
        if self._is_spoilt(DELETED):
            self._delete_again(subject)
        self._go_on(subject, self.damages)
        self._finish()

    def _check_start(self, of_log: list[Damage]) -> None:
        """Check the log that a start left when no repair came before it."""
        if self._is_spoilt(DELETED) and self.ending is not Ending.CLOSED:
            # Records of a recreated topic do not follow: a tail may end before one.
            self.history.synced_offset = min(self.history.synced_offset, self.known)
        is_covered = (bool(of_log) and _are_flips_covered(of_log)) or self.config.record_crc
        is_covered &= not self._is_spoilt(CHECKPOINT)
        # Nobody asks which number a record of a deleted topic has.
        alive = [each.record is None or self.history.is_alive(each.record) for each in of_log]
        is_covered &= all(alive)
        self._check_log(self.ending, is_covered=is_covered)

    def _check_log(self, ending: Ending, *, is_covered: bool) -> None:
        self.history.check_log(log_of(self.disk), ending, is_covered=is_covered)

    def _hit_by(self, damage: Damage) -> tuple[list[Record], int]:
        """Return the records that a damage to the log hit, and where the first of its bytes is."""
        segment = int(damage.path.rpartition("/")[2])
        start, end = segment + damage.start, segment + damage.end
        if damage.is_lost:
            start, end = segment, segment + self.config.segment_size
        hit = [
            each
            for each in self.intact.records
            if each.physical_offset < end and start < each.physical_offset + each.size
        ]
        return hit, min([start, *(each.physical_offset for each in hit)])

    def _follow(self, of_log: list[Damage]) -> Subject:
        """Do what the refusal says, and what the next one says, until the store opens."""
        for number in range(MENDS_MAX):
            if not number and any(each.path == DELETED and each.end for each in self.damages):
                self.disk.remove(DELETED)  # The tools refuse it, too.
                self.disk.sync_directory(ROOT)
                self.trace.append("removed the marks of deleted topics")
            elif (of_log and not self.is_repaired) or "store repair" in self.refusal:
                self._repair(of_log)
            else:
                rebuilt = self.rebuilt
                self._mend()
                if self.rebuilt == rebuilt and "store rebuild" in self.refusal:
                    self._rebuild(accepts=self._is_spoilt(DELETED))
            try:
                return Subject(self.disk, self.config, self.now_ms)
            except StoreFilesError as error:
                self.refusal = str(error)
                self.trace.append(f"refused then: {error}")
        raise BrokenPromise(f"the store does not open: {self.refusal}")

    def _delete_again(self, subject: Subject) -> None:
        """Delete topics that came back; until then, messages put to them since may be read."""
        for topic in sorted(self.history.deleted):
            for queue in sorted(each for each in self._queues() if each[0] == topic):
                sent = [each for each in self.history.committed if _queue(each) == queue]
                here = [each for each in sent if each.physical_offset >= subject.first_offset]
                alive = [each.body for each in here if each.size and self.history.is_alive(each)]
                try:
                    bodies = subject.read_all(*queue)
                except StoreFilesError as error:
                    self.trace.append(f"refused: {error}")
                    continue
                if not set(bodies) <= {each.body for each in sent}:
                    raise BrokenPromise(f"{queue}: other messages are read than were put")
                if alive and bodies[-len(alive) :] != alive:
                    raise BrokenPromise(
                        f"{queue}: {len(bodies)} are read, not the last {len(alive)}"
                    )
            subject.delete(topic)
            self.history.deleted[topic] = subject.end_offset
        deleted = self.history.deleted
        self.trace.append(f"deleted again: {sorted(deleted)}")
        here = [each for each in self.history.committed if each.size or each.topic not in deleted]
        self.history.committed = here
        self.unknown -= {queue for queue in self.unknown if queue[0] in self.history.deleted}

    def _go_on(self, subject: Subject, damages: list[Damage]) -> None:
        """Check what an open store serves, put messages to it, and close it."""
        self._check_served(subject, damages)
        self._put(subject, damages)
        if not subject.close(self.now_ms) and not self.hurt:
            raise BrokenPromise("a shutdown without any trouble was not clean")
        self.ending = Ending.CLOSED
        self.history.synced_offset = log_of(self.disk).end

    def _finish(self) -> None:
        """Check that `verify` finds what is missing, and that nothing is missing once mended."""
        report = self._verify()
        missing = self._missing_keys()
        self.trace.append(f"hurt: {self.hurt}, keys missing: {missing}, {report.counts}")
        # Without a checkpoint the index may have been begun after records of Apache's.
        is_told = self._is_spoilt(CHECKPOINT) and any(
            "in no index" in each for each in report.notes
        )
        if report.is_sound and (self.hurt or (missing and not is_told)):
            raise BrokenPromise(f"verify finds nothing; refused: {self.hurt}, not found: {missing}")
        if is_told:
            self._rebuild()
        if not report.is_sound:
            self._mend()
        self.hurt = set()
        subject = self._open()
        self._check_log(Ending.CLOSED, is_covered=True)
        self._go_on(subject, [])
        check_queue_files(self.disk, log_of(self.disk), self.history, self.config)
        report = self._verify()
        if report.counts or self._missing_keys():
            raise BrokenPromise(f"in the end: {'; '.join(map(str, report.findings))}")

    def _check_served(self, subject: Subject, damages: list[Damage]) -> None:
        log = log_of(self.disk)
        for queue in self._queues():
            if queue in self.unknown:
                if bodies := subject.read_all(*queue):
                    raise BrokenPromise(f"{queue} has messages again: {bodies}")
                continue
            of_queue = Log(
                [each for each in log.records if (each.topic, each.queue_id) == queue],
                log.start,
                log.end,
            )
            history = History([each for each in self.history.committed if _queue(each) == queue])
            history.deleted = self.history.deleted
            try:
                if _may_hurt(damages, queue):
                    subject.read_all(*queue)  # A refusal may cover more than what is wanted.
                check_queues(subject, of_queue, history)
            except StoreFilesError as error:
                self._note_hurt(queue, damages, error)
                alive = filter(history.is_alive, of_queue.records)
                put = {each.queue_offset: each.body for each in alive}
                if not (found := subject.read_sound(*queue)).items() <= put.items():
                    raise BrokenPromise(f"{queue}: {found} was read, {put} was put") from error

    def _note_hurt(self, queue: Queue, damages: list[Damage], error: Exception) -> None:
        if not _may_hurt(damages, queue):
            raise BrokenPromise(f"{queue} is refused: {error}") from error
        self.trace.append(f"refused: {error}")
        self.hurt.add(queue)

    def _put(self, subject: Subject, damages: list[Damage]) -> None:
        """Put a message to each queue: it must get the next number, or be refused."""
        put: list[Sent] = []
        for topic, queue_id in sorted(self._queues()):
            queue, body = (topic, queue_id), f"{len(self.history.committed)}".encode()
            self.puts += 1
            properties = {"UNIQ_KEY": f"put {self.puts}"}
            try:
                appended = subject.put(topic, queue_id, body, properties, self.now_ms)
            except (PutRefusedError, StoreFilesError) as error:
                self._note_hurt(queue, damages, error)
                continue
            expected = self.history.next_queue_offset(topic, queue_id)
            if queue in self.unknown:
                expected = appended.queue_offset
                self.unknown.remove(queue)
                others = [each for each in self.history.committed if not self._counts(each, queue)]
                self.history.committed = [*self._expired(queue, expected), *others]
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

    def _repair(self, of_log: list[Damage]) -> None:
        """Have the log repaired."""
        for damage in of_log:
            left = files_below(self, LOG)
            if damage.is_lost and left and left[0] < damage.path < left[-1]:
                self._fill_in(damage)
        plan = Plan()
        store = inspect(self.disk, ROOT, self.config)
        for _ in make_plan(store, plan, cut=False):
            pass
        plan.accepts_blocks = plan.is_log_kept
        carry_out(store, plan, 1)
        self.is_repaired = True
        self.trace.append(f"repaired, {len(plan.steps)} steps, cut at {plan.cut_at}")

    def _check_repaired(self, of_log: list[Damage], low: int) -> None:
        """Check that only what was hit is gone, and continue from what is left."""
        if not (_are_flips_covered(of_log) or self.config.record_crc) and len(self.damages) > 1:
            raise Uncovered("a repair believes a flipped record where it mends another one")
        log = log_of(self.disk)
        here = {each.physical_offset: each for each in log.records}
        for record in self.intact.records:
            is_needed = record.physical_offset + record.size <= self.known
            if record in self.hit or (record.physical_offset not in here and not is_needed):
                continue
            if here.get(record.physical_offset) != record:
                raise BrokenPromise(f"{record} was sound, and is lost by a repair")
        for record in self.hit if not self.config.record_crc else ():
            left = here.get(record.physical_offset)
            if left is not None and left != record == left._replace(properties=record.properties):
                raise Uncovered(f"the properties of {record} alone were hit")
        self._check_ghosts(log, low)
        self._learn(log)

    def _check_cut(self) -> None:
        """Check that each sound record that is no longer in the log is kept in a side file."""
        log, copies = log_of(self.disk), files_of(self.disk, CUT).values()
        here = set(map(_place, log.records))
        for record in self.intact.records:
            at = record.physical_offset
            if _place(record) in here or record in self.hit or at < log.start:
                continue
            segment = at - at % self.config.segment_size
            data = self.files[f"{segment:020d}"][at - segment : at - segment + record.size]
            data = data.rstrip(b"\0")  # A copy ends before the zeros that a power cut left.
            if not any(data in copy for copy in copies):
                raise BrokenPromise(f"{record} was cut, and is not in {CUT}/")

    def _check_ghosts(self, log: Log, low: int) -> None:
        """Check that there is only what was put and, from `low` on, what takes its place."""
        history = self.history
        sent = [*history.committed, *history.in_flight, *history.doubtful]
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

    def _learn(self, log: Log) -> None:
        """Continue from what is left of a log."""
        here = {each.physical_offset for each in log.records}
        gone = [each for each in self.intact.records if each.physical_offset not in here]
        before, kept = self.history.committed, [sent_of(each) for each in log.records]
        queues = self._queues() | {_queue(each) for each in kept}  # Of a turn that was in flight.
        for queue in sorted(queues):
            first = next((each for each in kept if self._counts(each, queue)), None)
            if first is not None:
                kept = [*self._expired(queue, first.queue_offset), *kept]
            elif any(self._counts(each, queue) for each in gone):
                self.unknown.add(queue)
                kept = [*self._expired(queue, 1), *kept]
            else:
                expired = [
                    each
                    for each in before
                    if each.physical_offset < self.intact.start and self._counts(each, queue)
                ]
                kept = [*self._expired(queue, sum(each.batch_size for each in expired)), *kept]
        deleted = {topic: min(end, log.end) for topic, end in self.history.deleted.items()}
        self.history = History(kept, first_offset=log.start, synced_offset=log.end, deleted=deleted)
        self._doubt_deleted()

    def _fill_in(self, damage: Damage) -> None:
        """Put zeros where a segment in the middle is lost, as the refusal says."""
        file = self.disk.open(damage.path, create=True)
        file.resize(self.config.segment_size)
        file.sync()
        file.close()
        self.disk.sync_directory(LOG)

    def _counts(self, message: Sent | Record, queue: Queue) -> bool:
        """Whether a message belongs to a queue as it is now, not to one from before a deletion."""
        return _queue(message) == queue and self.history.is_alive(message)

    def _expired(self, queue: Queue, count: int) -> list[Sent]:
        """Return stand-ins for numbers that were given out and are not in the log."""
        at = self.history.deleted.get(queue[0], 0)
        return [Sent(*queue, number, at, 0, b"", {}) for number in range(count)]

    def _doubt_deleted(self) -> None:
        """Forget where the queues of deleted topics continue.

        If a power cut brought back files of theirs, a rebuild keeps the numbers in these. A message
        that was in flight at the end may be in the log, and then it tells.
        """
        known: list[Sent | Record] = [*self.history.committed, *log_of(self.disk).records]
        for queue in self._queues():
            if not any(self._counts(each, queue) for each in known):
                self.unknown.add(queue)

    # The tools

    def _open(self) -> Subject:
        try:
            return Subject(self.disk, self.config, self.now_ms)
        except StoreFilesError as error:
            raise BrokenPromise(f"the store does not open: {error}") from error

    def _open_or_refuse(self) -> Subject | None:
        """Open the store; return None if it is refused, once the refusal is checked."""
        before = self._bytes()
        try:
            return Subject(self.disk, self.config, self.now_ms)
        except StoreFilesError as error:
            self.refusal = refusal = str(error)
        self.trace.append(f"refused: {refusal}")
        if self._bytes() != before:
            raise BrokenPromise(f"it was refused, and changed: {refusal}")
        if not self._is_named(refusal):
            raise BrokenPromise(f"the refusal does not name {self.damages}: {refusal}")
        if all(damage.is_lost and damage.is_of_log for damage in self.damages):
            return None
        try:
            report = self._verify()
        except StoreFilesError as error:
            if not self._is_named(str(error)):
                raise BrokenPromise(f"verify does not name {self.damages}: {error}") from error
            return None
        if report.is_sound:
            raise BrokenPromise(f"it was refused, and verify finds nothing: {refusal}")
        return None

    def _is_named(self, refusal: str) -> bool:
        return any(name in refusal for damage in self.damages for name in self._names(damage))

    def _names(self, damage: Damage) -> list[str]:
        """Return what a refusal for a damage may name."""
        names = [damage.path]
        if damage.is_lost:
            names.append(damage.path.rpartition("/")[0])
        if damage.is_of_queues and _may_hurt([damage], None):
            names += QUEUE_FOLDERS
        if damage.queue is not None:
            names.append("{}/{}".format(*damage.queue))
        if damage.path == ABORT:  # All of the log passes for promised, and all of the queues.
            names += [LOG, *QUEUE_FOLDERS]
        if damage.path == DELETED:
            names += [LOG, *(f"{topic}/" for topic in self.history.deleted)]
        return names

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
        """Do what `verify` says, until it finds nothing but what a start rebuilds."""
        report = self._verify()
        for number in range(MENDS_MAX):
            self.trace.append(f"to mend: {'; '.join(map(str, report.findings[:2]))}")
            if Kind.CONFIG_FILE in report.counts and self._is_spoilt(TOPICS):
                write_topics(self.disk, self.topics)
                report = self._verify()
            is_marked = not self._is_spoilt(DELETED)
            left = OF_NO_MARK if number and not is_marked else set[Kind]()
            if report.counts.keys() - left <= MADE_BY_A_START:
                return
            if report.counts.keys() & OF_THE_LOG:
                if not (self._is_unmarked or self._is_spoilt(DELETED)):
                    raise BrokenPromise(f"the log is sound, and verify says {report.findings}")
                self._repair([])
                report = self._verify()
                continue
            try:
                self._move_and_rebuild()
            except StoreFilesError as error:
                if is_marked or "--accept" not in str(error):
                    raise BrokenPromise(f"it is not rebuilt: {error}") from error
                self._rebuild(accepts=True)
            self._doubt_deleted()
            report = self._verify()
        raise BrokenPromise(f"a rebuild does not mend {report.findings}")

    def _move_and_rebuild(self) -> None:
        """Rebuild the queues, moving away those whose files were cut off while they were made.

        This has to be done if nothing says any more that the store was killed.
        """
        while True:
            try:
                return self._rebuild()
            except StoreFilesError as error:
                self.trace.append(f"a rebuild is refused: {error}")
                if "move it elsewhere" not in str(error) or not self._is_unmarked:
                    raise
                queue = str(error).partition(": ")[0].rpartition("/")[0]
                inflict(self, Damage("lost", queue), Random(0))

    def _rebuild(self, *, accepts: bool = False) -> None:
        done, store = Rebuilt(), inspect(self.disk, ROOT, self.config)
        accepted = {"accept_restarts": accepts, "accept_gaps": accepts}
        for _ in rebuild(store, done, self.now_ms, **accepted):
            pass
        self.rebuilt += 1
        self.trace.append(f"rebuilt: {done}")

    def _missing_keys(self) -> int:
        """Count messages that the index does not find; it must not find others in their place."""
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


def _are_flips_covered(damages: list[Damage], covered: Container[str] = COVERED) -> bool:
    return all(not each.field or each.field in covered for each in damages)


def _place(record: Record) -> tuple[str, int, int, int]:
    return record.topic, record.queue_id, record.queue_offset, record.physical_offset


def _choose_one(spoilt: Spoilt, rng: Random) -> list[Damage]:
    damage = choose(spoilt, rng)
    return [] if damage is None else [damage]


def _may_hurt(damages: list[Damage], queue: Queue | None) -> bool:
    """Whether a queue, or with None any queue, may be refused because of these damages."""
    return any(
        queue in (None, damage.queue)
        if damage.queue is not None
        else damage.path in QUEUE_FOLDERS or (damage.path == ABORT and damage.is_lost)
        for damage in damages
    )
