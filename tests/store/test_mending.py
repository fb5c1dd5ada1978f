"""Repair: what is planned, what is kept, and that a start accepts what it leaves."""

from __future__ import annotations

import errno
import json
from base64 import b64decode
from random import Random

import pytest
from tests.crash.disk import KillAt, Killed, Operation, SimulatedFileSystem
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    SMALL,
    content,
    contents,
    damage,
    flip,
    messages,
    open_small_store,
    overwrite,
    planned,
    small_store,
    verified,
)
from tests.store.records import HOST

from cometmq.proto.message import StoredMessage, read_message
from cometmq.store.errors import CorruptionError
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending.placeholders import Lost
from cometmq.store.mending.rebuilding import Rebuilt, rebuild
from cometmq.store.mending.repairing import carry_out
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME, load_queue_ends
from cometmq.store.upkeep.checkpoint import load_checkpoint


def repaired(disk: SimulatedFileSystem, *, cut: bool = False) -> list[str]:
    return carry_out(inspect(disk, ROOT, SMALL), planned(disk, cut=cut), 1)


def read_all(store: MessageStore, topic: str, queue_id: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.read(topic, queue_id, offset, 1)
        found.append(read_message(b"".join(bytes(piece) for piece in result.slices)))
        offset = result.next_begin_offset
    return found


def test_a_sound_store_needs_no_repair() -> None:
    assert planned(small_store()).is_empty
    assert planned(small_store(close=False).kill()).is_empty


def test_each_record_can_be_stepped_over_and_every_other_message_is_read_as_before() -> None:
    count = len(messages(small_store()))
    for number in range(0, count, 3):
        disk = small_store()
        before = messages(disk)
        victim = before[number]
        damage(disk, victim)
        disk = disk.kill()
        with pytest.raises(CorruptionError):
            open_small_store(disk)
        kept, *_ = repaired(disk)
        assert kept.startswith(f"{ROOT}/cut/{victim.physical_offset:020d}")
        store = open_small_store(disk)
        expected = {m.raw for m in before if m is not victim and m.topic == "T"}
        found = {m.raw for q in (0, 1) for m in read_all(store, "T", q)}
        assert expected - found == {m.raw for m in before if m.sys_flag & 0xC}
        for marked in found - expected:
            message = read_message(marked)
            assert message.properties.keys() == {"COMETMQ_LOST"}
            assert message.body == b""
            assert (message.topic, message.queue_id) == (victim.topic, victim.queue_id)
            assert message.queue_offset == victim.queue_offset
        assert store.close(2)
        assert verified(disk).findings == []


def test_lost_messages_are_named_from_gaps_and_from_the_queue() -> None:
    disk = small_store()
    log = [m for m in messages(disk) if m.topic == "T" and not m.sys_flag]
    damage(disk, log[3])
    damage(disk, log[20])
    for path in list(contents(disk, f"{ROOT}/consumequeue/T")):
        disk.remove(path)
    plan = planned(disk)
    assert [step.lost for step in plan.steps] == [[Lost("T", 1, 1, 1)], [Lost("T", 0, 10, 1)]]
    disk = small_store()
    damage(disk, log[38])  # The last of its queue, and of the schedule topic there are two more.
    (step,) = planned(disk).steps
    assert step.lost == [Lost("T", 0, 19, 1)]


def test_what_was_replaced_is_kept_as_it_was() -> None:
    disk = small_store()
    victim = messages(disk)[5]
    damage(disk, victim)
    path = f"{ROOT}/commitlog/00000000000000000000"
    start = victim.physical_offset
    damaged = content(disk, path)[start : start + victim.size]
    kept, *_ = repaired(disk)
    assert content(disk, kept) == damaged


def test_cutting_ends_the_log_in_front_of_the_damage_and_keeps_the_rest() -> None:
    disk = small_store()
    before = messages(disk)
    damage(disk, before[9])
    damage(disk, before[30])
    plan = planned(disk, cut=True)
    assert plan.cut_at is not None
    assert plan.cut_at == before[9].physical_offset
    assert plan.records_cut == len(before) - 11
    kept, *_ = repaired(disk, cut=True)
    assert len(content(disk, kept)) == plan.cut_end - plan.cut_at
    store = open_small_store(disk)
    assert store.end_offset == before[9].physical_offset
    store.close(1)
    assert [m.raw for m in messages(disk)] == [m.raw for m in before[:9]]
    assert verified(disk).findings == []


def test_a_torn_tail_is_cut_and_nothing_else_is_touched() -> None:
    disk = small_store(close=False).kill()
    end = verified(disk).end_offset
    path = f"{ROOT}/commitlog/{end // 4096 * 4096:020d}"
    before = contents(disk)
    overwrite(disk, path, end % 4096, b"\0\0\1\0\xda\xa3\x20\xa7torn")
    plan = planned(disk)
    assert plan.is_tail_only
    kept, *_ = repaired(disk)
    assert content(disk, kept) == b"\0\0\1\0\xda\xa3\x20\xa7torn"
    after = contents(disk)
    del after[kept]
    assert after == before


def test_a_block_whose_checksum_alone_is_wrong_is_taken_as_it_is_when_asked() -> None:
    disk = small_store()
    victim = messages(disk)[4]
    flip(disk, f"{ROOT}/commitlog/{0:020d}", victim.physical_offset + 44)  # Its born time.
    with pytest.raises(CorruptionError, match=r"byte 0: the 4096 bytes .* not what was sealed"):
        open_small_store(disk)
    plan = planned(disk)
    assert plan.is_empty
    assert [(block.physical_offset, block.size) for block in plan.blocks] == [(0, 4096)]
    before = contents(disk)
    assert carry_out(inspect(disk, ROOT, SMALL), plan, 1) == []
    assert contents(disk) == before, "not unless it is asked for"
    plan.accepts_blocks = True
    assert carry_out(inspect(disk, ROOT, SMALL), plan, 1) == []
    changed = [path for path, data in contents(disk).items() if data != before[path]]
    assert changed == [f"{ROOT}/integrity/{0:020d}"]
    assert verified(disk).findings == []
    assert open_small_store(disk).close(1)
    assert planned(disk).blocks == []


def test_damage_over_the_end_of_a_segment_is_stepped_over() -> None:
    disk = small_store()
    before = messages(disk)
    last = max((m for m in before if m.physical_offset < 4096), key=lambda m: m.physical_offset)
    first = next(m for m in before if m.physical_offset == 4096)
    damage(disk, last)
    damage(disk, first)
    (step,) = planned(disk).steps
    assert step.damage.start == last.physical_offset
    assert step.damage.end == 4096 + first.size
    repaired(disk)
    store = open_small_store(disk)
    assert store.close(2)
    report = verified(disk)
    assert report.findings == []
    assert report.records >= len(before) - 1


def test_killed_at_any_moment_a_repair_can_be_run_again() -> None:
    def damaged() -> SimulatedFileSystem:
        disk = small_store()
        damage(disk, messages(disk)[12])
        return disk

    for cut in (False, True):
        disk = damaged()
        first = disk.operations
        repaired(disk, cut=cut)
        wanted = [m.raw for m in messages(disk)]
        for number in range(first + 1, disk.operations + 1):
            again = damaged()
            again.hook = KillAt(again.operations + number - first)
            with pytest.raises(Killed):
                repaired(again, cut=cut)
            after = again.kill()
            repaired(after, cut=cut)
            assert [m.raw for m in messages(after)] == wanted, number
            store = open_small_store(after)
            assert store.close(2)
            assert verified(after).findings == []


def without_last_segments(disk: SimulatedFileSystem, count: int) -> int:
    """Remove the last files of the log; return where it ends then."""
    log = disk.list(f"{ROOT}/commitlog")
    for entry in log[-count:]:
        disk.remove(f"{ROOT}/commitlog/{entry.name}")
    return int(log[-count].name)


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_is_lost_with_missing_files_is_said_and_kept(count: int, is_clean: bool) -> None:
    disk = small_store(close=is_clean)
    disk = disk if is_clean else disk.kill()
    last = messages(disk)[-1]
    log_end = last.physical_offset + last.size
    before = [m for m in messages(disk) if m.sys_flag & 0xC != 0x4]
    end = without_last_segments(disk, count)
    untouched = contents(disk)
    with pytest.raises(CorruptionError, match="restore the missing files"):
        open_small_store(disk)
    assert any("files are missing" in each.problem for each in verified(disk).findings)
    plan = planned(disk)
    assert contents(disk) == untouched
    assert not plan.is_empty
    assert plan.cut_at is not None
    assert plan.cut_at <= end
    assert plan.missing_to == log_end
    assert plan.missing_size == log_end - max(plan.cut_end, plan.end_offset) > 0
    told = {(each.topic, each.queue_id): each for each in plan.lost}
    if is_clean:
        missing = {(m.topic, m.queue_id) for m in before if m.physical_offset >= plan.cut_at}
        assert told.keys() == missing
    kept = repaired(disk)
    lines = [json.loads(line) for line in content(disk, kept[-1]).splitlines()]
    assert {(line["topic"], line["queue_id"]) for line in lines} == told.keys()
    for line in lines:
        each = told[line["topic"], line["queue_id"]]
        assert b64decode(line["entries"]) == each.entries
        assert (line["first_offset"], line["next_offset"]) == (each.first_offset, each.next_offset)
    store = open_small_store(disk)
    for (topic, queue_id), each in told.items():
        goes_on = each.first_offset if each.has_others else each.next_offset
        assert store.max_offset(topic, queue_id) == goes_on
    assert store.close(1)
    assert verified(disk).is_sound


def test_the_queues_of_a_log_that_is_gone_go_on_behind_what_was_given_out() -> None:
    disk = small_store()
    store = open_small_store(disk)
    ends = {topic: store.max_offset(topic, 0) for topic in ("T", BATCHES)}
    assert store.close(1)
    without_last_segments(disk, len(disk.list(f"{ROOT}/commitlog")))
    plan = planned(disk)
    assert not any(each.has_others for each in plan.lost)
    repaired(disk)
    store = open_small_store(disk)
    for topic, end in ends.items():
        assert (store.min_offset(topic, 0), store.max_offset(topic, 0)) == (end, end)
        assert store.put(topic, 0, b"next", b"", Origin(1, 1, HOST)).queue_offset == end
    store.commit()
    assert store.close(1)
    assert verified(disk).is_sound


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
def test_a_file_that_was_made_ahead_is_no_log_of_which_all_has_expired(is_clean: bool) -> None:
    disk = small_store()
    store = open_small_store(disk)
    ends = {topic: store.max_offset(topic, 0) for topic in ("T", BATCHES)}
    log_end = store.end_offset
    if is_clean:
        assert store.close(1)
    else:
        disk = disk.kill()
    names = [entry.name for entry in disk.list(f"{ROOT}/commitlog")]
    ahead = int(names[-1]) + SMALL.segment_size
    disk.open(f"{ROOT}/commitlog/{ahead:020d}", create=True).resize(SMALL.segment_size)
    assert verified(disk).is_sound
    for name in names:
        disk.remove(f"{ROOT}/commitlog/{name}")
    before = contents(disk)
    problem = f"begins here, but nothing had expired after {log_end}"
    with pytest.raises(CorruptionError, match=problem):
        open_small_store(disk)
    (finding,) = (each for each in verified(disk).findings if "files are missing" in each.problem)
    assert finding.physical_offset == ahead
    with pytest.raises(CorruptionError, match="files are missing"):
        list(rebuild(inspect(disk, ROOT, SMALL), Rebuilt(), 1))
    plan = planned(disk)
    assert contents(disk) == before
    assert (plan.missing_to, plan.cut_at) == (log_end, ahead)
    repaired(disk)
    store = open_small_store(disk)
    assert store.first_offset == ahead
    for topic, end in ends.items():
        assert (store.min_offset(topic, 0), store.max_offset(topic, 0)) == (end, end)
        assert store.put(topic, 0, b"next", b"", Origin(1, 1, HOST)).queue_offset == end
    store.commit()
    assert store.close(1)
    assert verified(disk).is_sound


@pytest.mark.parametrize("cut", [True, False])
def test_what_a_repair_leaves_is_sound_for_verify_before_any_start(cut: bool) -> None:
    found = messages(small_store())
    for number in range(1, len(found), 3):
        after = small_store()
        for each in range(number, number + 1 if cut else len(found), 20):
            damage(after, found[each])
        repaired(after, cut=cut)
        assert verified(after).findings == [], number
        store = open_small_store(after)
        assert store.close(1)
        assert verified(after).findings == [], number


@pytest.mark.parametrize("cut", [True, False])
def test_what_a_repair_did_survives_a_power_cut(cut: bool) -> None:
    wanted: list[bytes] = []
    for seed in range(12):
        disk = small_store()
        damage(disk, messages(disk)[20])
        repaired(disk, cut=cut)
        wanted = wanted or [message.raw for message in messages(disk)]
        after = disk.power_cut(Random(seed))
        assert [message.raw for message in messages(after)] == wanted, seed
        assert verified(after).findings == []


def test_a_repair_behind_a_kill_keeps_what_the_start_had_to_read_back() -> None:
    disk = small_store(close=False).kill()
    before = inspect(disk, ROOT, SMALL).start.replay_from
    found = messages(disk)
    assert before < found[-3].physical_offset
    damage(disk, found[-3])
    repaired(disk)
    claims = load_checkpoint(disk, f"{ROOT}/checkpoint").claims
    assert claims is not None
    assert claims.recover_from == before
    store = open_small_store(disk)
    assert len(read_all(store, "T", 0)) + len(read_all(store, "T", 1)) == 40
    assert store.close(1)
    assert verified(disk).findings == []


@pytest.mark.parametrize("cut", [True, False])
def test_a_list_of_before_another_program_wrote_does_not_come_back(cut: bool) -> None:
    disk = small_store()
    old = content(disk, f"{ROOT}/{QUEUE_ENDS_NAME}")
    store = open_small_store(disk)
    store.delete_topics(["T"])
    for number in range(4):
        store.put("U", 0, b"%d" % number, b"", Origin(1, 1, HOST))
    store.commit()
    assert store.close(1)
    overwrite(disk, f"{ROOT}/{QUEUE_ENDS_NAME}", 0, old)
    disk.open(f"{ROOT}/{QUEUE_ENDS_NAME}").resize(len(old))
    overwrite(disk, f"{ROOT}/checkpoint", 0, (12345).to_bytes(8, "big"))
    damage(disk, messages(disk)[-2])
    repaired(disk, cut=cut)
    ends = load_queue_ends(disk, ROOT) or {}
    assert {key.topic for key in ends} <= {"U"}
    store = open_small_store(disk)
    assert store.max_offset("T", 0) == 0
    assert store.close(2)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_repair_notes_the_sizes_of_files(is_lost: bool) -> None:
    disk = small_store()
    before = load_checkpoint(disk, f"{ROOT}/checkpoint").claims
    assert before is not None
    assert before.queue_file_size == 400
    if is_lost:
        disk.remove(f"{ROOT}/checkpoint")
    damage(disk, messages(disk)[20])
    repaired(disk)
    after = load_checkpoint(disk, f"{ROOT}/checkpoint").claims
    assert after is not None
    assert after.queue_file_size == before.queue_file_size
    assert after.batch_queue_file_size == before.batch_queue_file_size
    assert after.index_shape == before.index_shape


@pytest.mark.parametrize("topic", ["T", BATCHES])
def test_a_lost_message_that_is_stepped_over_counts_where_the_end_is_cut(topic: str) -> None:
    disk = SimulatedFileSystem()
    store = open_small_store(disk)
    for number in range(9):
        origin = Origin(1000, 1000, HOST)
        store.put(topic if number in (0, 3, 8) else "Other", 0, b"body %d" % number, b"", origin)
        store.commit()
    assert store.close(2000)
    found = messages(disk)
    for number in (3, 8):
        damage(disk, found[number])
    (lost,) = planned(disk).lost
    assert (lost.topic, lost.first_offset, lost.next_offset) == (topic, 2, 3)
    repaired(disk)
    assert verified(disk).is_sound
    put = open_small_store(disk).put(topic, 0, b"", b"", Origin(3000, 3000, HOST))
    assert put.queue_offset == 2


class FullFrom:
    """A hook: from one operation on, the disk takes nothing more."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, operation: Operation) -> None:
        if operation.number >= self._number and operation.verb in ("write", "sync", "create"):
            raise OSError(errno.ENOSPC, "No space left on device", operation.path)


@pytest.mark.parametrize("hook", [KillAt, FullFrom])
@pytest.mark.parametrize("cut", [False, True])
def test_ended_anywhere_no_start_takes_damage_for_a_torn_tail_that_it_did_not_before(
    cut: bool, hook: type[KillAt | FullFrom]
) -> None:
    """The store was shut down, and nothing notes how far it is synced."""
    whole = small_store()
    damage(whole, messages(whole)[5])
    whole.remove(f"{ROOT}/checkpoint")
    mended = whole.kill()
    repaired(mended, cut=cut)
    end, number, is_done = open_small_store(mended).end_offset, 0, False
    while not is_done:
        disk, number = whole.kill(), number + 1
        disk.hook = hook(disk.operations + number)
        try:
            repaired(disk, cut=cut)
            is_done = True
        except (Killed, OSError):
            pass
        disk.hook = None
        disk = disk.kill()
        try:
            store = open_small_store(disk)
        except CorruptionError:
            disk = disk.kill()
            repaired(disk, cut=cut)
            store = open_small_store(disk)
        assert store.end_offset == end, number
    assert number > 20


def test_a_full_disk_leaves_no_half_of_the_entries_that_a_cut_keeps() -> None:
    disk = small_store()
    damage(disk, messages(disk)[5])
    disk = disk.kill()

    def full(operation: Operation) -> None:
        if operation.verb == "write" and "-queues-" in operation.path:
            raise OSError(errno.ENOSPC, "No space left on device", operation.path)

    disk.hook = full
    with pytest.raises(OSError, match="No space left"):
        repaired(disk, cut=True)
    disk.hook = None
    assert not [path for path in contents(disk, f"{ROOT}/cut") if "-queues-" in path]
    kept = repaired(disk, cut=True)
    assert any("-queues-" in path for path in kept)


def test_a_torn_entry_behind_the_end_of_a_batch_queue_counts_for_none_that_is_kept() -> None:
    disk = small_store()
    of_queue = [each for each in messages(disk) if (each.topic, each.queue_id) == (BATCHES, 0)]
    assert len(of_queue) > 1
    file = disk.open(f"{ROOT}/batchconsumequeue/{BATCHES}/0/{0:020d}")
    data = file.read(BATCH_ENTRY.size * 40, 0)
    used = -(-len(data.rstrip(b"\0")) // BATCH_ENTRY.size)
    file.write((of_queue[0].physical_offset + 1).to_bytes(8, "big"), used * BATCH_ENTRY.size)
    damage(disk, of_queue[-1])
    repaired(disk, cut=True)
    assert verified(disk).is_sound
    store = open_small_store(disk)
    kept = {each.physical_offset for each in read_all(store, BATCHES, 0)}
    assert kept == {each.physical_offset for each in of_queue[:-1]}
    store.close(1)


def test_a_first_file_that_the_checkpoint_still_needs_has_not_expired() -> None:
    disk = small_store(close=False).kill()
    assert inspect(disk, ROOT, SMALL).start.replay_from == 0
    end = inspect(disk, ROOT, SMALL).segments.end_offset
    disk.remove(f"{ROOT}/commitlog/{0:020d}")
    before = contents(disk)
    with pytest.raises(CorruptionError, match="begins here, but nothing had expired after 0"):
        open_small_store(disk)
    assert contents(disk) == before
    (finding,) = (each for each in verified(disk).findings if "files are missing" in each.problem)
    assert finding.physical_offset == SMALL.segment_size
    repaired(disk)
    store = open_small_store(disk)
    assert SMALL.segment_size == store.first_offset < store.end_offset < end
    assert store.close(1)
    assert verified(disk).is_sound
