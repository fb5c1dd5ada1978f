"""Damage to messages that were safe, and an operator who has `cometmq store repair` mend it.

Only messages are damaged that the store knows to be on the disk, with more such messages after
them, so the damage must not pass for a torn tail. If the repair steps over them, the model replaces
them by the records that the repair put in their place; all else must be where it was. If the repair
cuts, everything before the cut must be where it was, and everything after it, damage included, must
be in `cut/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.crash.checks import log_of
from tests.crash.disk import Killed
from tests.crash.history import BrokenPromise, Ending, Sent, Uncovered
from tests.crash.oracle import ROOT

from cometmq.store.checking.verify import verify
from cometmq.store.errors import StoreFilesError
from cometmq.store.log.fillers import FILLER_TOPIC
from cometmq.store.looking.findings import Kind, Report
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending.repair_plan import Plan, make_plan
from cometmq.store.mending.repairing import carry_out
from cometmq.store.starting.swap import finish_swap

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.disk import Operation
    from tests.crash.model import Run
    from tests.crash.oracle import Log, Record

    from cometmq.store.disk.filesystem import File
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.mending.repair_plan import StepOver

BODY_SIZE_MIN = 10
"""The smallest body of a message that is damaged: a bit flipped in it never goes unnoticed."""
TRIES_MAX = 4


def damage_and_repair(run: Run, ends_at: Callable[[int], Callable[[Operation], None]]) -> None:
    """Damage and repair once; `ends_at` makes the hook that ends a process at an operation."""
    finish_swap(run.disk, ROOT)
    victims = _victims(run)
    if not victims:
        return
    damage = run.rng.choice((_flip_body, _flip_body, _flip_head))
    for victim in victims:
        damage(run, victim)
        run.trace.append(f"damaged: {victim.topic}/{victim.queue_id}/{victim.queue_offset}")
    _check_found(run, victims)
    behind = [sent for sent in run.history.committed if sent.end > victims[0].physical_offset]
    cut = run.rng.random() < 0.3 and _keeps_offsets(run, behind)
    kept = run.history.promised(run.ending) if cut else []
    bytes_behind = [(sent, _bytes_of(run, sent)) for sent in kept if sent in behind]
    safe = 0
    steps: list[StepOver] = []
    for tries in range(TRIES_MAX):
        safe = _safe_offset(inspect(run.disk, ROOT, run.config), run)
        if safe < victims[-1].end:
            # A power cut took the note of how far the log is synced: this may be a torn tail now.
            raise Uncovered("nobody knows any more that it was safe")
        if cut and not _keeps_offsets(run, behind):
            raise Uncovered("nobody knows any more which numbers behind it came to the disk")
        if tries + 1 < TRIES_MAX and run.rng.random() < 0.5:
            run.disk.hook = ends_at(run.disk.operations + run.rng.randint(1, 30))
        if (done := _repair(run, cut=cut)) is not None:
            steps = done
            break
        # A power cut during the repair takes what was only in memory.
        promised = run.history.promised(run.ending)
        bytes_behind = [(sent, data) for sent, data in bytes_behind if sent in promised]
    if cut:
        run.has_cut = True
        _go_on_in_front_of(run, victims[0].physical_offset)
    else:
        _go_on_with(run, _stepped_over(run, victims, steps), safe)
    run.end_tool("repair", run.rng.choice((Ending.CLOSED, Ending.CLOSED, Ending.POWER_CUT)))
    _check_kept(run, bytes_behind)


def _victims(run: Run) -> list[Sent]:
    """Choose one or two messages that the store knows to be safe, but not the last of these."""
    safe = _safe_offset(inspect(run.disk, ROOT, run.config), run)
    here = {record.physical_offset for record in log_of(run.disk).records}
    known = [
        sent
        for sent in run.history.promised(run.ending)
        if sent.end <= safe and sent.physical_offset in here
    ]
    choice = [sent for sent in known[:-1] if len(sent.body) >= BODY_SIZE_MIN]
    victims = run.rng.sample(choice, min(len(choice), run.rng.choice((1, 1, 2))))
    # If nothing is left of a queue, its next number depends on its files.
    left = {(sent.topic, sent.queue_id) for sent in known if sent not in victims}
    victims = [sent for sent in victims if (sent.topic, sent.queue_id) in left]
    return sorted(victims, key=lambda sent: sent.physical_offset)


def _safe_offset(store: Inspected, run: Run) -> int:
    """Return how far the store knows the log to be on the disk."""
    if store.is_clean:
        return run.history.synced_offset
    return (store.start.synced_offset or 0) if store.start.is_noted else 0


def _flip_body(run: Run, victim: Sent) -> None:
    at = _bytes_of(run, victim).index(victim.body) + run.rng.randrange(len(victim.body))
    _flip(run, victim, at)


def _flip_head(run: Run, victim: Sent) -> None:
    """Flip a bit of the size or of the magic."""
    _flip(run, victim, run.rng.randrange(8))


def _flip(run: Run, victim: Sent, at: int) -> None:
    file, position = _file_of(run, victim)
    at += position
    file.write(bytes((file.read(1, at)[0] ^ 1 << run.rng.randrange(8),)), at)
    file.sync()
    file.close()


def _bytes_of(run: Run, sent: Sent) -> bytes:
    file, position = _file_of(run, sent)
    data = file.read(sent.size, position)
    file.close()
    return data


def _file_of(run: Run, sent: Sent) -> tuple[File, int]:
    segment = sent.physical_offset - sent.physical_offset % run.config.segment_size
    return run.disk.open(f"{ROOT}/commitlog/{segment:020d}"), sent.physical_offset - segment


def _keeps_offsets(run: Run, behind: list[Sent]) -> bool:
    """Whether the model knows each queue's next number, were these messages cut off.

    A queue of which nothing is left continues where it would have, as if all of it had expired;
    unless nobody noted that its messages came to the disk.
    """
    first_offset = log_of(run.disk).start
    left = _queues_in(run, first_offset, behind[0].physical_offset)
    given_up = [sent for sent in behind if (sent.topic, sent.queue_id) not in left]
    safe = _safe_offset(inspect(run.disk, ROOT, run.config), run)
    # After a cut, entries may still tell numbers that it gave up.
    is_plain = first_offset > 0 and run.knows_checked and not run.has_cut
    return not given_up or (is_plain and all(sent.end <= safe for sent in given_up))


def _queues_in(run: Run, start: int, end: int) -> set[tuple[str, int]]:
    """Return the queues that have messages in a part of the log."""
    return {
        (sent.topic, sent.queue_id)
        for sent in run.history.committed
        if start <= sent.physical_offset < end
    }


def _check_found(run: Run, victims: list[Sent]) -> None:
    """Check that `verify` names the first damaged place."""
    report = Report(findings_max=1000)
    for _ in verify(inspect(run.disk, ROOT, run.config), report):
        pass
    found = {each.physical_offset for each in report.findings if each.kind is Kind.RECORD}
    # Of two neighbours the first one is named.
    if victims[0].physical_offset not in found:
        raise BrokenPromise(f"verify does not find {victims[0]}, but {report.findings}")


def _repair(run: Run, *, cut: bool) -> list[StepOver] | None:
    """Have damage stepped over or cut off; return None if the process ended before it was done."""
    try:
        store, plan = inspect(run.disk, ROOT, run.config), Plan()
        for _ in make_plan(store, plan, cut=cut):
            pass
        carry_out(store, plan, 1)
        run.trace.append(f"repaired, {len(plan.steps)} steps, cut at {plan.cut_at}")
    except Killed as killed:
        run.trace.append(f"repair struck at {killed}")
        run.end_tool("repair", run.rng.choice((Ending.KILLED, Ending.POWER_CUT)))
        return None
    except StoreFilesError as error:
        raise BrokenPromise(f"it is not repaired: {error}") from error
    run.disk.hook = None
    return plan.steps


def _stepped_over(run: Run, victims: list[Sent], steps: list[StepOver]) -> list[Sent]:
    """Return the victims, and what an earlier repair put beside them if it is replaced now."""
    ranges = [step.damage for step in steps]
    beside = [
        sent
        for sent in run.history.committed
        if ("COMETMQ_LOST" in sent.properties or sent.topic == FILLER_TOPIC.decode())
        and any(each.start <= sent.physical_offset < each.end for each in ranges)
    ]
    return victims + [sent for sent in beside if sent not in victims]


def _go_on_with(run: Run, victims: list[Sent], safe: int) -> None:
    """Learn what is now in place of the damaged messages; nothing before `safe` is lost."""
    history, log = run.history, log_of(run.disk)
    instead = [
        sent_of(record)
        for record in log.records
        if any(sent.physical_offset <= record.physical_offset < sent.end for sent in victims)
    ]
    kept = [sent for sent in history.committed if sent not in victims]
    expired = [
        victim._replace(physical_offset=0, size=0)
        for victim in victims
        if log.start
        and _begins_behind(victim, log, kept, safe)
        and not _has_queue_of(instead, victim)
    ]
    history.committed = sorted([*expired, *kept, *instead], key=lambda sent: sent.physical_offset)


def _go_on_in_front_of(run: Run, cut_at: int) -> None:
    """Forget everything after the cut, except which numbers were given out."""
    history = run.history
    kept = [sent for sent in history.committed if sent.physical_offset < cut_at]
    left = _queues_in(run, log_of(run.disk).start, cut_at)
    given_up = [
        sent._replace(physical_offset=0, size=0)
        for sent in history.committed
        if sent.physical_offset >= cut_at and (sent.topic, sent.queue_id) not in left
    ]
    history.committed = [*given_up, *kept]
    history.in_flight, history.doubtful = [], []
    history.synced_offset = min(history.synced_offset, cut_at)


def _check_kept(run: Run, bytes_behind: list[tuple[Sent, bytes]]) -> None:
    """Check that what was cut off is in `cut/`, whatever ended the process."""
    folder = f"{ROOT}/cut"
    copies: list[bytes] = []
    for entry in run.disk.list(folder) if bytes_behind else ():
        file = run.disk.open(f"{folder}/{entry.name}", read_only=True)
        copies.append(file.read(entry.size, 0))
        file.close()
    for sent, data in bytes_behind:
        if not any(data in copy for copy in copies):
            raise BrokenPromise(f"{sent} was cut off, and is not in {folder}/")


def _begins_behind(victim: Sent, log: Log, kept: list[Sent], safe: int) -> bool:
    """Whether its queue now begins after it: it passes for expired, like the messages before it."""
    places = [
        sent.physical_offset
        for sent in kept
        if (sent.topic, sent.queue_id) == (victim.topic, victim.queue_id)
        and log.start <= sent.physical_offset
        and sent.end <= safe
    ]
    return bool(places) and min(places) > victim.physical_offset


def _has_queue_of(instead: list[Sent], victim: Sent) -> bool:
    return any((sent.topic, sent.queue_id) == (victim.topic, victim.queue_id) for sent in instead)


def sent_of(record: Record) -> Sent:
    return Sent(
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.size,
        record.body,
        record.properties,
        record.store_timestamp,
        record.batch_size,
    )
