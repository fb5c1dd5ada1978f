"""How Java reads and hashes text, on which the wire and the files of a store rely."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from operator import mul
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCK: Final = 64
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(_BLOCK, -1, -1))
_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"

TAGS_CACHED_SIZE_MAX: Final = 64
"""Longer tags are hashed each time, so that a peer cannot fill the cache with large ones."""


_HALF_OF_A_PAIR: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""What would be a surrogate, which UTF-8 must not hold, or the first two bytes of one."""


def text_of(raw: bytes) -> str:
    """Return UTF-8 as a `String`: what is no UTF-8 reads as U+FFFD, so this never fails.

    Of half a surrogate pair Java makes one such character, where Python makes one of each byte; of
    everything else both make the same.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _HALF_OF_A_PAIR.sub(b"\xff", raw).decode("utf-8", "replace")


def string_hash(text: str) -> int:
    """Return `String.hashCode()`: over UTF-16 units, as a signed 32-bit number.

    Exact for everything a `str` can hold, lone surrogates included.
    """
    units: Sequence[int]
    if text.isascii():
        units = text.encode()
    else:
        units = memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H")
    value = 0
    for start in range(0, len(units), _BLOCK):
        block = units[start : start + _BLOCK]
        powers = _POWERS[_BLOCK - len(block) :]
        value = (value * powers[0] + sum(map(mul, block, powers[1:]))) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def tags_code(tags: bytes) -> int:
    """Return the number by which brokers filter: the hash of the whole tag text, 0 for none."""
    if len(tags) > TAGS_CACHED_SIZE_MAX:
        return _tags_code(tags)
    return cached_tags_code(tags)


def _tags_code(tags: bytes) -> int:
    return string_hash(text_of(tags))


cached_tags_code = lru_cache(maxsize=4096)(_tags_code)
"""`tags_code` of short tags; its cache can be asked how full it is."""
