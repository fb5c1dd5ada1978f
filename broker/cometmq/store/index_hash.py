"""Java's hash of many strings at once, by numpy: 0.1 µs a key in batches, against 2 µs one by one.

The hash of a string is a polynomial in 31 of its characters, modulo 2^32: for strings of one length
a product of the matrix of their bytes with the vector of powers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from cometmq.proto.java import string_hash
from cometmq.store.index_format import positive_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

LONG_KEY_SIZE = 512
"""Keys from here on are hashed one by one: a length that few keys share gains nothing."""


def key_hashes(keys: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """Return `positive_hash` of the Java hash of each key, which is UTF-8."""
    sizes = np.fromiter(map(len, keys), np.intp, len(keys))
    hashes = np.empty(len(keys), np.int32)
    size = int(sizes[0]) if len(keys) else 0
    if (sizes == size).all():
        _hash_group(keys, size, hashes, slice(None))
    else:
        order = np.argsort(sizes, kind="stable")
        borders = np.flatnonzero(np.diff(sizes[order])) + 1
        for group in np.split(order, borders):
            places: list[int] = group.tolist()
            members = [keys[place] for place in places]
            _hash_group(members, len(members[0]), hashes, group)
    return hashes


def _hash_group(
    keys: Sequence[bytes],
    size: int,
    hashes: npt.NDArray[np.int32],
    places: slice | npt.NDArray[np.intp],
) -> None:
    """Hash keys of one size."""
    joined = b"".join(keys)
    if size == 0 or size >= LONG_KEY_SIZE or not joined.isascii():
        hashes[places] = [
            positive_hash(string_hash(key.decode("utf-8", "replace"))) for key in keys
        ]
        return
    characters = np.frombuffer(joined, np.uint8).reshape(len(keys), size)
    signed = (characters.astype(np.uint32) @ _powers(size)).view(np.int32)
    # abs of -2^31 is itself, and the index takes 0 for it.
    hashes[places] = np.maximum(np.abs(signed), 0)


@lru_cache(maxsize=LONG_KEY_SIZE)
def _powers(size: int) -> npt.NDArray[np.uint32]:
    return np.array([pow(31, n, 1 << 32) for n in range(size - 1, -1, -1)], np.uint32)
