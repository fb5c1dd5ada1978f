"""The keys of records whose properties are alike, hashed as a matrix.

Records of one producer have the same properties and differ in a few values, mostly in some
characters of the unique id. Their properties, one below another, then form a matrix of bytes in
which most columns are constant. The first row shows where the keys are. The hash of a key in Java
is a sum of its characters times powers of 31, so constant columns are summed once, and each row
only has to sum the varying ones.

This works if bytes vary only inside values, and a varying byte is never a separator or, in a value
that is cut into words, a space. Other records take the general way of `index_hash`, which takes
three times as long.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Powers = npt.NDArray[np.uint32]

_UNIQUE_ID: Final = b"UNIQ_KEY"
_KEYS: Final = b"KEYS"
_TAGS: Final = b"TAGS"
_SEPARATOR_MAX: Final = 2
_SPACE: Final = 32
_ASCII_MAX: Final = 0x7F
_FOLD: Final = 16
_WORD: Final = re.compile(rb"[^ ]+")


class AlikeKey(NamedTuple):
    """One key of every record."""

    sums: Powers
    """The hashes of the values alone, without the prefix of a key."""
    size: int
    """The size of every value."""
    is_tags: bool


class _Pairs:
    """Where the values are in the first record's properties, and so in every record's."""

    def __init__(self, raw: bytes) -> None:
        self.in_value = np.zeros(len(raw), np.bool_)
        self.in_words = np.zeros(len(raw), np.bool_)
        self.found: dict[bytes, tuple[int, int]] = {}
        """By name; if a name is repeated, the last value that is not empty counts."""
        end = -1
        for pair in raw.split(b"\x02"):
            name, _, value = pair.partition(b"\x01")
            end += 1 + len(pair)
            if value:
                self.in_value[end - len(value) : end] = True
                self.found[name] = (end - len(value), end)
        if _KEYS in self.found:
            begin, end = self.found[_KEYS]
            self.in_words[begin:end] = True

    def keys(self, raw: bytes) -> list[tuple[int, int, bool]]:
        """Return where each key begins and ends, in the index's order, and whether it is tags."""
        keys: list[tuple[int, int, bool]] = []
        if _UNIQUE_ID in self.found:
            keys.append((*self.found[_UNIQUE_ID], False))
        if _KEYS in self.found:
            keys += [(*word.span(), False) for word in _WORD.finditer(raw, *self.found[_KEYS])]
        if _TAGS in self.found:
            keys.append((*self.found[_TAGS], True))
        return keys


def _varying(matrix: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """Return the columns that are not constant.

    Many rows side by side are folded at a time: numpy takes as long for a short row as for a long.
    """
    rows, size = matrix.shape
    folded = rows - rows % _FOLD
    differs = matrix ^ matrix[0]
    wide = differs[:folded].reshape(-1, _FOLD * size)
    found = np.bitwise_or.reduce(wide, axis=0).reshape(_FOLD, size)
    return np.flatnonzero(
        np.bitwise_or.reduce(found, axis=0) | np.bitwise_or.reduce(differs[folded:], axis=0)
    )


def alike_keys(joined: bytes, size: int, powers: Powers) -> list[AlikeKey] | None:
    """Return the keys of records whose properties follow one another and all have one size.

    Return None if they are not alike.
    """
    first = joined[:size]
    if not first or not first.isascii():
        return None if first else []
    matrix = np.frombuffer(joined, np.uint8).reshape(-1, size)
    columns = _varying(matrix)
    cells = matrix[:, columns]
    pairs = _Pairs(first)
    if columns.size and not (
        pairs.in_value[columns].all()
        and cells.min() > _SEPARATOR_MAX
        and cells.max() <= _ASCII_MAX
        and not (cells[:, pairs.in_words[columns]] == _SPACE).any()
    ):
        return None
    same = matrix[0].astype(np.uint32)
    same[columns] = 0
    keys: list[AlikeKey] = []
    for begin, end, is_tags in pairs.keys(first):
        inside = slice(*np.searchsorted(columns, (begin, end)))
        sums = cells[:, inside].astype(np.uint32) @ powers[end - 1 - columns[inside]]
        sums += same[begin:end] @ powers[: end - begin][::-1]
        keys.append(AlikeKey(sums, end - begin, is_tags))
    return keys
