"""The trio driver writes with few system calls, and copies no large buffer."""

from __future__ import annotations

from hypothesis import given, strategies as some

from cometmq.net.peer import JOIN_SIZE_MAX
from cometmq.net.trio_streams import _joined  # pyright: ignore[reportPrivateUsage]  # The rule.

KIB = 1024


def test_small_neighbours_leave_together_and_a_large_buffer_as_it_is() -> None:
    header, body, large = b"h" * 100, b"b" * KIB, b"l" * (JOIN_SIZE_MAX + 1)
    written = _joined([header, body] * 64)
    assert len(written) == 5
    assert b"".join(written) == (header + body) * 64
    assert [len(each) for each in _joined([header, large, header])] == [100, len(large), 100]
    assert _joined([header, large])[1] is large
    assert _joined([]) == []


@given(some.lists(some.integers(1, 3 * JOIN_SIZE_MAX), max_size=20))
def test_nothing_is_lost_or_changes_places(sizes: list[int]) -> None:
    buffers = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    written = _joined(list(buffers))
    assert b"".join(written) == b"".join(buffers)
    assert all(len(each) <= JOIN_SIZE_MAX or each in buffers for each in written)
