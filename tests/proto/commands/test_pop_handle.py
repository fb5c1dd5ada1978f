"""The texts of POP: handles, and the texts in an answer that handles are made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from cometmq.proto.commands.pop_handle import (
    PopHandle,
    PopOrigin,
    PopPlace,
    PopQueue,
    decode_message_offsets,
    decode_order_counts,
    decode_start_offsets,
    encode_message_offsets,
    encode_order_counts,
    encode_start_offsets,
)
from cometmq.proto.errors import FieldError, LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = st.integers(-(2**63), 2**63 - 1)
ORIGINS = st.sampled_from(PopOrigin)
QUEUES = st.builds(PopQueue, ORIGINS, NUMBERS)
BROKER_NAMES = st.text(min_size=1).filter(lambda name: " " not in name)

TOPIC, RETRY, RETRY_V2 = PopOrigin


def test_a_handle_is_eight_words() -> None:
    text = "0 1795253623065 10000 0 0 broker-a 1 2"
    handle = PopHandle(0, 1_795_253_623_065, 10_000, 0, TOPIC, "broker-a", 1, 2)
    assert PopHandle.decode(text) == handle
    assert handle.encode() == text


def test_the_texts_of_a_captured_answer_are_read() -> None:
    assert decode_start_offsets("0 0 0;0 1 0") == {(TOPIC, 0): 0, (TOPIC, 1): 0}
    assert decode_message_offsets("0 0 0,1,2;0 1 0,1,2") == {
        (TOPIC, 0): (0, 1, 2),
        (TOPIC, 1): (0, 1, 2),
    }
    assert decode_start_offsets("1 0 7") == {(RETRY, 0): 7}


def test_counts_are_of_a_queue_or_of_a_message() -> None:
    counts = {PopPlace(TOPIC, 3, None): 1, PopPlace(RETRY_V2, 3, 77): 2}
    assert encode_order_counts(counts) == "0 3 1;2 qo3%77 2"
    assert decode_order_counts("0 3 1;2 qo3%77 2") == counts


def test_an_empty_text_names_nothing() -> None:
    for decode in (decode_start_offsets, decode_message_offsets, decode_order_counts):
        assert decode("") == {}


@given(
    st.builds(
        PopHandle, NUMBERS, NUMBERS, NUMBERS, NUMBERS, ORIGINS, BROKER_NAMES, NUMBERS, NUMBERS
    )
)
def test_a_handle_comes_back_as_it_went(handle: PopHandle) -> None:
    assert PopHandle.decode(handle.encode()) == handle


@given(st.dictionaries(QUEUES, NUMBERS))
def test_start_offsets_come_back_as_they_went(offsets: dict[PopQueue, int]) -> None:
    assert decode_start_offsets(encode_start_offsets(offsets)) == offsets


@given(st.dictionaries(QUEUES, st.lists(NUMBERS, min_size=1).map(tuple)))
def test_message_offsets_come_back_as_they_went(offsets: dict[PopQueue, tuple[int, ...]]) -> None:
    assert decode_message_offsets(encode_message_offsets(offsets)) == offsets


@given(st.dictionaries(st.builds(PopPlace, ORIGINS, NUMBERS, NUMBERS | st.none()), NUMBERS))
def test_order_counts_come_back_as_they_went(counts: dict[PopPlace, int]) -> None:
    assert decode_order_counts(encode_order_counts(counts)) == counts


@pytest.mark.parametrize(
    ("decode", "text", "problem"),
    [
        (PopHandle.decode, "", "does not have eight words"),
        (PopHandle.decode, "0 1 2 3 0 b 4", "does not have eight words"),
        (PopHandle.decode, "0 1 2 3 0  4 5", "does not have eight words"),
        (PopHandle.decode, "0 1 2 3 0 b 4 5 6", "does not have eight words"),
        (PopHandle.decode, "0 1 2 3 4 b 4 5", "has an invalid origin, '4'"),
        (PopHandle.decode, "0 1 2 3 0 b 4 x", "has an invalid number, 'x'"),
        (PopHandle.decode, "0 1 2 3 0 b 4 ", "has an invalid number, ''"),
        (
            PopHandle.decode,
            "9223372036854775808 1 2 3 0 b 4 5",
            "has an invalid number, '9223372036854",
        ),
        (decode_start_offsets, "0 1", "has an item that is not three words"),
        (decode_start_offsets, "0 1 2;", "has an item that is not three words"),
        (decode_start_offsets, "x 1 2", "has an invalid origin, 'x'"),
        (decode_start_offsets, "0 1 1_0", "has an invalid number, '1_0'"),
        (decode_start_offsets, "0 1 \u0665", "has an invalid number, '\u0665'"),
        (decode_start_offsets, "0 1 2;0 1 3", "names a queue or a message twice"),
        (decode_message_offsets, "0 1 ", "has an invalid number, ''"),
        (decode_message_offsets, "0 1 2,", "has an invalid number, ''"),
        (decode_message_offsets, "0 1 2;0 1 3", "names a queue or a message twice"),
        (decode_order_counts, "0 qo1 2", "has an invalid place, 'qo1'"),
        (decode_order_counts, "0 1%2 2", "has an invalid place, '1%2'"),
        (decode_order_counts, "0 qo%2 2", "has an invalid number, ''"),
        (decode_order_counts, "0 qo1%2 2;0 qo1%2 3", "names a queue or a message twice"),
    ],
)
def test_what_is_no_such_text_is_refused(
    decode: Callable[[str], object], text: str, problem: str
) -> None:
    with pytest.raises(FieldError) as caught:
        decode(text)
    assert caught.value.problem.startswith(problem)


@pytest.mark.parametrize("name", ["", "broker a"])
def test_a_broker_name_that_would_break_the_handle_is_refused(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be written as text"):
        PopHandle(0, 1, 2, 3, TOPIC, name, 4, 5).encode()
