"""Rebuilding: the files made from the log alone equal the writer's, byte for byte."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tests.crash.disk import KillAt, Killed, Moment, Operation, SimulatedFileSystem
from tests.store.apache_stores import unpack
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    SMALL,
    content,
    contents,
    files_of,
    flip,
    forget_shape,
    messages,
    open_small_store,
    overwrite,
    small_store,
    verified,
    write_small_store,
)
from tests.store.records import HOST

from cometmq.store.config import StoreConfig
from cometmq.store.disk.filesystem import FileSystem, RealFileSystem
from cometmq.store.disk.real_files import mount_points
from cometmq.store.errors import CorruptionError, StoreFormatError
from cometmq.store.log.turn import Origin
from cometmq.store.looking.findings import Kind
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.mending.rebuilding import Rebuilt, check_rebuildable, rebuild
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME
from cometmq.store.starting.swap import BESIDE, finish_swap, remove_tree, unfinished_swaps
from cometmq.store.upkeep.checkpoint import load_checkpoint

NOW_MS = 1_795_256_000_000


def rebuilt(
    disk: FileSystem,
    root: str = ROOT,
    config: StoreConfig = SMALL,
    *,
    accept_restarts: bool = False,
    accept_gaps: bool = False,
) -> Rebuilt:
    done = Rebuilt()
    store = inspect(disk, root, config)
    flags = {"accept_restarts": accept_restarts, "accept_gaps": accept_gaps}
    for _ in rebuild(store, done, NOW_MS, **flags):
        pass
    return done


def derived(disk: FileSystem, root: str) -> dict[str, list[bytes]]:
    """Return all files derived from the log; those of the index in order, as their names differ."""
    found: dict[str, list[bytes]] = {}
    for folder in ("consumequeue", "batchconsumequeue", "index"):
        for path, data in contents(disk, f"{root}/{folder}").items():
            found.setdefault(folder if folder == "index" else path, []).append(data)
    return found


@pytest.mark.parametrize("name", ["clean", "killed", "ext"])
def test_the_queues_and_the_index_of_apache_are_made_again_byte_for_byte(
    name: str, tmp_path: Path
) -> None:
    root, disk = str(unpack(name, tmp_path)), RealFileSystem()
    before, log = derived(disk, root), contents(disk, f"{root}/commitlog")
    done = rebuilt(disk, root, StoreConfig())
    assert derived(disk, root) == before
    assert contents(disk, f"{root}/commitlog") == log
    assert done.entries > 50
    assert done.deleted_topics == ({} if name == "ext" else {"S_del": 10})
    assert not disk.exists(f"{root}/{BESIDE}")


def test_queues_that_are_damaged_or_gone_are_as_they_were_written() -> None:
    disk = small_store()
    before = derived(disk, ROOT)
    flip(disk, f"{ROOT}/consumequeue/T/0/00000000000000000000", 3, 255)
    disk.remove(f"{ROOT}/consumequeue/T/1/00000000000000000000")
    disk.remove_directory(f"{ROOT}/consumequeue/T/1")
    for entry in disk.list(f"{ROOT}/index")[1:]:
        disk.remove(f"{ROOT}/index/{entry.name}")
    overwrite(disk, f"{ROOT}/batchconsumequeue/{BATCHES}/0/00000000000000000000", 40, bytes(100))
    assert not verified(disk).is_sound
    assert rebuilt(disk).records == len(messages(disk))
    assert derived(disk, ROOT) == before
    assert verified(disk).is_sound


def test_of_an_index_without_any_message_in_the_log_nothing_stays() -> None:
    disk = SimulatedFileSystem()
    store = open_small_store(disk)
    store.put("T", 0, b"no keys", b"", Origin(1, 1, HOST))
    store.commit()
    assert store.close(1)
    other = small_store()
    path, *_ = files_of(other, f"{ROOT}/index")
    stray = disk.open(path, create=True)
    stray.write(content(other, path), 0)
    stray.close()
    assert not verified(disk).is_sound
    rebuilt(disk)
    assert disk.list(f"{ROOT}/index") == []
    assert verified(disk).is_sound


def test_a_queue_whose_messages_have_expired_keeps_its_offset() -> None:
    disk = small_store()
    with_store = MessageStore.open(
        ROOT, SMALL, now_ms=1, filesystem=disk, is_batch_topic=lambda t: t == BATCHES, threads=False
    )
    schedule_end = with_store.max_offset("SCHEDULE_TOPIC_XXXX", 2)
    assert with_store.close(2)
    for entry in disk.list(f"{ROOT}/commitlog")[:-1]:
        disk.remove(f"{ROOT}/commitlog/{entry.name}")
    before = content(disk, f"{ROOT}/consumequeue/SCHEDULE_TOPIC_XXXX/2/00000000000000000000")
    done = rebuilt(disk)
    assert done.kept_queues == 2
    after = content(disk, f"{ROOT}/consumequeue/SCHEDULE_TOPIC_XXXX/2/00000000000000000000")
    assert (after, schedule_end) == (before, 5)
    assert verified(disk).is_sound


@pytest.mark.parametrize("batch", [False, True], ids=["simple", "batch"])
def test_a_lost_queue_whose_messages_have_expired_goes_on_where_it_was(batch: bool) -> None:
    disk = small_store()
    topic, queue_id = (BATCHES, 0) if batch else ("SCHEDULE_TOPIC_XXXX", 2)
    queue = f"{ROOT}/{'batch' if batch else ''}consumequeue/{topic}/{queue_id}"
    for entry in disk.list(f"{ROOT}/commitlog")[:-1]:
        disk.remove(f"{ROOT}/commitlog/{entry.name}")
    rebuilt(disk)
    for path in list(files_of(disk, queue)):
        disk.remove(path)
    assert [(each.kind, each.topic) for each in verified(disk).findings] == [
        (Kind.MISSING_ENTRY, topic)
    ]
    rebuilt(disk)
    assert verified(disk).findings == []
    store = open_small_store(disk)
    assert store.max_offset(topic, queue_id) == (16 if batch else 5)
    assert store.min_offset(topic, queue_id) == (16 if batch else 5)
    assert store.close(2)


@pytest.mark.parametrize("damage", ["none", "hole", "too short", "behind the end"])
@pytest.mark.parametrize("batch", [False, True], ids=["simple", "batch"])
@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_one_does_so_too_whatever_becomes_of_the_machine(
    damage: str, batch: bool, seed: int
) -> None:
    """After the rebuild the power is cut, and the broker that is started then is killed."""
    disk = small_store()
    topic, queue_id = (BATCHES, 0) if batch else ("SCHEDULE_TOPIC_XXXX", 2)
    folder, entry_size = ("batchconsumequeue", 46) if batch else ("consumequeue", 20)
    path = f"{ROOT}/{folder}/{topic}/{queue_id}/{0:020d}"
    for entry in disk.list(f"{ROOT}/commitlog")[:-1]:
        disk.remove(f"{ROOT}/commitlog/{entry.name}")
    rebuilt(disk)
    before = content(disk, path)
    count = len(before.rstrip(b"\0")) // entry_size + 1
    file = disk.open(path)
    match damage:
        case "hole":
            file.write(bytes(entry_size), 2 * entry_size)
        case "too short":
            file.resize(3 * entry_size - 7)
        case "behind the end":
            file.write(before[:entry_size], count * entry_size)
        case _:
            pass
    file.sync()
    rebuilt(disk)
    disk = disk.power_cut(Random(seed))
    assert verified(disk).is_sound
    if damage in {"none", "behind the end"}:
        assert content(disk, path) == before
    for _ in range(2):
        store = open_small_store(disk)
        end = 16 if batch else 5
        assert (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)) == (end, end)
        disk = disk.kill()


@pytest.mark.parametrize("has_hole", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_so_does_one_of_many_entries(has_hole: bool, seed: int) -> None:
    """A file has 400 of them, not all of which are looked at to find its end."""
    config, origin = replace(SMALL, consume_queue_file_size=8000), Origin(1, 1, HOST)
    disk = SimulatedFileSystem()
    store = open_small_store(disk, config)
    for _ in range(450):
        store.put("T", 0, b"", b"", origin)
    end = store.commit()
    while store.end_offset < end + config.segment_size:
        store.put("Other", 0, bytes(1000), b"", origin)
        store.commit()
    assert store.close(2)
    for entry in disk.list(f"{ROOT}/commitlog"):
        if int(entry.name) + config.segment_size <= end:
            disk.remove(f"{ROOT}/commitlog/{entry.name}")
    last = int(disk.list(f"{ROOT}/commitlog")[0].name)
    assert last < end
    disk.remove(f"{ROOT}/commitlog/{last:020d}")
    rebuilt(disk, config=config)
    queue = f"{ROOT}/consumequeue/T/0"
    first = f"{queue}/{0:020d}"
    if has_hole:
        file = disk.open(first)
        file.write(bytes(20), 100 * 20)
        file.sync()
    before = contents(disk, queue)
    assert rebuilt(disk, config=config).kept_queues == 1
    disk = disk.power_cut(Random(seed))
    after = contents(disk, queue)
    if has_hole:
        assert list(after) == [f"{queue}/{8000:020d}"]  # The one that keeps the offset.
    else:
        assert after == before
    store = open_small_store(disk, config)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (450, 450)


def given_twice(*, batch: bool) -> SimulatedFileSystem:
    """A store that lost a queue, and gave the queue's offsets out again."""
    disk = small_store()
    topic, folder = (BATCHES, "batchconsumequeue") if batch else ("T", "consumequeue")
    for path in list(files_of(disk, f"{ROOT}/{folder}/{topic}/0")):
        disk.remove(path)
    disk.remove(f"{ROOT}/{QUEUE_ENDS_NAME}")
    store = open_small_store(disk)
    origin = Origin(1, 1, HOST)
    puts = [store.put(topic, 0, b"again", b"", origin) for _ in range(3)]
    assert [put.queue_offset for put in puts] == [0, 1, 2]
    store.commit()
    assert store.close(2)
    return disk


