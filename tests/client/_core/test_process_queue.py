"""The offsets to commit while messages are settled in any order."""

from __future__ import annotations

from hypothesis import given, strategies as some

from cometmq.client._core.process_queue import SPAN_MAX, ProcessQueue
from cometmq.client._core.queues import Queue

QUEUE = Queue("T", "b", 0)


@given(some.permutations(range(10)))
def test_everything_before_the_committed_offset_is_settled(order: list[int]) -> None:
    process_queue = ProcessQueue(QUEUE, 100)
    for offset in range(100, 110):
        process_queue.add(offset, 7)
    process_queue.next_offset = 112  # The filter has left out two messages.
    left = set(range(100, 110))
    for each in order:
        assert process_queue.settle(100 + each) == 7
        left.discard(100 + each)
        assert process_queue.commit_offset == min(left, default=112)
        assert (len(process_queue), process_queue.size) == (len(left), 7 * len(left))


def test_a_message_is_settled_once() -> None:
    process_queue = ProcessQueue(QUEUE, 0)
    process_queue.add(0, 7)
    assert [process_queue.settle(0), process_queue.settle(0)] == [7, 0]


def test_what_is_forgotten_was_never_fetched() -> None:
    process_queue = ProcessQueue(QUEUE, 0)
    for offset in range(3):
        process_queue.add(offset, 7)
    process_queue.next_offset = 3
    process_queue.settle(0)
    process_queue.forget()
    assert (process_queue.commit_offset, process_queue.next_offset) == (1, 1)
    process_queue.next_offset = 5
    assert (process_queue.commit_offset, process_queue.size, len(process_queue)) == (5, 0, 0)
    assert process_queue.settle(0) == 0


def test_there_is_room_while_few_are_here_and_the_span_is_short() -> None:
    process_queue = ProcessQueue(QUEUE, 0)
    for offset in range(3):
        process_queue.add(offset, 1)
        process_queue.next_offset = offset + 1
    assert process_queue.has_room(4)
    assert not process_queue.has_room(3)
    process_queue.settle(1)
    process_queue.next_offset = SPAN_MAX + 1
    assert not process_queue.has_room(1000)
    process_queue.settle(0)
    assert process_queue.has_room(1000)
