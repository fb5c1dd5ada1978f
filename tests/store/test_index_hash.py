from __future__ import annotations

from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from cometmq.proto.java import string_hash
from cometmq.proto.properties import decode_properties
from cometmq.store.index import index_hash
from cometmq.store.index.index_alike import alike_keys
from cometmq.store.index.index_format import positive_hash
from cometmq.store.index.index_hash import JOINED_SIZE_MAX, hash_noted, record_hashes
from cometmq.store.index.index_keys import NotedBatch, query_key

if TYPE_CHECKING:
    from cometmq.store.index.index_keys import Noted

names = st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"WAIT", b"MY_UNIQ_KEY", b"XKEYS", b""])
values = st.sampled_from(
    [b"", b"a", b"a b", b" a  b ", b" ", b"UNIQ_KEY\x01x", "标 签".encode(), b"\xff", b"\xed\xa0"]
) | st.binary(max_size=20)
raw_properties = (
    st.lists(st.tuples(names, values)).map(
        lambda pairs: b"\x02".join(b"%b\x01%b" % pair for pair in pairs)
    )
    | st.binary()
)
topics = st.sampled_from([b"t", b"TopicTest", "标".encode(), b"\xe6\xa0"])
records = st.lists(st.tuples(topics, raw_properties))


def plain(topic: bytes, properties: bytes) -> list[int]:
    found, name = decode_properties(properties), topic.decode("utf-8", "replace")
    words = [found.get("UNIQ_KEY", ""), *found.get("KEYS", "").split(" ")]
    words += [f"T#{found['TAGS']}"] if "TAGS" in found else []
    return [positive_hash(string_hash(f"{name}#{word}")) for word in words if word]


def check(many: list[tuple[bytes, bytes]]) -> None:
    hashes, rows = record_hashes([topic for topic, _ in many], [raw for _, raw in many])
    expected = [(key_hash, row) for row, record in enumerate(many) for key_hash in plain(*record)]
    assert list(zip(hashes.tolist(), rows.tolist(), strict=True)) == expected


def test_a_query_asks_for_the_key_as_it_was_indexed() -> None:
    assert query_key("t", "k1") == "t#k1"
    assert query_key("t", "a || b", "T") == "t#T#a || b"


def test_hashes_are_javas_made_positive() -> None:
    hashes, _ = record_hashes([b"TopicTest"], [b"KEYS\x01KEY1\x02"])
    assert hashes.tolist() == [1656969516]


def test_half_a_surrogate_pair_is_one_character_as_in_java() -> None:
    hashes, _ = record_hashes([b"T"], [b"KEYS\x01a\xed\xa0\xbd\x02TAGS\x01\xed\xb8\x80\x02"])
    assert hashes.tolist() == [positive_hash(string_hash(k)) for k in ("T#a\ufffd", "T#T#\ufffd")]


def test_the_hash_that_has_no_absolute_value_is_zero() -> None:
    value = lowest_hash_letters()
    assert string_hash("#" + value.decode()) == -0x80000000
    assert record_hashes([b""], [b"KEYS\x01" + value])[0].tolist() == [0]