@pytest.mark.parametrize("batch", [False, True], ids=["simple", "batch"])
def test_offsets_that_were_given_out_twice_are_found_and_not_made_final(batch: bool) -> None:
    disk = given_twice(batch=batch)
    found = verified(disk).findings
    missing = {each.topic for each in found}
    assert missing == {BATCHES if batch else "T"}
    twice = [each for each in found if "given out again" in each.problem]
    assert len(twice) == (8 if batch else 3)
    assert {each.kind for each in found} == {Kind.OFFSET_TWICE}
    before = contents(disk)
    with pytest.raises(StoreFormatError, match=r"given out again.*--accept-restarts"):
        rebuilt(disk)
    assert contents(disk) == before
    rebuilt(disk, accept_restarts=True)
    store = open_small_store(disk)
    assert store.max_offset(BATCHES if batch else "T", 0) == 3
    assert store.close(3)


def test_removed_queues_get_files_as_long_as_they_had() -> None:
    disk = small_store()
    before = contents(disk)
    for folder in ("consumequeue", "batchconsumequeue"):
        remove_tree(disk, f"{ROOT}/{folder}")
    rebuilt(disk, config=StoreConfig())
    assert {path for path in contents(disk) if "consumequeue" in path} == {
        path for path in before if "consumequeue" in path
    }
    assert verified(disk).is_sound


