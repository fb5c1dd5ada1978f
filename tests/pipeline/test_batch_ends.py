"""Where a batch ends in each queue if it may not take all that is there."""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import pairwise

import pytest

from cometmq.pipeline.batch_ends import by_backlog, by_time
from cometmq.pipeline.cluster import Queue

OLD, YOUNG, EMPTY = (Queue("T", "a", number) for number in range(3))


class Stored:
    """Queues, given by their messages' store times; finds offsets by time, as brokers do."""

    def __init__(self, times: dict[Queue, list[int]]) -> None:
        self.times = times
        self.asked = 0

    @property
    def ends(self) -> dict[Queue, int]:
        return {queue: len(times) for queue, times in self.times.items()}

    def offsets_at(self, time_ms: int) -> dict[Queue, int]:
        self.asked += 1
        return {queue: bisect_left(times, time_ms) for queue, times in self.times.items()}

    def batches(self, rows: int) -> list[dict[Queue, int]]:
        """Return where each batch ends, until all is read."""
        begins = dict.fromkeys(self.times, 0)
        found: list[dict[Queue, int]] = []
        while begins != self.ends:
            begins = by_time(begins, self.ends, rows, self.offsets_at, lambda: (0, 10**9))
            found.append(begins)
            assert len(found) <= 1000, "a batch brought nothing"
        return found


def test_a_limit_is_shared_by_backlog_and_leaves_nobody_out() -> None:
    small, large = OLD, YOUNG
    assert by_backlog({small: 0, large: 0}, {small: 2, large: 998}, 100) == {small: 1, large: 99}
    assert sum(by_backlog({small: 0, large: 0}, {small: 2, large: 998}, 1).values()) == 1
    assert by_backlog({small: 5, large: 0}, {small: 5, large: 7}, 100) == {small: 5, large: 7}


def test_where_queues_are_more_than_messages_a_small_one_gets_its_turn() -> None:
    """Large queues used to come first until they were as small: here for 396 batches."""
    queues = [Queue("T", "a", number) for number in range(21)]
    begins, ends = dict.fromkeys(queues, 0), {**dict.fromkeys(queues, 100), queues[0]: 1}
    for _ in range(200):
        before = begins
        begins = by_backlog(begins, ends, 5)
        assert sum(begins.values()) - sum(before.values()) == 5
    assert begins[queues[0]] == 1


def test_by_time_no_queue_is_read_ahead_of_another() -> None:
    stored = Stored({OLD: list(range(0, 1000, 2)), YOUNG: list(range(900, 1000)), EMPTY: []})
    for end in stored.batches(100):
        read = [time for queue, times in stored.times.items() for time in times[: end[queue]]]
        left = [time for queue, times in stored.times.items() for time in times[end[queue] :]]
        assert not left or max(read) < min(left)


def test_by_time_batches_are_nearly_full_and_few_questions_are_asked() -> None:
    chosen = random.Random(7)
    times = {
        queue: sorted(chosen.randrange(10**8) for _ in range(size))
        for queue, size in ((OLD, 20_000), (YOUNG, 3_000), (EMPTY, 0))
    }
    stored = Stored(times)
    batches = stored.batches(1_000)
    sizes = [sum(end.values()) - sum(before.values()) for before, end in pairwise(batches)]
    assert max(sizes) <= 1_000
    assert min(sizes[:-1]) >= 900
    assert stored.asked < 15 * len(batches)


def test_messages_of_one_millisecond_that_are_more_than_a_batch_are_shared() -> None:
    stored = Stored({OLD: [5] * 300, YOUNG: [5] * 100 + [6]})
    assert stored.batches(100)[0] == {OLD: 75, YOUNG: 25}
    assert stored.batches(100)[-1] == stored.ends


@pytest.mark.parametrize("seed", range(20))
def test_a_clock_that_went_back_holds_nobody_up(seed: int) -> None:
    chosen = random.Random(seed)
    times = {queue: [chosen.randrange(50) for _ in range(40)] for queue in (OLD, YOUNG)}
    assert Stored(times).batches(7)[-1] == {OLD: 40, YOUNG: 40}
