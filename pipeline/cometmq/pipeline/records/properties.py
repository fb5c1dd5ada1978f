r"""Splitting the properties of many records: `name 0x01 value 0x02`, repeated.

Parsing is as lenient as Apache's (`cometmq.proto.properties`), which handles one record at a time.
So there are two kinds of records. In a plain record, every pair has a name, one 0x01, a value and a
0x02, no name occurs twice, and everything is UTF-8: numpy finds all their separators at once. Odd
records, which are rare, are decoded one by one.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from cometmq.pipeline.columns import PROPERTIES, STRING
from cometmq.pipeline.records.slices import (
    gathered,
    is_repeated,
    merged,
    parts_of,
    pieces,
    size_of_all,
    spread,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from cometmq.pipeline.records.layout import Bytes, Layout, Longs, Truths

    Words = npt.NDArray[np.uint64]

_WORD: Final = 8
_PAIRS_FEW: Final = 32
"""With up to so many pairs in a record, each is compared with each."""

# Odd numbers that spread bits; they have no further meaning.
_MIX_TAIL: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_SIZE: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_MIX_ROW: Final = np.uint64(0x165667B19E3779F9)

_HALF_OF_A_PAIR: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""What would be a surrogate, which UTF-8 must not hold, or the first two bytes of one."""


class Properties:
    """The properties of the records of a layout."""

    def __init__(self, layout: Layout) -> None:
        whole = pieces(layout.raw, layout.property_starts, layout.ends)
        raw, borders = parts_of(whole)
        marks = _separators(raw)
        odd = _not_text(whole)
        if not _is_regular(raw, borders, marks):
            odd |= _out_of_form(raw, borders, marks)
        self._whole = whole
        self._split(odd, None if odd.any() else _Pairs(raw, borders, marks))

    def _split(self, odd: Truths, pairs: _Pairs | None) -> None:
        """Note which records are odd, and decode these."""
        if pairs is None:
            raw, borders = parts_of(self._whole.filter(pa.array(~odd)))
            pairs = _Pairs(raw, borders, _separators(raw))
        self._pairs = pairs
        self._plain = np.flatnonzero(~odd)
        self._odd = np.flatnonzero(odd)
        decoded = self._whole.take(pa.array(self._odd)).to_pylist() if len(self._odd) else []
        self._odd_values = [decode(each) for each in decoded]

    def map(self) -> pa.Array:
        """Return all properties of each record."""
        doubled = self._pairs.doubled()
        if doubled.any():
            more: Truths = np.ones(len(self._whole), np.bool_)
            more[self._plain[~doubled]] = False
            self._split(more, None)
        found = self._pairs.map()
        if not len(self._odd):
            return found
        odd = pa.array([list(each.items()) for each in self._odd_values], PROPERTIES)
        return merged(found, self._plain, odd, self._odd)

    def find(self, name: str) -> pa.Array:
        """Return one property of each record, or null; its name may have up to 8 characters."""
        found = self._pairs.find(name.encode())
        if not len(self._odd):
            return found
        odd = pa.array([each.get(name) for each in self._odd_values], STRING)
        return merged(found, self._plain, odd, self._odd)


