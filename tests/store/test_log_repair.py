"""What a start leaves on the disk: nothing that the kernel no longer shows may come back."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest
from tests.crash.disk import Killed, Moment, Operation, Partial, SimulatedFileSystem
from tests.store.records import record, refuse

from cometmq.store.config import StoreConfig
from cometmq.store.errors import SyncFailedError
from cometmq.store.log.log_scan import LogScan
from cometmq.store.log.record_search import data_end
from cometmq.store.log.segments import Segments
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore
from cometmq.store.starting.folder import LOG_FOLDER
from cometmq.store.starting.log_repair import keep
from cometmq.store.starting.recovery import LogEnd
from cometmq.store.upkeep.checkpoint import load_checkpoint

SIZE = 64 * 1024
CONFIG = StoreConfig(segment_size=SIZE, zero_ahead_size=0)
LOG = f"/s/{LOG_FOLDER}"
CUTS = 60


def opened(disk: SimulatedFileSystem, config: StoreConfig = CONFIG) -> MessageStore:
    return MessageStore.open("/s", config, now_ms=1, filesystem=disk, threads=False)


def put(store: MessageStore, *bodies: bytes) -> None:
    for body in bodies:
        store.put("T", 0, body, b"", Origin(1, 1, CONFIG.store_host))
    store.commit()


def with_one_message() -> tuple[SimulatedFileSystem, MessageStore]:
    disk = SimulatedFileSystem()
    store = opened(disk)
    put(store, b"kept")
    store.run_jobs()
    return disk, store


def assert_nothing_comes_back(disk: SimulatedFileSystem, config: StoreConfig = CONFIG) -> None:
    """Check that, after a start and any power cut, the log has one message and nothing after it."""
    store = opened(disk, config)
    end = store.end_offset
    assert store.close(1)
    for seed in range(CUTS):
        after = disk.power_cut(Random(seed))
        segments = Segments(after, LOG, SIZE)
        scan = LogScan(segments, 0)
        assert len(list(scan)) == 1
        assert (scan.end_offset, data_end(segments, end)) == (end, end)


def test_a_refused_turn_whose_erasing_was_not_synced_stays_away() -> None:
    disk, store = with_one_message()
    is_refused = False

    def fail(operation: Operation) -> None:
        nonlocal is_refused
        if operation.moment is Moment.BEFORE and operation.verb == "write" and not is_refused:
            is_refused = True
            raise Partial(SIZE, OSError(errno.EIO, "refused by the test"))
        if operation.moment is Moment.BEFORE and operation.verb == "sync":
            raise OSError(errno.EIO, "refused by the test")

    disk.hook = fail
    with pytest.raises(SyncFailedError):
        put(store, b"refused 1", b"refused 2")
    disk.hook = None
    assert_nothing_comes_back(disk.kill())


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, turn_size_max=1024)])
def test_a_torn_tail_whose_erasing_was_not_synced_stays_away(config: StoreConfig) -> None:
    """This holds even if it is longer than any turn: what was cut tells its length."""
    disk, store = with_one_message()
    end = store.end_offset
    path = f"{LOG}/{0:020d}"
    torn = bytearray(record(end, b"torn" * 1000, queue_offset=1))
    torn[100] ^= 1
    disk = disk.kill()
    disk.open(path).write(torn, end)
    disk.open(path).write(record(end + len(torn), b"behind", queue_offset=2), end + len(torn))
    seen = 0

    def fail(operation: Operation) -> None:
        nonlocal seen
        if operation.verb == "sync" and operation.path == path:
            seen += 1
            refuse("sync")(operation)

    disk.hook = fail
    with pytest.raises(OSError, match="refused"):
        opened(disk, config)
    assert seen
    disk.hook = None
    assert_nothing_comes_back(disk.kill(), config)


def test_what_a_killed_repair_mended_in_memory_alone_is_brought_to_the_disk() -> None:
    """This includes a file before the tail, which a start only reads."""
    disk, store = with_one_message()
    for _ in range(3):
        put(store, b"x" * 30_000)
        store.run_jobs()
    del store
    disk = disk.kill()
    file = disk.open(f"{LOG}/{0:020d}")
    sound = file.read(SIZE, 0)
    file.write(bytes(1000), 10_000)
    file.sync()
    file.write(sound[10_000:11_000], 10_000)
    disk = disk.kill()
    store = opened(disk)
    assert len(store.segments) == 2
    for seed in range(CUTS):
        after = disk.power_cut(Random(seed))
        assert after.open(f"{LOG}/{0:020d}").read(SIZE, 0) == sound


@pytest.mark.parametrize("is_settled", [False, True])
def test_a_torn_tail_behind_zeros_is_cut_though_nothing_says_that_the_store_was_killed(
    is_settled: bool,
) -> None:
    """Only `abort` is lost: a clean stop leaves the same, except for that tail."""
    disk, store = with_one_message()
    if is_settled:
        assert store.close(1)
        store = opened(disk)
    end = store.end_offset
    put(store, b"not on the disk", b"half there")
    disk = disk.kill()
    file = disk.open(f"{LOG}/{0:020d}")
    file.write(bytes(50), end)  # The sector that did not reach the disk.
    file.sync()
    file.close()
    disk.remove("/s/abort")
    disk.sync_directory("/s")
    store = opened(disk)
    assert store.end_offset == end
    kept = store.kept
    assert kept is not None
    assert b"half there" in disk.open(kept).read(SIZE, 0)
    assert store.close(1)
    assert_nothing_comes_back(disk)


def test_a_full_disk_hinders_no_start_that_only_erases_what_was_never_written() -> None:
    disk, store = with_one_message()
    end = store.end_offset
    del store
    disk = disk.kill()
    disk.open(f"{LOG}/{0:020d}").resize(end)
    disk.open(f"{LOG}/{0:020d}").resize(SIZE)  # As Apache leaves it: the rest is a hole.

    def full(operation: Operation) -> None:
        if operation.verb == "write" and operation.path.startswith(LOG):
            raise Partial(0, OSError(errno.ENOSPC, "refused by the test"))

    disk.hook = full
    store = opened(disk)
    disk.hook = None
    assert store.end_offset == end
    assert store.close(1)


def torn() -> tuple[SimulatedFileSystem, Segments, LogEnd]:
    disk, store = with_one_message()
    end = store.end_offset
    assert store.close(1)
    file = disk.open(f"{LOG}/{0:020d}")
    file.write(b"torn", end)
    file.sync()
    file.close()
    segments = Segments(disk, LOG, SIZE, known_size=SIZE, maps_max=4)
    return disk, segments, LogEnd(end, end + 4)


@pytest.mark.parametrize("verb", ["write", "sync"])
def test_a_copy_that_the_disk_does_not_take_is_not_left_half(verb: str) -> None:
    disk, segments, end = torn()
    disk.hook = refuse(verb, code=errno.ENOSPC)
    with pytest.raises(OSError, match="refused"):
        keep(disk, "/s", segments, end)
    assert not disk.exists("/s/cut")
    assert keep(disk, "/s", segments, end).endswith("-0")


def test_a_copy_is_on_the_disk_and_never_written_over_another() -> None:
    disk, segments, end = torn()
    first = keep(disk, "/s", segments, end)
    assert keep(disk, "/s", segments, end) == first
    file = disk.open(f"{LOG}/{0:020d}")
    file.write(b"else", end.offset)
    file.sync()
    second = keep(disk, "/s", segments, end)
    assert second != first
    for seed in range(CUTS):
        after = disk.power_cut(Random(seed))
        for path, text in ((first, b"torn"), (second, b"else")):
            assert after.open(path, read_only=True).read(9, 0) == text


@pytest.mark.parametrize("synced", ["/s/cut/", "/s/cut", "/s"])
def test_a_copy_that_a_killed_start_did_not_sync_is_synced_before_the_log_is_erased(
    synced: str,
) -> None:
    disk, store = with_one_message()
    end, path = store.end_offset, f"{LOG}/{0:020d}"
    torn = bytearray(record(end, b"torn" * 1000, queue_offset=1))
    torn[100] ^= 1
    disk = disk.kill()
    disk.open(path).write(torn, end)
    disk.open(path).sync()
    cut = f"/s/cut/{end:020d}-0"
    place = f"{synced}{end:020d}-0" if synced.endswith("/") else synced
    copied = disk

    def strike(operation: Operation) -> None:
        is_sync = operation.verb.startswith("sync") and operation.moment is Moment.BEFORE
        if is_sync and operation.path == place and copied.exists(cut):
            raise Killed(operation)

    disk.hook = strike
    with pytest.raises(Killed):
        opened(disk)
    disk = disk.kill()
    disk.hook = None
    assert opened(disk).end_offset == end
    for seed in range(20):
        image = disk.power_cut(Random(seed))
        in_log = image.open(path).read(len(torn), end) == bytes(torn)
        kept = image.exists(cut) and image.open(cut).read(len(torn), 0)
        assert in_log or kept == bytes(torn).rstrip(b"\0"), seed


@pytest.mark.parametrize("threads", [True, False])
def test_a_tail_that_the_disk_refuses_to_sync_again_refuses_the_start_and_stays_unpromised(
    threads: bool,
) -> None:
    """This holds also if its entries are made meanwhile, beside the thread that syncs."""
    disk, store = with_one_message()
    put(store, b"behind")
    end = store.end_offset
    disk = disk.kill()
    log = f"{LOG}/{0:020d}"

    def refuse_sync(operation: Operation) -> None:
        if (operation.verb, operation.path) == ("sync", log):
            raise OSError(errno.EIO, "refused by the test")

    disk.hook = refuse_sync
    with pytest.raises(OSError, match="refused by the test"):
        MessageStore.open("/s", CONFIG, now_ms=1, filesystem=disk, threads=threads)
    disk.hook = None
    promised = load_checkpoint(disk, "/s/checkpoint").claims
    assert promised is not None
    assert promised.synced_offset < end
    store = MessageStore.open("/s", CONFIG, now_ms=1, filesystem=disk, threads=threads)
    assert store.end_offset == end
    assert store.queues.simple.get("T", 0).end == 2
    assert store.close(1)
