"""How ranges of queues are divided into tasks."""

from __future__ import annotations

from hypothesis import given, strategies as st

from cometmq.pipeline.cluster import Bounds, Queue
from cometmq.pipeline.measuring import Piece, guessed
from cometmq.pipeline.options import ReadOptions
from cometmq.pipeline.planning import STRETCH, WORTH_A_TASK, Range, plan

ADDRESSES = {"a": "127.0.0.1:1"}


def wanted(*rows: int) -> list[Piece]:
    """Return queues of so many messages, whose bytes are guessed."""
    return guessed({Queue("T", "a", i): Bounds(100, 100 + each) for i, each in enumerate(rows)})


def pieces(*rows_and_sizes: tuple[int, int]) -> list[Piece]:
    """Return one queue, in pieces of so many messages of so many bytes each."""
    found: list[Piece] = []
    first = 0
    for rows, size in rows_and_sizes:
        found.append(Piece(Queue("T", "a", 0), first, first + rows, rows * size))
        first += rows
    return found


def options(**given: int | bool) -> ReadOptions:
    return ReadOptions(nameserver="h:1", topic="T", **{"parallelism": 2, **given})  # type: ignore[arg-type]  # all are numbers


def rows(task: list[Range]) -> int:
    return sum(each.end - each.first for each in task)


def whole(tasks: list[list[Range]]) -> list[tuple[Queue, int, int]]:
    """Return what tasks read of each queue together, once they are seen to read it once."""
    found: dict[Queue, tuple[int, int]] = {}
    for each in sorted(piece for task in tasks for piece in task):
        first, end = found.get(each.queue, (each.first, each.first))
        assert end == each.first < each.end
        found[each.queue] = first, each.end
    return [(queue, *bounds) for queue, bounds in found.items()]


def test_nothing_is_no_task() -> None:
    assert plan([], ADDRESSES, options()) == []


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


def test_short_tasks_are_cut_evenly() -> None:
    """Cuts at multiples of a stretch would make them unequal."""
    assert [rows(task) for task in plan(wanted(10_000), ADDRESSES, options())] == [5_000, 5_000]


def test_one_long_queue_is_split() -> None:
    tasks = plan(wanted(1_000_000), ADDRESSES, options(target_bytes_per_task=100 << 20))
    assert len(tasks) == 10
    assert all(abs(rows(task) - 100_000) < STRETCH for task in tasks)


def test_tasks_are_not_longer_than_was_asked_for() -> None:
    tasks = plan(wanted(7, 7, 7), ADDRESSES, options(max_records_per_partition=10))
    assert max(map(rows, tasks)) <= 10


def test_more_tasks_can_be_asked_for() -> None:
    assert len(plan(wanted(100), ADDRESSES, options(min_partitions=5))) == 5
    small = [Piece(Queue("T", "a", 1 + i), 0, 1_000, 100_000) for i in range(10)]
    few_are_large = [*pieces((10, 3_000_000)), *small]
    tasks = plan(few_are_large, ADDRESSES, options(min_partitions=100))
    assert len(tasks) == 100
    assert max(map(rows, tasks)) < 200
    assert whole(tasks) == [each[:3] for each in few_are_large]


@given(
    st.lists(st.integers(0, 4 * WORTH_A_TASK), max_size=9),
    st.integers(0, 9),
    st.sampled_from([0, 1000, 20_000]),
    st.lists(st.integers(0, 1 << 20), min_size=9, max_size=9),
    st.sampled_from([1 << 20, 64 << 20]),
)
def test_everything_is_read_exactly_once(
    counts: list[int], minimum: int, most: int, sizes: list[int], size_max: int
) -> None:
    asked = [
        each._replace(size=(each.end - each.first) * sizes[each.queue.id])
        for each in wanted(*counts)
    ]
    given_options = options(
        min_partitions=minimum, max_records_per_partition=most, target_bytes_per_task=size_max
    )
    tasks = plan(asked, ADDRESSES, given_options)
    assert len(tasks) >= min(minimum, sum(map(rows, tasks)))
    assert whole(tasks) == [each[:3] for each in asked]
    for task in tasks:
        size = sum(sizes[each.queue.id] * (each.end - each.first) for each in task)
        assert size <= size_max or rows(task) == 1
    if most:
        assert all(rows(task) <= most for task in tasks)


