"""Recall handles, the texts in answers to sends of timer messages."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given, strategies as st

from cometmq.proto.commands.recall import RecallHandle
from cometmq.proto.errors import FieldError, LocalProtocolError

WORDS = st.text(st.characters(exclude_characters=" ", codec="utf-8"), min_size=1)


def handle_of(words: str) -> str:
    return urlsafe_b64encode(words.encode()).decode()


def test_a_handle_is_what_apache_writes() -> None:
    handle = RecallHandle("T", "broker-a", 1_700_000_000_000, "ABCD")
    assert handle.encode() == "djEgVCBicm9rZXItYSAxNzAwMDAwMDAwMDAwIEFCQ0Q="
    assert RecallHandle.decode(handle.encode()) == handle


def test_a_captured_handle_says_which_message_it_is() -> None:
    handle = RecallHandle.decode(
        "djEgVF9kZWxheSBicm9rZXItYSAxNzk1MjUzNTU2MDAxIEZEMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw"
        "MDAyMzhBMzMwOTQ2RTA5NjkwOTk5MzUwMDEz"
    )
    assert handle == RecallHandle(
        "T_delay",
        "broker-a",
        1_795_253_556_001,
        "FD00000000000000000000000000000238A330946E09690999350013",
    )


def test_the_padding_of_a_handle_may_be_missing() -> None:
    handle = RecallHandle("T", "broker-a", 5, "K")
    assert RecallHandle.decode(handle.encode().rstrip("=")) == handle


@given(WORDS, WORDS, st.integers(0, 2**63 - 1), WORDS)
def test_a_handle_comes_back_as_it_went(
    topic: str, broker_name: str, deliver_timestamp: int, unique_key: str
) -> None:
    handle = RecallHandle(topic, broker_name, deliver_timestamp, unique_key)
    assert RecallHandle.decode(handle.encode()) == handle


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("zz", "is not base64 of UTF-8 text"),  # As in the request to the live server.
        ("A", "is not base64 of UTF-8 text"),
        ("", "does not name a message"),
        ("djEg VCA=", "is not base64"),
        ("djEg\n", "is not base64"),
        ("djEgVCBi+/==", "is not base64"),
        ("a=b=", "is not base64"),
        ("____", "is not base64 of UTF-8 text"),
        (handle_of("v2 T b 5 K"), "does not name a message"),
        (handle_of("v1 T b 5"), "does not name a message"),
        (handle_of("v1 T b 5 K L"), "does not name a message"),
        (handle_of("v1 T  5 K"), "does not name a message"),
        (handle_of("v1 T b x K"), "does not name a message"),
        (handle_of("v1 T b -5 K"), "does not name a message"),
        (handle_of("v1 T b \u0665 K"), "does not name a message"),
        (handle_of("v1 T b 9223372036854775808 K"), "has an impossible delivery time"),
    ],
)
def test_what_is_no_handle_is_refused(text: str, problem: str) -> None:
    with pytest.raises(FieldError) as caught:
        RecallHandle.decode(text)
    assert caught.value.field == "recallHandle"
    assert caught.value.problem == problem


@pytest.mark.parametrize(
    "handle",
    [
        RecallHandle("", "b", 5, "K"),
        RecallHandle("T", "b c", 5, "K"),
        RecallHandle("T", "b", -5, "K"),
        RecallHandle("T", "b", 2**63, "K"),
        RecallHandle("T", "b", 10**30, "K"),
        RecallHandle("\ud800", "b", 5, "K"),
    ],
)
def test_what_has_no_text_is_refused(handle: RecallHandle) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be written as text"):
        handle.encode()
