"""Queues as keys, and in the order in which every client must sort them."""

from __future__ import annotations

from hypothesis import given, strategies as st

from cometmq.proto.bodies import MessageQueue


def queue(topic: str, broker: str = "b", queue_id: int = 0) -> MessageQueue:
    return MessageQueue(broker_name=broker, queue_id=queue_id, topic=topic)


def test_topic_comes_before_broker_and_broker_before_queue() -> None:
    ordered = [
        queue("a", "y", 9),
        queue("b", "x", 2),
        queue("b", "x", 10),
        queue("b", "y", -1),
        queue("c", "a", 0),
    ]
    shuffled = [ordered[at] for at in (3, 0, 4, 2, 1)]
    assert sorted(shuffled) == ordered


def test_texts_are_compared_by_utf16_units_as_java_does() -> None:
    assert queue("😀") < queue("\ufb01")  # The surrogate 0xD83D comes before 0xFB01.


def test_equal_queues_are_one_key() -> None:
    assert {queue("a"): 1, queue("a"): 2} == {queue("a"): 2}


queues = st.builds(
    queue, st.sampled_from(["a", "b", "é", "😀"]), st.sampled_from("xy"), st.integers(-1, 3)
)


@given(queues, queues)
def test_the_comparisons_agree_with_each_other(one: MessageQueue, two: MessageQueue) -> None:
    assert (one < two) + (one > two) + (one == two) == 1
    assert (one <= two) == (one < two or one == two)
    assert (one >= two) == (one > two or one == two)
