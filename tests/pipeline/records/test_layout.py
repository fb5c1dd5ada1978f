"""`follow` takes runs of records of one size at once, as carefully as one by one."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the extra cometmq[spark] is not installed")

from hypothesis import given, strategies as st

from cometmq.pipeline.records.layout import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    follow,
    head_at,
)

pytestmark = pytest.mark.spark

SIZES = (RECORD_SIZE_MIN, 100, 120)
LIES = (0, -1, RECORD_SIZE_MIN - 1, RECORD_SIZE_MIN + 1, 2 * RECORD_SIZE_MIN, 2**31 - 1)
"""Wrong sizes that a record may claim; some lead into the middle of another record."""


def one_by_one(data: bytes, limit: int) -> tuple[list[int], int]:
    borders, at = [0], 0
    while at <= limit - RECORD_SIZE_MIN:
        size, magic = head_at(data, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_SIZE_MIN <= size <= limit - at:
            return borders, magic
        at += size
        borders.append(at)
    return borders, 0


@given(
    runs=st.lists(st.tuples(st.sampled_from(SIZES), st.integers(1, 40)), max_size=6),
    odd=st.none() | st.tuples(st.integers(0, 100), st.sampled_from([MAGIC_V2, MAGIC_BLANK, 0])),
    lying=st.none() | st.tuples(st.integers(0, 100), st.sampled_from(LIES)),
    cut=st.integers(0, 130),
)
def test_runs_of_one_size_are_followed_as_records_are_one_by_one(
    runs: list[tuple[int, int]],
    odd: tuple[int, int] | None,
    lying: tuple[int, int] | None,
    cut: int,
) -> None:
    sizes = [size for size, count in runs for _ in range(count)]
    magics = [MAGIC_V1] * len(sizes)
    if odd is not None and odd[0] < len(sizes):
        magics[odd[0]] = odd[1]
    said = list(sizes)
    if lying is not None and lying[0] < len(sizes):
        said[lying[0]] = lying[1]
    data = b"".join(
        told.to_bytes(4, "big", signed=True) + magic.to_bytes(4, "big") + bytes(size - 8)
        for size, told, magic in zip(sizes, said, magics, strict=True)
    )
    limit = max(len(data) - cut, 0)
    borders, magic = follow(data, 0, limit)
    assert (borders.tolist(), magic) == one_by_one(data, limit)
