"""After a segment expired, the begins of the queues are found again without the loop waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.cold_watch import Watch
from tests.store.test_expiry import CONFIG, TOPICS, Life

from cometmq.store.queues import letting_go
from cometmq.store.queues.consume_queue import ConsumeQueue


@pytest.fixture
def life() -> Life:
    """A store of which more may be removed than is kept."""
    life = Life()
    for _ in range(4):
        life.put(25)
        life.checkpoint()
    life.disk.is_cold = True
    return life


@pytest.mark.parametrize("is_opened_anew", [False, True])
@pytest.mark.parametrize("together", [1, 2, 64])
def test_the_files_that_go_are_found_in_a_thread(
    life: Life, monkeypatch: pytest.MonkeyPatch, together: int, *, is_opened_anew: bool
) -> None:
    monkeypatch.setattr(letting_go, "COLD_QUEUES", together)
    if is_opened_anew:  # No queue is loaded then.
        assert life.store.close(life.now_ms)
        life.store = life.open()
    watch = Watch(monkeypatch)
    run_jobs = life.store.run_jobs

    def in_thread() -> None:
        with watch.in_thread():
            run_jobs()

    monkeypatch.setattr(life.store, "run_jobs", in_thread)
    life.upkeep()
    assert life.store.first_offset > 0
    for kind in TOPICS:
        assert life.files(f"consumequeue/{kind}/0")[0] > 0
    assert life.files("batchconsumequeue/Batches/0")[0] > 0
    assert watch.pages
    assert watch.waited == []


def test_behind_a_kill_the_queues_that_are_looked_at_are_read_in_a_thread(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.put(5, ("Late",))
    life.disk = life.disk.kill()
    life.store = life.open()
    queues = life.store.queues

    def are_cut() -> bool:
        return queues.simple.cut is not None

    assert are_cut()
    assert not queues.simple.in_memory("A")
    life.disk.is_cold = True
    watch = Watch(monkeypatch)
    while are_cut() or queues.batch.cut is not None:
        life.store.tick(life.now_ms)
        with watch.in_thread():
            life.store.run_jobs()
    assert queues.simple.in_memory("A")
    assert queues.batch.in_memory("Batches")
    assert watch.waited == []
    life.disk.is_cold = False
    assert life.bodies("B")[-1] == 100


def test_a_front_that_cannot_be_read_is_told_of_and_holds_up_no_other_queue(
    life: Life, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/s/consumequeue/A/0/00000000000000000000"
    life.disk.make_unreadable(path, 0, 200)
    life.upkeep()
    assert "not all that has expired could be removed" in caplog.text
    assert path in caplog.text
    assert life.files("consumequeue/A/0")[0] == 0
    assert life.files("consumequeue/B/0")[0] > 0
    assert life.files("batchconsumequeue/Batches/0")[0] > 0
    life.disk.is_cold = False
    life.put(10)
    assert life.bodies("B")[-1] == 110


@pytest.mark.parametrize("begin", [0.2, 0.99], ids=["in the files", "in memory"])
def test_one_fetch_is_enough_where_the_last_entries_are_not_in_the_files_yet(
    monkeypatch: pytest.MonkeyPatch, begin: float
) -> None:
    config = replace(CONFIG, retention_size_max=None, consume_queue_file_size=20 * 4000)
    life = Life(config, SimulatedFileSystem(total=1 << 30))
    life.put(450, ("A",))
    life.checkpoint()
    life.put(1000, ("A",))
    queues = life.store.queues
    queue = queues.find("A", 0)
    assert isinstance(queue, ConsumeQueue)
    assert 0 < queue.written < queue.end
    offset = int(life.store.end_offset * begin)
    expected = [queue.head(index)[0] >= offset for index in range(queue.end)].index(True)
    life.disk.is_cold = True
    watch = Watch(monkeypatch)
    queues.correct_min(offset)
    cold = queues.cold_front("A", 0)
    assert cold is not None
    life.store.fetch(cold)
    assert queue.min_offset == expected
    assert watch.waited == []
