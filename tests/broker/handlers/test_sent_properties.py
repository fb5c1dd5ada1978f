"""Properties are read alike, whether or not similar ones were seen before."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from cometmq.broker.handlers.sent_properties import REMEMBERED_MAX, SentProperties
from cometmq.proto.properties import decode_properties

NAMES = st.sampled_from(["UNIQ_KEY", "WAIT", "KEYS", "TAGS", "DELAY", "TRAN_MSG", "XUNIQ_KEY"])
VALUES = st.sampled_from(["", "true", "false", "TRUE", "x", "UNIQ_KEY", "ID1", "ID2"])
TEXTS = st.lists(st.tuples(NAMES, VALUES)).map(
    lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)
)


def expected(text: str) -> tuple[bytes, bytes | None, bool, bool]:
    found = decode_properties(text.encode())
    unique_id = found.get("UNIQ_KEY")
    return (
        text.encode() + (b"\x02" if text and not text.endswith("\x02") else b""),
        None if unique_id is None else unique_id.encode(),
        found.get("WAIT", "true").lower() == "true",
        any(part in text for part in ("DELAY", "TRAN_MSG", "TIMER_DELIVER")),
    )


@given(texts=st.lists(TEXTS), closed=st.booleans())
def test_what_is_remembered_holds_for_all_that_differ_in_the_id(
    texts: list[str], closed: bool
) -> None:
    reader = SentProperties(b"MORE\x01stored\x02")
    for text in texts:
        said = text + "\x02" if closed and text else text
        assert reader.read(said) == expected(said)
        assert reader.read(said) == expected(said)
        rest = said.encode().partition(b"\x02")[2]
        if rest in reader.tails:
            alike = f"UNIQ_KEY\x01ID3\x02{rest.decode()}"
            assert expected(alike) == (alike.encode(), b"ID3", True, False)
            assert reader.tails[rest] == rest + b"MORE\x01stored\x02"


@pytest.mark.parametrize("text", [None, ""])
def test_no_properties_ask_for_nothing(text: str | None) -> None:
    assert SentProperties().read(text) == (b"", None, True, False)


def test_what_is_remembered_is_bounded() -> None:
    reader = SentProperties()
    for number in range(REMEMBERED_MAX + 10):
        reader.read(f"UNIQ_KEY\x01ID\x02KEYS\x01{number}\x02WAIT\x01true\x02")
    reader.read(f"UNIQ_KEY\x01ID\x02KEYS\x01{'x' * 10_000}\x02")
    assert 0 < len(reader) <= REMEMBERED_MAX
