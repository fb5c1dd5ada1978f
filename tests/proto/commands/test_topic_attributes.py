"""The text of a topic's attribute changes."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from cometmq.proto.commands.topic_attributes import decode_attributes, encode_attributes
from cometmq.proto.errors import FieldError, LocalProtocolError

KEYS = st.text(st.characters(exclude_characters=",="), min_size=1)
VALUES = st.text(st.characters(exclude_characters=","), min_size=1)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", {}),
        ("+message.type=PRIORITY", {"message.type": "PRIORITY"}),
        ("+queue.type=BatchCQ", {"queue.type": "BatchCQ"}),
        ("-queue.type", {"queue.type": None}),
        ("+a=b=c,-d", {"a": "b=c", "d": None}),
        ("+a=1,-b", {"a": "1", "b": None}),
        ("-a,,", {"a": None}),
        (",", {}),
        ("+é=名", {"é": "名"}),
    ],
)
def test_pluses_set_and_minuses_delete(text: str, changes: dict[str, str | None]) -> None:
    assert decode_attributes(text) == changes


@given(st.dictionaries(KEYS, VALUES | st.none()))
def test_changes_come_back_as_they_went(changes: dict[str, str | None]) -> None:
    assert decode_attributes(encode_attributes(changes)) == changes


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a=b", "add/alter attribute format is wrong: a"),
        ("-a=b", "add/alter attribute format is wrong: -a"),
        ("+=b", "add/alter attribute format is wrong: +"),
        ("+a=", "add/alter attribute format is wrong: +a"),
        ("=", "add/alter attribute format is wrong: "),
        ("a", "delete attribute format is wrong: a"),
        ("+a", "delete attribute format is wrong: +a"),
        ("-", "delete attribute format is wrong: -"),
        (",-a", "delete attribute format is wrong: "),
        ("-a,-a", "key duplication: a"),
        ("+a=b,-a", "key duplication: a"),
    ],
)
def test_what_is_no_change_is_refused(text: str, problem: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode_attributes(text)
    assert caught.value.field == "attributes"
    assert caught.value.problem == problem


@pytest.mark.parametrize(
    "changes", [{"": "b"}, {"a": ""}, {"a": "b,c"}, {"a,b": "c"}, {"a=b": None}]
)
def test_what_has_no_text_is_refused(changes: dict[str, str | None]) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be written as text"):
        encode_attributes(changes)
