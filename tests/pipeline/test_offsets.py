"""Positions in checkpoints, and positions that people write."""

from __future__ import annotations

import json
from itertools import permutations

import pytest

from cometmq.pipeline.cluster import Bounds, Queue
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.offsets import (
    First,
    StreamOffset,
    ranges,
    read_given_positions,
    read_stream_offset,
)

A0, A1, B0 = Queue("T", "a", 0), Queue("T", "a", 1), Queue("T", "b", 0)
QUEUES = (A0, A1, B0)


def test_the_same_offset_is_the_same_text_in_whichever_order_it_was_made() -> None:
    """Spark compares texts: another order would make it run empty batches for ever."""
    texts = {
        json.dumps(
            StreamOffset(
                {queue: queue.id for queue in order},
                begins=dict.fromkeys(order, 1),
                firsts=dict.fromkeys(order, First(0, 5)),
            ).document()
        )
        for order in permutations(QUEUES)
    }
    assert len(texts) == 1


def test_an_offset_is_read_as_it_was_written_through_sparks_json() -> None:
    firsts = {A0: First(0, 1_700_000_000_000), B0: First(3, 5)}
    gone = frozenset({"U", "V", "W"})
    offset = StreamOffset({A0: 5, B0: 7}, True, {A1: 2}, firsts, lost=4, gone=gone)
    said = json.loads(json.dumps(offset.document()))
    assert read_stream_offset(said) == offset
    assert json.dumps(read_stream_offset(said).document()) == json.dumps(said)
    assert said["gone"] == ["U", "V", "W"]


def test_a_checkpoint_from_before_first_messages_were_noted_stays_what_it_is() -> None:
    said = '{"from": {"T": {"a": {"0": 1}}}, "queues": {"T": {"a": {"0": 5}}}}'
    assert json.dumps(read_stream_offset(json.loads(said)).document()) == said


def test_the_first_batch_begins_where_its_end_says_whatever_the_start_has_become() -> None:
    """A start of "latest" that is asked for again after a crash is a later one."""
    end = StreamOffset({A0: 110}, begins={A0: 100})
    later = StreamOffset({A0: 500}, is_initial=True)
    assert ranges(later, end) == {A0: Bounds(100, 110)}


def test_a_queue_that_was_not_there_before_begins_where_the_end_says() -> None:
    start = StreamOffset({A0: 5})
    end = StreamOffset({A0: 5, A1: 9}, begins={A1: 3})
    assert ranges(start, end) == {A1: Bounds(3, 9)}


def test_a_queue_of_which_nothing_is_known_is_not_read() -> None:
    assert ranges(StreamOffset({}), StreamOffset({A0: 9})) == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"T": {"a": {"0": 5, "1": -1}}}', {A0: 5, A1: -1}),
        ('{"T": {"0": -2}}', {A0: -2, B0: -2}),
    ],
)
def test_positions_that_people_write_are_read(text: str, found: dict[Queue, int]) -> None:
    if "0" in json.loads(text)["T"]:
        assert read_given_positions("startingOffsets", text, (A0, B0)) == found
    else:
        assert read_given_positions("startingOffsets", text, QUEUES) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("soon", "not earliest, latest"),
        ("[1]", "an object of topics"),
        ('{"U": {}}', "topic 'U' is not read"),
        ('{"T": 5}', "an object of T's brokers"),
        ('{"T": {"a": {"7": 1}}}', "no queue T/a/7"),
        ('{"T": {"c": {"0": 1}}}', "no queue of T is on broker 'c'; `cometmq topic status T`"),
        ('{"T": {"c": {}}}', "no queue of T is on broker 'c'"),
        ('{"T": {"a": {"x": 1}}}', "'x' is not the number of a queue"),
        ('{"T": {"a": {"0": -3}}}', "-3 of queue T/a/0 is not an offset"),
        ('{"T": {"a": {"0": true}}}', "is not an offset"),
        ('{"T": {"0": "5"}}', "'5' of queue T/a/0 is not an offset"),
        ('{"T": {"0": 5.0}}', "5.0 of queue T/a/0 is not an offset"),
        ('{"T": {"0": 5, "1": null}}', "None of queue T/a/1 is not an offset"),
        ('{"T": {"a": "5"}}', "'a' is not the number of a queue"),
        ('{"T": {"0": 5, "a": {"1": 5}}}', "5 must be an object of T's queues"),
        ('{"T": {"a": {"0": 3, "0": 9}}}', "'0' is named twice"),
        ('{"T": {"a": {"00": 9}}}', "'00' is not the number of a queue"),
        (f'{{"T": {{"a": {{"{"9" * 5000}": 9}}}}}}', "is not the number of a queue"),
        ('{"T": {"0": 3}, "T": {"1": 9}}', "'T' is named twice"),
        ("[" * 100_000, "is nested too deep"),
    ],
)
def test_positions_that_cannot_be_are_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_given_positions("startingOffsets", text, QUEUES)
    assert str(caught.value).startswith("startingOffsets: ")
    assert said in str(caught.value)
    assert "twice" not in said or "not JSON" not in str(caught.value)
