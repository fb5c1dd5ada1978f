from __future__ import annotations

from hypothesis import given, strategies as st

from cometmq.proto.java import string_hash
from cometmq.store.index_format import positive_hash
from cometmq.store.index_hash import LONG_KEY_SIZE, key_hashes


def plain(key: bytes) -> int:
    return positive_hash(string_hash(key.decode("utf-8", "replace")))


def test_hashes_are_javas_made_positive() -> None:
    keys = [b"TopicTest#KEY1", b"polygenelubricants", b"TagA", "标签".encode(), b""]
    assert key_hashes(keys).tolist() == [1656969516, 0, 2598919, 857175, 0]


@given(st.lists(st.text(max_size=50).map(str.encode) | st.binary(max_size=30)))
def test_many_hashes_at_once_are_those_of_each(keys: list[bytes]) -> None:
    assert key_hashes(keys).tolist() == [plain(key) for key in keys]


@given(st.integers(0, 80), st.lists(st.integers(0, 127), min_size=1, max_size=9))
def test_keys_of_one_size_are_hashed_as_a_matrix(size: int, fill: list[int]) -> None:
    keys = [bytes([byte]) * size for byte in fill]
    assert key_hashes(keys).tolist() == [plain(key) for key in keys]


def test_long_keys_are_hashed_one_by_one() -> None:
    keys = [b"x" * size for size in (LONG_KEY_SIZE - 1, LONG_KEY_SIZE, 9000)]
    assert key_hashes(keys).tolist() == [plain(key) for key in keys]
