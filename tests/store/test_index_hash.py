from __future__ import annotations

from hypothesis import given, strategies as st

from cometmq.proto.java import string_hash
from cometmq.store.index_format import positive_hash
from cometmq.store.index_hash import JOINED_SIZE_MAX, record_hashes
from cometmq.store.index_keys import index_keys

names = st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"WAIT", b"MY_UNIQ_KEY", b"XKEYS", b""])
values = st.sampled_from(
    [b"", b"a", b"a b", b" a  b ", b" ", b"UNIQ_KEY\x01x", "标 签".encode(), b"\xff"]
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
    keys = index_keys(topic, properties)
    return [positive_hash(string_hash(key.decode("utf-8", "replace"))) for key in keys]


def check(many: list[tuple[bytes, bytes]]) -> None:
    hashes, rows = record_hashes([topic for topic, _ in many], [raw for _, raw in many])
    expected = [(key_hash, row) for row, record in enumerate(many) for key_hash in plain(*record)]
    assert list(zip(hashes.tolist(), rows.tolist(), strict=True)) == expected


def test_hashes_are_javas_made_positive() -> None:
    hashes, _ = record_hashes([b"TopicTest"], [b"KEYS\x01KEY1\x02"])
    assert hashes.tolist() == [1656969516]


def test_the_hash_that_has_no_absolute_value_is_zero() -> None:
    value = lowest_hash_letters()
    assert string_hash("#" + value.decode()) == -0x80000000
    assert record_hashes([b""], [b"KEYS\x01" + value])[0].tolist() == [0]


def lowest_hash_letters() -> bytes:
    """Find seven printable characters behind a `#` whose hash is -2^31, digit by digit."""
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


def test_no_records_have_no_keys() -> None:
    check([])