def test_no_task_is_left_over_when_the_others_are_done() -> None:
    tasks = plan(wanted(500_000), ADDRESSES, options(target_bytes_per_task=200 << 20))
    assert len(tasks) == 4


def test_large_messages_are_cut_by_their_bytes() -> None:
    tasks = plan(pieces((5_000, 1_000_000)), ADDRESSES, options(target_bytes_per_task=256 << 20))
    assert len(tasks) == 20
    assert max(map(rows, tasks)) <= 268


def test_few_large_messages_are_a_task_for_each_core() -> None:
    tasks = plan(pieces((20, 1_000_000)), ADDRESSES, options())
    assert [rows(task) for task in tasks] == [10, 10]


def test_each_message_that_is_larger_than_a_task_should_be_is_one() -> None:
    for most in (0, 2):
        asked = options(max_records_per_partition=most, target_bytes_per_task=1 << 20)
        tasks = plan(pieces((3, 3_000_000)), ADDRESSES, asked)
        assert [rows(task) for task in tasks] == [1, 1, 1]


def test_many_tiny_messages_are_not_many_tasks() -> None:
    tiny = pieces(*[(50_000, 100)] * 40)
    assert len(plan(tiny, ADDRESSES, options(target_bytes_per_task=256 << 20))) == 2


def test_where_the_large_ones_are_tasks_have_fewer() -> None:
    mixed = pieces((60_000, 100), (500, 1_000_000), (60_000, 100))
    tasks = plan(mixed, ADDRESSES, options(target_bytes_per_task=100 << 20))
    large = [rows(task) for task in tasks if rows(task) < 1_000]
    assert len(large) == 4
    assert max(large) <= 104
    assert sum(map(rows, tasks)) == 120_500


def test_pieces_of_one_queue_that_are_next_to_each_other_are_one_range() -> None:
    (task,) = plan(pieces((10, 9), (10, 10)), ADDRESSES, options())
    assert task == [Range(Queue("T", "a", 0), ADDRESSES["a"], 0, 20)]


@given(
    st.lists(st.integers(0, 4 * WORTH_A_TASK), max_size=9),
    st.integers(0, 9),
    st.sampled_from([0, 1000]),
    st.sampled_from([1 << 20, 64 << 20]),
)
def test_in_order_each_queue_is_in_one_task(
    counts: list[int], minimum: int, most: int, size_max: int
) -> None:
    asked = options(
        in_order=True,
        min_partitions=minimum,
        max_records_per_partition=most,
        target_bytes_per_task=size_max,
    )
    tasks = plan(wanted(*counts), ADDRESSES, asked)
    found = [(each.queue, each.first, each.end) for task in tasks for each in task]
    assert sorted(found) == [each[:3] for each in wanted(*counts)]
    assert all(tasks)
    assert len(tasks) >= min(minimum, len(found))


def test_in_order_tasks_have_about_as_much_as_each_other() -> None:
    tasks = plan(wanted(90_000, 10_000, 50_000, 30_000), ADDRESSES, options(in_order=True))
    assert sorted(map(rows, tasks)) == [90_000, 90_000]
    assert len(plan(wanted(10, 10, 10), ADDRESSES, options(in_order=True))) == 1


def test_in_order_pieces_of_a_queue_stay_one_range() -> None:
    (task,) = plan(pieces((10, 10), (20, 5)), ADDRESSES, options(in_order=True))
    assert task == [Range(Queue("T", "a", 0), ADDRESSES["a"], 0, 30)]