def test_a_damaged_log_is_refused_and_nothing_is_changed() -> None:
    disk = small_store()
    flip(disk, f"{ROOT}/commitlog/00000000000000000000", 8, 255)
    before = contents(disk)
    with pytest.raises(CorruptionError, match="store repair"):
        rebuilt(disk)
    assert contents(disk) == before


def test_an_index_of_a_shape_that_nobody_knows_is_refused() -> None:
    disk = small_store()
    for path, data in contents(disk, f"{ROOT}/index").items():
        overwrite(disk, path, 0, bytes(len(data)))
    config = StoreConfig()
    check_rebuildable(inspect(disk, ROOT, config))  # It is noted.
    forget_shape(disk)
    with pytest.raises(StoreFormatError, match="--index-slots"):
        check_rebuildable(inspect(disk, ROOT, config))
    check_rebuildable(inspect(disk, ROOT, SMALL))


def test_a_damaged_table_of_topics_is_refused_for_it_says_which_were_deleted(
    tmp_path: Path,
) -> None:
    store = unpack("clean", tmp_path)
    table = store / "config" / "topics.json"
    whole = table.read_bytes()
    table.write_bytes(whole[:300])
    table.with_name("topics.json.bak").unlink(missing_ok=True)
    disk = RealFileSystem()
    with pytest.raises(StoreFormatError, match=r"config/topics\.json: .*restore it from a copy"):
        check_rebuildable(inspect(disk, str(store), StoreConfig()))
    table.write_bytes(whole)
    check_rebuildable(inspect(disk, str(store), StoreConfig()))


class WithoutExchange:
    """A hook: the disk cannot exchange two names, and the process ends at one operation."""

    def __init__(self, number: int) -> None:
        self._kill = KillAt(number)

    def __call__(self, operation: Operation) -> None:
        self._kill(operation)
        if operation.verb == "exchange" and operation.moment is Moment.BEFORE:
            raise OSError(errno.EINVAL, "Invalid argument", operation.path)


