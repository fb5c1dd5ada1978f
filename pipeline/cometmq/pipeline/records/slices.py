"""Arrow arrays of pieces of a buffer, without a Python object per piece."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from cometmq.pipeline.columns import BINARY, STRING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    import numpy.typing as npt

    from cometmq.pipeline.records.layout import Bytes, Longs, Truths

    Words: TypeAlias = npt.NDArray[np.uint64]

_HEX: Final = np.frombuffer("".join(f"{n:02X}" for n in range(256)).encode(), np.uint16)
"""The two hex digits of each byte."""
_HEX_OF_TWO: Final = np.stack([np.repeat(_HEX, 256), np.tile(_HEX, 256)], 1).view(np.uint32)[:, 0]
"""The four hex digits of each pair of bytes, for fewer table accesses."""
_WORD: Final = 8
_SMALL: Final = 48
"""The largest size of a small piece. Arrow copies larger ones, as it has memory at hand: new pages
cost more than the copy."""


def hex_letters(packed: Bytes) -> Bytes:
    """Return a matrix of bytes as one of hex digits, two for each byte."""
    return _HEX[packed].view(np.uint8)


def four_letters(numbers: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint32]:
    """Return the four hex digits of each 16-bit number, packed into a 32-bit number."""
    return _HEX_OF_TWO[numbers]


def matrix_rows(letters: Bytes, kind: pa.DataType = BINARY) -> pa.Array:
    """Return the rows of a matrix of bytes as an array."""
    count, size = letters.shape
    borders = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    return pa.Array.from_buffers(
        kind, count, [None, pa.py_buffer(borders), pa.py_buffer(np.ascontiguousarray(letters))]
    )


def gathered(raw: Bytes, starts: Longs, size: int) -> Bytes:
    """Return `size` bytes, at least one, from each of these places, as a matrix."""
    windows = np.ndarray(max(len(raw) - size + 1, 0), f"V{size}", raw, strides=(1,))
    return windows[starts].view(np.uint8).reshape(len(starts), size)


def is_repeated(matrix: Bytes) -> bool:
    """Whether all rows of a matrix are equal; faster than comparing each with the first."""
    letters, size = matrix.ravel(), matrix.shape[1]
    return bool((letters[size:] == letters[:-size]).all())


def size_of_all(starts: Longs, ends: Longs) -> int:
    """Return the common size of these pieces, or 0 if their sizes differ."""
    sizes = ends - starts
    return int(sizes[0]) if len(sizes) and (sizes == sizes[0]).all() else 0


@lru_cache(maxsize=8)
def _evens(count_log: int) -> pa.Array:
    return pa.array(np.arange(0, 2 << count_log, 2, dtype=np.int32))


def pieces(raw: Bytes, starts: Longs, ends: Longs, kind: pa.DataType = BINARY) -> pa.Array:
    """Return these pieces, which must be in order and not overlap, as one array.

    An array over all borders has each piece and, in between, each separator; every second element
    is taken, which is one copy in C++. Pieces of one size are copied as a matrix, which is faster,
    if they are small or equally spaced. Nothing is checked; text must be UTF-8.
    """
    count = len(starts)
    if not count:
        return pa.array([], kind)
    if size := size_of_all(starts, ends):
        if size <= _SMALL:
            return matrix_rows(gathered(raw, starts, size), kind)
        if step := _step_of_all(starts):
            return _copied(raw, int(starts[0]), (count, size), step, kind)
    borders = np.empty(2 * count, np.int32)
    borders[0::2] = starts
    borders[1::2] = ends
    both = pa.Array.from_buffers(
        kind, 2 * count - 1, [None, pa.py_buffer(borders), pa.py_buffer(raw)]
    )
    return both.take(_evens((count - 1).bit_length()).slice(0, count))


def _step_of_all(starts: Longs) -> int:
    """Return the common distance of neighbours, or 0 if it differs."""
    steps = starts[1:] - starts[:-1]
    return int(steps[0]) if len(steps) and (steps == steps[0]).all() else 0


def _copied(
    raw: Bytes, start: int, shape: tuple[int, int], step: int, kind: pa.DataType
) -> pa.Array:
    """Return equally spaced pieces of one size, in memory that Arrow has at hand."""
    count, size = shape
    data = pa.allocate_buffer(count * size)
    np.frombuffer(memoryview(data), np.uint8).reshape(shape)[:] = np.ndarray(
        shape, np.uint8, raw, start, (step, 1)
    )
    borders = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(borders), data])


def parts_of(array: pa.Array) -> tuple[Bytes, Longs]:
    """Return the bytes of a newly made binary array, and the borders in them."""
    if not len(array):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, borders, data = array.buffers()
    assert borders is not None
    offsets = np.frombuffer(memoryview(borders), np.int32, len(array) + 1).astype(np.int64)
    if data is None or not data.size:
        return np.empty(0, np.uint8), offsets
    raw = np.frombuffer(memoryview(data), np.uint8)[: offsets[-1]]
    return raw, offsets


def repeated(raw: Bytes, starts: Longs, ends: Longs, convert: Callable[[bytes], str]) -> pa.Array:
    """Return these pieces converted; as most are equal, convert each distinct one once."""
    if size := size_of_all(starts, ends):
        matrix = gathered(raw, starts, size)
        if is_repeated(matrix):
            return pa.repeat(convert(matrix[0].tobytes()), len(starts))
        if size == _WORD:
            return repeated_words(matrix.view(np.uint64).ravel(), convert)
    encoded = pieces(raw, starts, ends).dictionary_encode()
    return pa.array(map(convert, encoded.dictionary.to_pylist()), STRING).take(encoded.indices)


def repeated_words(words: Words, convert: Callable[[bytes], str]) -> pa.Array:
    """Do the same for pieces of eight bytes, which are compared faster, as numbers."""
    if len(words) and (words == words[0]).all():
        return pa.repeat(convert(words[0].tobytes()), len(words))
    numbers = pa.array(words).dictionary_encode()
    different = [each.tobytes() for each in numbers.dictionary.to_numpy()]
    return pa.array(map(convert, different), STRING).take(numbers.indices)


def spread(values: pa.Array, rows: Longs, count: int) -> pa.Array:
    """Return an array of length `count` with each value at its row, and null elsewhere.

    The rows are in order. If a row has two values, the later one counts.
    """
    if len(rows) == count and (rows == np.arange(count)).all():
        return values
    indices: npt.NDArray[np.int32] = np.zeros(count, np.int32)
    indices[rows] = np.arange(len(rows), dtype=np.int32)
    missing: Truths = np.ones(count, np.bool_)
    missing[rows] = False
    return values.take(pa.array(indices, mask=missing))


def merged(first: pa.Array, rows: Longs, second: pa.Array, others: Longs) -> pa.Array:
    """Merge two arrays, with each value at its row."""
    if not len(others):
        return first
    order = np.empty(len(rows) + len(others), np.int32)
    order[rows] = np.arange(len(rows), dtype=np.int32)
    order[others] = np.arange(len(rows), len(order), dtype=np.int32)
    return pa.concat_arrays([first, second]).take(pa.array(order))
