"""The choice of the queue for a send."""

from __future__ import annotations

from collections import Counter

from cometmq.client._core.queues import Queue
from cometmq.client._core.selection import Selection, queue_of_key

QUEUES = [Queue("T", broker, number) for broker in ("a", "b") for number in range(2)]


def test_queues_are_taken_in_turn() -> None:
    selection = Selection()
    assert Counter(selection.pick(QUEUES, (), 0) for _ in range(40)) == dict.fromkeys(QUEUES, 10)


def test_a_broker_that_failed_in_this_send_is_passed_over_if_there_is_another() -> None:
    selection = Selection()
    assert {selection.pick(QUEUES, {"a"}, 0).broker for _ in range(10)} == {"b"}
    assert {selection.pick(QUEUES, {"a", "b"}, 0).broker for _ in range(10)} == {"a", "b"}


def test_a_broker_that_failed_is_left_alone_for_ten_seconds() -> None:
    selection = Selection()
    selection.note_failure("a", 1000)
    assert {selection.pick(QUEUES, (), 10_999).broker for _ in range(10)} == {"b"}
    assert {selection.pick(QUEUES, (), 11_000).broker for _ in range(10)} == {"a", "b"}


def test_a_slow_broker_is_left_alone_until_it_is_quick_again() -> None:
    selection = Selection()
    selection.note("a", 549, 0)
    assert {selection.pick(QUEUES, (), 0).broker for _ in range(10)} == {"a", "b"}
    selection.note("a", 550, 0)
    assert {selection.pick(QUEUES, (), 1999).broker for _ in range(10)} == {"b"}
    selection.note("a", 3, 0)
    assert {selection.pick(QUEUES, (), 0).broker for _ in range(10)} == {"a", "b"}


def test_without_avoidance_only_this_send_counts() -> None:
    selection = Selection(avoids=False)
    selection.note_failure("a", 0)
    assert {selection.pick(QUEUES, (), 0).broker for _ in range(10)} == {"a", "b"}


def test_a_key_has_the_queue_that_javas_selector_gives_it() -> None:
    # "polygenelubricants" has the one hash without an absolute value in Java: -2147483648.
    assert queue_of_key(QUEUES[:3], "polygenelubricants") == QUEUES[2]
    assert queue_of_key(QUEUES[:3], "TagA") == QUEUES[2598919 % 3]
    assert queue_of_key(QUEUES, "order-created") == QUEUES[392709271 % 4]