def lowest_hash_letters() -> bytes:
    """Find seven printable characters after a `#` whose hash is -2^31, digit by digit."""
    wanted = (-0x80000000 - string_hash("#" + "0" * 7)) % (1 << 32)
    digits: list[int] = []
    for power in range(6, -1, -1):
        digit = min(wanted // 31**power, 70)
        wanted -= digit * 31**power
        digits.append(48 + digit)
    assert wanted == 0
    return bytes(digits)


@given(records)
def test_many_records_at_once_have_the_keys_of_each(many: list[tuple[bytes, bytes]]) -> None:
    check(many)


def test_records_too_large_to_be_joined_are_hashed_in_parts() -> None:
    raw = b"KEYS\x01" + b"k" * 32_000 + b" b\x02TAGS\x01x"
    check([(b"t", raw)] * (JOINED_SIZE_MAX // len(raw) * 3))


@pytest.mark.parametrize("tags", [b"", b"TAGS\x01A\x02"])
def test_records_of_more_topics_than_are_remembered_have_the_keys_of_each(
    monkeypatch: pytest.MonkeyPatch, tags: bytes
) -> None:
    monkeypatch.setattr(index_hash, "PREFIXES_MAX", 10)
    for first in (0, 5, 0):
        check([(b"t%d" % (first + n // 3), b"KEYS\x01%04d\x02" % n + tags) for n in range(100)])


def test_no_records_have_no_keys() -> None:
    check([])


COUNT = 40
"""Enough records for the code to look whether they are alike."""

fixed_names = st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"WAIT", b"KEYS ", b"", b"UNIQ"])
letters = st.sampled_from(["0123456789ABCDEF", "ab ", "a\x01", "a\x02", "a\x7f\x80", "a"])


@st.composite
def alike(draw: st.DrawFn) -> list[tuple[bytes, bytes]]:
    """Records with the same names in the same order, and values of the same sizes, or nearly."""
    pairs = draw(
        st.lists(st.tuples(fixed_names, letters, st.integers(0, 12)), min_size=1, max_size=5)
    )
    topic = draw(st.sampled_from([b"t", b"TopicTest"]))
    last = draw(st.sampled_from([b"", b"\x02", b"\x02odd", b"\x02\x02"]))
    random = Random(draw(st.integers(0, 1 << 32)))

    def record() -> tuple[bytes, bytes]:
        values = [
            (name, "".join(random.choices(alphabet, k=size)).encode("latin-1"))
            for name, alphabet, size in pairs
        ]
        return topic, b"\x02".join(b"%b\x01%b" % pair for pair in values) + last

    many = [record() for _ in range(COUNT)]
    for number, odd in draw(st.lists(st.tuples(st.integers(0, COUNT - 1), records), max_size=2)):
        many[number : number + 1] = odd
    return many


@settings(max_examples=300)
@given(alike())
def test_records_that_are_alike_have_the_keys_of_each(many: list[tuple[bytes, bytes]]) -> None:
    check(many)


@pytest.mark.parametrize(
    ("odd", "is_alike"),
    [
        (b"UNIQ_KEY\x01id99\x02KEYS\x01a b\x02TAGS\x01tags\x02", True),
        (b"UNIQ_KEY\x01id99\x02KEYS\x01abc\x02TAGS\x01tags\x02", False),
        (b"UNIQ_KEY\x01id99\x02KEYS\x01   \x02TAGS\x01tags\x02", False),
        (b"UNIQ_KEY\x01i d9\x02KEYS\x01a b\x02TAGS\x01t gs\x02", True),
        (b"UNIQ_KEY\x01id\x029\x02KEYS\x01a b\x02TAGS\x01tags\x02", False),
        (b"UNIQ_KEY\x01id\x019\x02KEYS\x01a b\x02TAGS\x01tags\x02", False),
        (b"UNIQ_KEX\x01id99\x02KEYS\x01a b\x02TAGS\x01tags\x02", False),
        (b"UNIQ_KEY\x01id99\x02KEYS\x01a b\x02TAGS\x01tag\xff\x02", False),
        (b"UNIQ_KEY\x01id99\x02KEYS\x01a b\x02TAGS\x01tags\x01", False),
        (b"UNIQ_KEY\x01id99\x02KEYS\x01a b\x02\x01TAGStags\x02", False),
    ],
)
def test_one_record_that_differs_in_more_than_its_values_is_not_taken_for_alike(
    odd: bytes, is_alike: bool
) -> None:
    many = [b"UNIQ_KEY\x01id%02d\x02KEYS\x01a b\x02TAGS\x01tags\x02" % n for n in range(COUNT)]
    many[7] = odd
    powers = np.cumprod(np.array([1] + [31] * 99, np.uint32), dtype=np.uint32)
    assert (alike_keys(b"".join(many), len(odd), powers) is not None) is is_alike
    check([(b"t", raw) for raw in many])


def test_records_of_several_sizes_keep_their_order() -> None:
    check([(b"t%d" % (n % 3), b"KEYS\x01k%d a\x02UNIQ_KEY\x01u%d" % (n, n)) for n in range(300)])


def test_records_of_frequent_and_rare_sizes_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with transactions: the half messages, the messages, and an op message for each turn."""
    many: list[tuple[bytes, bytes]] = []
    for turn in range(1, 24):
        unique = [b"UNIQ_KEY\x01%04d" % (turn * 100 + n) for n in range(turn % 9 + 1)]
        many += [(b"half", pair + b"\x02REAL_TOPIC\x01t\x02") for pair in unique]
        many += [(b"t", pair + b"\x02TAGS\x01a\x02") for pair in unique]
        many.append((b"op", b"TAGS\x01d\x02BY\x01the producer\x02ENDS\x01" + b"c" * turn + b"\x02"))
    looked: list[int] = []

    def noting(joined: bytes, size: int, powers: Any) -> Any:
        looked.append(len(joined) // size)
        return alike_keys(joined, size, powers)

    monkeypatch.setattr("cometmq.store.index.index_hash.alike_keys", noting)
    check(many)
    assert looked == [110, 110], "what is alike is hashed as such, whatever stands between"
    looked.clear()
    check(many[:60])
    assert not looked, "few are hashed together"


@pytest.mark.parametrize("count", [32, 33, 47, 48, 65])
def test_a_record_that_alone_differs_from_all_others_gets_its_own_hash(count: int) -> None:
    for number in range(count):
        raw = [b"UNIQ_KEY\x01%04d\x02TAGS\x01a\x02" % (each == number) for each in range(count)]
        assert alike_keys(b"".join(raw), len(raw[0]), np.ones(100, np.uint32)) is not None
        check([(b"T", each) for each in raw])


@st.composite
def batches(draw: st.DrawFn) -> list[NotedBatch]:
    """Consecutive batches, of messages that are mostly alike."""
    found: list[NotedBatch] = []
    number = draw(st.integers(0, 1 << 31))
    for _ in range(draw(st.integers(1, 6))):
        count, size = draw(st.integers(1, 40)), draw(st.integers(100, 200))
        ends = st.sampled_from(
            [b"TAGS\x01a\x02", b"TAGS\x01b\x02", b"TAGS\x01ab\x02", b"a\x01b\x02"]
        )
        end = draw(ends)
        raw = b"".join(b"UNIQ_KEY\x01%09X\x02%b" % (number + n, end) for n in range(count))
        found.append(NotedBatch(number, draw(topics), raw, draw(st.integers(0, 9)), size, count))
        number += count * size
    return found


@settings(max_examples=200)
@given(batches(), st.integers(-1, 6))
def test_the_keys_of_batches_are_those_of_their_records(
    many: list[NotedBatch], single: int
) -> None:
    records = list(chain.from_iterable(batch.records() for batch in many))
    noted: list[Noted] = list(many)
    if 0 <= single <= len(many):
        one = (0, b"t", b"UNIQ_KEY\x01one\x02", 5)
        place = sum(batch.record_count for batch in many[:single])
        noted.insert(single, one)
        records.insert(place, one)
    found, expected = hash_noted(noted), hash_noted(records)
    assert found is not None
    assert expected is not None
    assert found.hashes.tolist() == expected.hashes.tolist()
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert found.times.tolist() == expected.times.tolist()


def test_batches_without_a_key_have_none() -> None:
    assert hash_noted([NotedBatch(0, b"t", b"a\x01b\x02" * 3, 5, 100, 3)]) is None
