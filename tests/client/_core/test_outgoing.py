"""Batches are divided so that no part is larger than a broker takes."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as some

from cometmq.client._core.outgoing import ITEM_OVERHEAD, split
from cometmq.client.errors import UsageError
from cometmq.proto.batch import BatchItem, encode_items

items = some.builds(
    BatchItem, some.binary(min_size=1, max_size=60), some.binary(max_size=20), some.integers(0, 9)
)


@given(batch=some.lists(items, min_size=1, max_size=30), size_max=some.integers(110, 400))
def test_a_part_is_as_large_as_allowed_and_no_larger(batch: list[BatchItem], size_max: int) -> None:
    parts = split(batch, size_max)
    assert [item for part in parts for item in part] == batch
    sizes = [len(encode_items(part)) for part in parts]
    assert max(sizes) <= size_max
    for size, part in zip(sizes, parts[1:], strict=False):
        assert size + len(encode_items(part[:1])) > size_max


def test_a_message_that_is_too_large_with_its_properties_is_refused() -> None:
    item = BatchItem(b"x" * 50, b"a\x01b\x02")
    assert split([item], ITEM_OVERHEAD + 54) == [[item]]
    with pytest.raises(UsageError, match="76 bytes with its properties is more than"):
        split([item], ITEM_OVERHEAD + 53)
