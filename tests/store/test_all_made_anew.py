"""A start that rebuilds all entries may be cut off at any moment, and so may the next process."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.crash.disk import KillAt, Killed, Moment, SimulatedFileSystem
from tests.store.damaged_stores import files_of, overwrite
from tests.store.held_stores import CONFIG, MESSAGES, ROOT, Held, rebuild

from cometmq.store.config import Flush, StoreConfig
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.noted_ends import Changes
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME, load_queue_ends
from cometmq.store.upkeep.checkpoint import load_checkpoint

RARE = replace(CONFIG, checkpoint_interval_ms=100_000, flush=Flush.ASYNC)
"""No checkpoint is taken between a start and the end of its process."""
SYNCED = 20
"""Messages of each queue that no power cut may take."""


class Contradicted(Held):
    """A store whose last record, which was not synced, was torn: its queue offset is 0."""

    def __init__(self, config: StoreConfig = RARE) -> None:
        self.config = config
        self.disk = SimulatedFileSystem()
        self.now_ms = 1000
        self.opened()
        for number in range(SYNCED):
            self.put(b"T%d" % number)
            self.put(b"O%d" % number, topic="Other")
        for _ in range(300):
            self.now_ms += 1000
            self.store.tick(self.now_ms)
            self.store.run_jobs()
        self.put(b"torn", topic="Other")
        queue = self.store.queues.simple.get("Other", 0)
        place, _ = queue.head(queue.end - 1)
        self.disk = self.disk.kill()
        segment = place // RARE.segment_size * RARE.segment_size
        overwrite(self.disk, f"{ROOT}/commitlog/{segment:020d}", place - segment + 20, bytes(8))

    def opened(self, config: StoreConfig | None = None) -> MessageStore:
        return super().opened(config or self.config)

    def check(self) -> None:
        """Check that nothing synced is lost, and that no offset is given out again."""
        for topic in ("T", "Other"):
            assert len(self.bodies(topic)) >= SYNCED
            assert self.put(b"next", topic) >= SYNCED


def test_a_checkpoint_promises_nothing_of_entries_that_are_made_anew() -> None:
    held = Contradicted()
    claims = load_checkpoint(held.disk, f"{ROOT}/checkpoint").claims
    assert claims is not None
    assert claims.recover_from > 0
    held.opened()
    claims = load_checkpoint(held.disk, f"{ROOT}/checkpoint").claims
    assert claims is not None
    assert claims.recover_from == 0, "the first record"
    assert load_queue_ends(held.disk, ROOT) == {}
    held.check()


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "no list"])
@pytest.mark.parametrize("seed", [None, *range(12)])
def test_entries_that_were_made_anew_are_made_again_behind_a_kill(
    seed: int | None, listed: bool
) -> None:
    held = Contradicted()
    if not listed:
        held.disk.remove(f"{ROOT}/queue_ends.json")
        held.disk.sync_directory(ROOT)
    held.opened()
    held.disk = held.disk.kill() if seed is None else held.disk.power_cut(Random(seed))
    held.opened()
    held.check()


@pytest.mark.parametrize("moment", Moment)
def test_a_start_that_is_killed_while_it_makes_them_anew_is_followed_by_one_that_does(
    moment: Moment,
) -> None:
    operations, was_killed = 0, True
    while was_killed:
        held = Contradicted()
        operations += 1
        held.disk.hook = KillAt(held.disk.operations + operations, moment)
        try:
            held.opened()
            was_killed = False
        except Killed:
            held.disk.hook = None
            held.disk = held.disk.kill()
            held.opened()
            held.check()
    assert operations > 20


@pytest.mark.parametrize("topic", ["T", "Other"])
def test_a_lost_first_file_is_made_anew_with_all_others(topic: str) -> None:
    held = Contradicted(replace(RARE, consume_queue_file_size=5 * 20))
    held.disk.remove(f"{ROOT}/consumequeue/{topic}/0/{0:020d}")
    held.opened()
    assert held.store.min_offset(topic, 0) == 0
    held.check()
    held.stop(clean=True)
    held.opened()
    held.check()


class StoppedError(Exception):
    """A rebuild ends where its process would be killed."""


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "no list"])
def test_a_queue_whose_only_message_nobody_promised_goes_on_behind_half_a_rebuild(
    listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise StoppedError

    held = Held()
    for number in range(2 * MESSAGES):
        held.put(b"%d" % number)
    held.stop(clean=True)
    held.opened(RARE)
    held.put(b"O%d" % MESSAGES, "Other")
    held.disk = held.disk.kill()
    for path in list(files_of(held.disk, f"{ROOT}/commitlog"))[:-2]:  # The last is made ahead.
        held.disk.remove(path)
    held.disk.sync_directory(f"{ROOT}/commitlog")
    if not listed:
        held.disk.remove(f"{ROOT}/{QUEUE_ENDS_NAME}")
        held.disk.sync_directory(ROOT)
    with monkeypatch.context() as patched:
        patched.setattr(Changes, "save", stop)  # Called first after the swap.
        with pytest.raises(StoppedError):
            rebuild(held)
    held.disk = held.disk.kill()
    for _ in range(2):
        held.opened(RARE)
        assert held.bodies("Other") == [b"O%d" % MESSAGES]
        held.disk = held.disk.kill()
    held.opened(RARE)
    assert held.put(b"next", "Other") == MESSAGES + 1
