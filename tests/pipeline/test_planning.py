"""Ranges of queues made tasks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from cometmq.pipeline.cluster import Bounds, Queue
from cometmq.pipeline.options import ReadOptions
from cometmq.pipeline.planning import STRETCH, WORTH_A_TASK, Range, plan

ADDRESSES = {"a": "127.0.0.1:1"}


def wanted(*sizes: int) -> dict[Queue, Bounds]:
    return {Queue("T", "a", i): Bounds(100, 100 + size) for i, size in enumerate(sizes)}


def options(**given: int) -> ReadOptions:
    return ReadOptions(nameserver="h:1", topic="T", **{"parallelism": 2, **given})  # type: ignore[arg-type]  # all are numbers


def rows(task: list[Range]) -> int:
    return sum(each.end - each.first for each in task)


def test_nothing_is_no_task() -> None:
    assert plan({}, ADDRESSES, options()) == []


def test_few_messages_of_many_queues_are_one_task() -> None:
    """Each task costs 35 ms and more, whatever it reads."""
    assert len(plan(wanted(*[10] * 64), ADDRESSES, options())) == 1


def test_many_messages_are_a_task_for_each_core() -> None:
    tasks = plan(wanted(40_000, 40_000, 40_000), ADDRESSES, options(target_bytes_per_task=1 << 30))
    assert len(tasks) == 2
    assert max(map(rows, tasks)) - min(map(rows, tasks)) < 2 * STRETCH


def test_long_queues_are_cut_where_the_sink_can_tell_what_it_has_seen() -> None:
    tasks = plan(wanted(1_000_000), ADDRESSES, options(parallelism=4))
    assert {each.first % STRETCH for task in tasks for each in task if each.first != 100} == {0}


def test_one_long_queue_is_split() -> None:
    tasks = plan(wanted(1_000_000), ADDRESSES, options(target_bytes_per_task=100 << 20))
    assert len(tasks) == 10
    assert all(abs(rows(task) - 100_000) < STRETCH for task in tasks)


def test_tasks_are_not_longer_than_was_asked_for() -> None:
    tasks = plan(wanted(7, 7, 7), ADDRESSES, options(max_records_per_partition=10))
    assert max(map(rows, tasks)) <= 10


def test_more_tasks_can_be_asked_for() -> None:
    assert len(plan(wanted(100), ADDRESSES, options(min_partitions=5))) == 5


@given(
    st.lists(st.integers(0, 4 * WORTH_A_TASK), max_size=9),
    st.integers(0, 9),
    st.sampled_from([0, 1000, 20_000]),
)
def test_everything_is_read_exactly_once(sizes: list[int], minimum: int, most: int) -> None:
    asked = wanted(*sizes)
    given_options = options(min_partitions=minimum, max_records_per_partition=most)
    tasks = plan(asked, ADDRESSES, given_options)
    found: dict[Queue, list[tuple[int, int]]] = {}
    for each in sorted(piece for task in tasks for piece in task):
        found.setdefault(each.queue, []).append((each.first, each.end))
    for queue, pieces in found.items():
        assert pieces[0][0] == asked[queue].first
        assert pieces[-1][1] == asked[queue].end
        assert all(end == first for (_, end), (first, _) in pairwise(pieces))
    assert found.keys() == {queue for queue, each in asked.items() if each.end > each.first}
    if most:
        assert all(rows(task) <= most for task in tasks)


def test_no_task_is_left_over_when_the_others_are_done() -> None:
    tasks = plan(wanted(500_000), ADDRESSES, options(target_bytes_per_task=200 << 20))
    assert len(tasks) == 4