class _Pairs:
    """The pairs of plain records, whose properties are consecutive in `raw`."""

    def __init__(self, raw: Bytes, borders: Longs, marks: Longs) -> None:
        self._count = len(borders) - 1
        self._name_ends, self._value_ends = marks[0::2], marks[1::2]
        self._name_starts = np.zeros(len(self._value_ends), np.int64)
        self._name_starts[1:] = self._value_ends[:-1] + 1
        self._borders = np.searchsorted(self._value_ends, borders)
        """The numbers of the pairs at which each record's pairs begin and end."""
        self._raw = raw
        if len(raw) < _WORD:
            self._raw = np.concatenate([raw, np.zeros(_WORD, np.uint8)])

    @cached_property
    def _name_sizes(self) -> Longs:
        sizes: Longs = self._name_ends - self._name_starts
        return sizes

    @cached_property
    def _first_words(self) -> Words:
        """The first eight bytes of each name as a number; shorter names are complete."""
        begins = np.minimum(self._name_starts, len(self._raw) - _WORD)
        words = _words(self._raw, begins)
        # A name that begins less than a word before the end is shifted to its proper place.
        words <<= ((self._name_starts - begins) * 8).astype(np.uint64)
        unused = np.maximum(_WORD - self._name_sizes, 0)
        return words >> (unused * 8).astype(np.uint64)

    @cached_property
    def _names_of_all(self) -> list[bytes] | None:
        """The names of all records, if these are the same, in the same order, as nearly always."""
        each = len(self._name_ends) // max(self._count, 1)
        if (self._borders != np.arange(self._count + 1) * each).any():
            return None
        names: list[bytes] = []
        for number in range(each):
            starts, ends = self._name_starts[number::each], self._name_ends[number::each]
            size = size_of_all(starts, ends)
            if not size:
                return None
            found = gathered(self._raw, starts, size)
            if not is_repeated(found):
                return None
            names.append(found[0].tobytes())
        return names

    def doubled(self) -> Truths:
        """Return which records may have a name twice: all that do, and hardly any other."""
        found: Truths = np.zeros(self._count, np.bool_)
        if (names_of_all := self._names_of_all) is not None:
            found[:] = len(set(names_of_all)) < len(names_of_all)
            return found
        counts = np.diff(self._borders)
        sizes = self._name_sizes
        tails = _words(self._raw, np.maximum(self._name_ends - _WORD, 0)) * _MIX_TAIL
        names = self._first_words + np.where(sizes > _WORD, tails, np.uint64(0))
        names += sizes.astype(np.uint64) * _MIX_SIZE
        most = int(counts.max(initial=0))
        rows = np.repeat(np.arange(self._count), counts)
        if most <= _PAIRS_FEW:
            for distance in range(1, most):
                same = np.flatnonzero(names[distance:] == names[:-distance])
                if len(same):
                    found[rows[same][rows[same] == rows[same + distance]]] = True
            return found
        names = (names ^ (names >> np.uint64(29))) + rows.astype(np.uint64) * _MIX_ROW
        order = np.sort(names)
        twice = order[1:][order[1:] == order[:-1]]
        found[rows[np.isin(names, twice)]] = True
        return found

    def map(self) -> pa.Array:
        names = self._all_names()
        values = pieces(self._raw, self._name_ends + 1, self._value_ends, STRING)
        borders = pa.array(self._borders.astype(np.int32))
        return pa.MapArray.from_arrays(borders, names, values)

    def _all_names(self) -> pa.Array:
        if (names_of_all := self._names_of_all) is None:
            return pieces(self._raw, self._name_starts, self._name_ends, STRING)
        together = _times(tuple(names_of_all), max(self._count - 1, 0).bit_length())
        return together.slice(0, len(names_of_all) * self._count)

    def find(self, name: bytes) -> pa.Array:
        assert 0 < len(name) <= _WORD
        if (names_of_all := self._names_of_all) is not None:
            if name not in names_of_all:
                return pa.nulls(self._count, STRING)
            each = len(names_of_all)
            last = each - 1 - names_of_all[::-1].index(name)
            starts, ends = self._name_ends[last::each] + 1, self._value_ends[last::each]
            return pieces(self._raw, starts, ends, STRING)
        wanted = np.uint64(int.from_bytes(name, "big"))
        found = np.flatnonzero((self._first_words == wanted) & (self._name_sizes == len(name)))
        values = pieces(self._raw, self._name_ends[found] + 1, self._value_ends[found], STRING)
        rows = np.searchsorted(self._borders, found, "right") - 1
        return spread(values, rows, self._count)


@lru_cache(maxsize=4)
def _times(names: tuple[bytes, ...], count_log: int) -> pa.Array:
    """Return the names repeated; cached, as they are the same in batch after batch."""
    sizes = np.tile(np.array([len(each) for each in names], np.int32), 1 << count_log)
    borders = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=borders[1:])
    data = b"".join(names) * (1 << count_log)
    return pa.Array.from_buffers(
        STRING, len(sizes), [None, pa.py_buffer(borders), pa.py_buffer(data)]
    )


def _text_of(raw: bytes) -> str:
    """Return UTF-8 as Java reads it: half a surrogate pair is one U+FFFD, not three."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _HALF_OF_A_PAIR.sub(b"\xff", raw).decode("utf-8", "replace")


def decode(raw: bytes) -> dict[str, str]:
    """Return the properties of one record as Apache's clients read them."""
    properties: dict[str, str] = {}
    for pair in _text_of(raw).split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def _words(raw: Bytes, at: Longs) -> Words:
    return np.ndarray(len(raw) - _WORD + 1, ">u8", raw, strides=(1,))[at].astype(np.uint64)


def _not_text(whole: pa.Array) -> Truths:
    """Return which of them are not UTF-8."""
    try:
        whole.cast(STRING)
    except pa.ArrowInvalid:
        return np.array([not _is_text(each) for each in whole.to_pylist()], np.bool_)
    return np.zeros(len(whole), np.bool_)


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _separators(raw: Bytes) -> Longs:
    """Return the positions of 0x01 and 0x02."""
    marks = np.flatnonzero(raw <= 2)
    kinds = raw[marks]
    separators: Longs = marks if kinds.all() else marks[kinds != 0]
    return separators


def _is_regular(raw: Bytes, borders: Longs, marks: Longs) -> bool:
    """Whether all records consist of whole pairs, as nearly always.

    Then their separators alternate, are never adjacent, and each record ends with a 0x02.
    """
    starts, ends = borders[:-1], borders[1:]
    kinds = raw[marks]
    return bool(
        len(marks) % 2 == 0
        and (kinds[0::2] == 1).all()
        and (kinds[1::2] == 2).all()
        and (marks[:1] > 0).all()
        and (marks[1:] - marks[:-1] > 1).all()
        and (raw[ends[ends > starts] - 1] == 2).all()
    )


def _out_of_form(raw: Bytes, borders: Longs, marks: Longs) -> Truths:
    """Return which records do not consist of whole pairs with one 0x01 in each."""
    starts, ends = borders[:-1], borders[1:]
    odd: Truths = np.zeros(len(starts), np.bool_)
    filled = ends > starts
    odd[filled] = raw[ends[filled] - 1] != 2
    rows = np.searchsorted(ends, marks, "right")
    numbers = np.arange(len(marks)) - np.searchsorted(marks, starts)[rows]
    before = np.where(numbers > 0, np.roll(marks, 1), starts[rows] - 1)
    odd[rows[(raw[marks] != 1 + (numbers & 1)) | (marks == before + 1)]] = True
    return odd
