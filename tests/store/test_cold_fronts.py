"""Where queues begin is found anew once a segment has expired: no loop waits for that."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import SimulatedFile
from tests.store.test_expiry import TOPICS, Life

from cometmq.store.queues import letting_go

if TYPE_CHECKING:
    from collections.abc import Generator

PAGE = 4096


class Watch:
    """Notes what of the queues' files was read in threads, and fails where the loop waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_in_thread = False
        self.pages: set[tuple[str, int]] = set()
        self.waited: list[tuple[str, int]] = []
        read = SimulatedFile.read

        def note(file: SimulatedFile, count: int, position: int) -> bytes:
            if "consumequeue/" in file.path:
                reached = range(position // PAGE, (position + count - 1) // PAGE + 1)
                pages = {(file.path, number) for number in reached}
                if self.is_in_thread:
                    self.pages |= pages
                elif not pages <= self.pages:
                    self.waited.append((file.path, position))
            return read(file, count, position)

        monkeypatch.setattr(SimulatedFile, "read", note)

    @contextmanager
    def in_thread(self) -> Generator[None]:
        self.is_in_thread = True
        yield
        self.is_in_thread = False


@pytest.fixture
def life() -> Life:
    """A store of which more may go than is kept."""
    life = Life()
    for _ in range(4):
        life.put(25)
        life.checkpoint()
    life.disk.is_cold = True
    return life


@pytest.mark.parametrize("together", [1, 2, 64])
def test_the_files_that_go_are_found_in_a_thread(
    life: Life, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(letting_go, "COLD_QUEUES", together)
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


def test_a_front_that_cannot_be_read_is_told_of_and_holds_up_no_other_queue(
    life: Life, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/s/consumequeue/A/0/00000000000000000000"
    life.disk.make_unreadable(path, 0, 200)
    life.upkeep()
    assert "what has expired is not all removed" in caplog.text
    assert path in caplog.text
    assert life.files("consumequeue/A/0")[0] == 0
    assert life.files("consumequeue/B/0")[0] > 0
    assert life.files("batchconsumequeue/Batches/0")[0] > 0
    life.disk.is_cold = False
    life.put(10)
    assert life.bodies("B")[-1] == 110