@pytest.mark.parametrize("hook", [KillAt, WithoutExchange])
def test_killed_at_any_moment_each_folder_is_wholly_old_or_wholly_new(
    hook: type[KillAt | WithoutExchange],
) -> None:
    damaged = f"{ROOT}/consumequeue/T/0/00000000000000000000"
    disk = small_store()
    flip(disk, damaged, 3, 255)
    old = derived(disk, ROOT)
    first = disk.operations
    count = disk.kill()  # A copy, to count what a whole run does.
    count.hook = hook(1 << 30)
    rebuilt(count)
    new = derived(count, ROOT)
    total = count.operations
    seen: set[bool] = set()
    cut_off = 0
    # Each operation of the swap, and some of those before.
    for number in [*range(1, total - 40, max(1, total // 30)), *range(total - 40, total + 1)]:
        disk = small_store()
        flip(disk, damaged, 3, 255)
        assert disk.operations == first
        disk.hook = hook(disk.operations + number)
        with pytest.raises(Killed):
            rebuilt(disk)
        for after in (disk.kill(), disk.power_cut(Random(number))):
            is_cut_off = bool(unfinished_swaps(after, ROOT))
            if is_cut_off:
                cut_off += 1
                with pytest.raises(StoreFormatError, match="store rebuild"):
                    inspect(after, ROOT, SMALL)
                finish_swap(after, ROOT)
            found = derived(after, ROOT)
            for path, data in found.items():
                assert data in (old[path], new[path]), (number, path)
            assert found.keys() == old.keys()
            seen.add(found == new)
            rebuilt(after)
            assert derived(after, ROOT) == new
            assert not after.exists(f"{ROOT}/{BESIDE}")
    assert seen == {True, False}
    assert (cut_off > 5) is (hook is WithoutExchange)


def test_a_start_finishes_a_swap_that_was_cut_off() -> None:
    disk = small_store()
    before = derived(disk, ROOT)
    disk.make_directories(f"{ROOT}/{BESIDE}")
    disk.rename(f"{ROOT}/consumequeue", f"{ROOT}/{BESIDE}/consumequeue.old")
    rebuilt_disk = small_store()
    for path, data in contents(rebuilt_disk, f"{ROOT}/consumequeue").items():
        new = path.replace(ROOT, f"{ROOT}/{BESIDE}")
        disk.make_directories(new.rpartition("/")[0])
        disk.open(new, create=True).write(data, 0)
    store = MessageStore.open(
        ROOT, SMALL, now_ms=1, filesystem=disk, is_batch_topic=lambda t: t == BATCHES, threads=False
    )
    assert store.close(1)
    assert derived(disk, ROOT) == before


def test_a_queue_that_begins_behind_a_gap_of_the_log_stays_so_for_the_next_start() -> None:
    """A record's number is damaged, which no checksum covers, so a start refuses the store."""
    config = replace(SMALL, integrity=False)
    disk = small_store(config, close=False).kill()
    log = f"{ROOT}/commitlog/00000000000000000000"
    second = next(m for m in LogCheck(inspect(disk, ROOT, SMALL)) if m.queue_offset == 1)
    overwrite(disk, log, second.physical_offset + 20, (1 << 40).to_bytes(8, "big"))

    def opened() -> MessageStore:
        return open_small_store(disk, config)

    with pytest.raises(CorruptionError, match="store rebuild"):
        opened()
    disk = disk.kill()
    before = contents(disk)
    with pytest.raises(CorruptionError, match=r"T queue \d offset 1099511627776, but.*repair"):
        rebuilt(disk)
    assert contents(disk) == before
    assert rebuilt(disk, accept_gaps=True).gaps == [f"{second.topic}/{second.queue_id}"]
    store = opened()
    assert store.min_offset(second.topic, second.queue_id) == 2
    assert store.close(1)
    assert opened().close(1)


FOREIGN = (
    *("index/foo", "index/copy/20240101000000000", "consumequeue/x.txt", "consumequeue/T/y.txt"),
    *("consumequeue/T/old/z", "consumequeue/T/0/notes.txt", "consumequeue/Gone/w"),
    *("batchconsumequeue/q", "consumequeue/T/0/17"),
)


def with_foreign_files() -> SimulatedFileSystem:
    disk = small_store()
    for name in FOREIGN:
        path = f"{ROOT}/{name}"
        disk.make_directories(path.rpartition("/")[0])
        file = disk.open(path, create=True)
        file.write(name.encode(), 0)
        file.close()
    return disk


def test_what_others_keep_in_the_folders_stays_where_it_was() -> None:
    disk = with_foreign_files()
    before = contents(disk)
    rebuilt(disk)
    after = contents(disk)
    assert {name: after.get(f"{ROOT}/{name}") for name in FOREIGN} == {
        name: before[f"{ROOT}/{name}"] for name in FOREIGN
    }
    assert not disk.exists(f"{ROOT}/{BESIDE}")


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
def test_a_copy_of_a_folder_under_a_name_that_no_topic_has_stays_as_it_is(is_clean: bool) -> None:
    disk = small_store(close=is_clean)
    disk = disk if is_clean else disk.kill()
    copy = f"{ROOT}/consumequeue/copie_d\udce9c"  # From a byte that is no UTF-8.
    for queue_id in (0, 1):
        data = content(disk, f"{ROOT}/consumequeue/T/{queue_id}/{0:020d}")
        disk.make_directories(f"{copy}/{queue_id}")
        disk.open(f"{copy}/{queue_id}/{0:020d}", create=True).write(data, 0)
    before = contents(disk, copy)
    assert verified(disk).findings == []
    store = open_small_store(disk)
    assert sorted(store.queues.topics()) == [BATCHES, "SCHEDULE_TOPIC_XXXX", "T"]
    for _ in store.queues.settle():
        pass
    assert store.close(1)
    rebuilt(disk)
    assert contents(disk, copy) == before
    assert verified(disk).findings == []


@pytest.mark.parametrize("can_exchange", [True, False])
def test_what_others_keep_survives_a_rebuild_that_is_killed_at_any_moment(
    can_exchange: bool,
) -> None:
    def refuse(operation: Operation) -> None:
        if operation.verb == "exchange" and not can_exchange and operation.moment is Moment.BEFORE:
            raise OSError(errno.EINVAL, "Invalid argument", operation.path)

    def run(disk: SimulatedFileSystem, kill: KillAt | None) -> None:
        def hook(operation: Operation) -> None:
            if kill is not None:
                kill(operation)
            refuse(operation)

        disk.hook = hook
        rebuilt(disk)

    whole = with_foreign_files()
    first = whole.operations
    run(whole, None)
    for number in range(whole.operations, first, -1):
        disk = with_foreign_files()
        with pytest.raises(Killed):
            run(disk, KillAt(disk.operations + number - first))
        after = disk.kill()
        finish_swap(after, ROOT)
        run(after, None)
        found = contents(after)
        assert [found.get(f"{ROOT}/{name}") for name in FOREIGN] == [n.encode() for n in FOREIGN]
        if number < whole.operations - 80:
            break


@pytest.mark.parametrize("folder", ["consumequeue", "index", "consumequeue/T", "consumequeue/T/0"])
def test_a_link_is_refused_before_any_work(folder: str, tmp_path: Path) -> None:
    root, disk = tmp_path / "s", RealFileSystem()
    write_small_store(disk, str(root))
    (root / folder).rename(tmp_path / "target")
    (root / folder).symlink_to(tmp_path / "target")
    before = contents(disk, str(root))
    with pytest.raises(StoreFormatError, match=rf"{root / folder}: a link or a mount point"):
        check_rebuildable(inspect(disk, str(root), SMALL))
    assert contents(disk, str(root)) == before
    assert not (root / BESIDE).exists()


def test_a_mount_point_is_known_by_its_name_in_the_kernels_table() -> None:
    table = (
        "36 35 98:0 / / rw - ext4 /dev/root rw\n"
        r"37 36 98:0 /q /data/my\040store/consumequeue rw,noatime master:1 - ext4 /dev/root rw"
    )
    assert mount_points(table) == {"/", "/data/my store/consumequeue"}
    assert RealFileSystem().immovable(["/proc/self", "/"]) == "/proc/self"
    assert RealFileSystem().immovable(["/none", "/"]) == "/"


def test_behind_a_torn_tail_a_rebuild_claims_what_was_known_to_be_on_the_disk() -> None:
    disk = small_store(close=False).kill()
    end = verified(disk).end_offset
    path = f"{ROOT}/commitlog/{end // 4096 * 4096:020d}"
    overwrite(disk, path, end % 4096, b"\0\0\1\0\xda\xa3\x20\xa7torn")
    before = load_checkpoint(disk, f"{ROOT}/checkpoint").claims
    rebuilt(disk)
    after = load_checkpoint(disk, f"{ROOT}/checkpoint").claims
    assert before is not None
    assert after is not None
    assert before.recover_from < after.recover_from == before.synced_offset == end
