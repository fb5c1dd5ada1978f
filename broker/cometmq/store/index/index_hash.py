"""The keys of many records at once, hashed by numpy: 0.5 µs a record, where Python takes 4.

Records that are alike are hashed by `index_alike`, in a third of that. All others are hashed here:
their properties are joined, and keys are positions in the joined bytes, so no object is made for a
single key. The hash of a string in Java is a polynomial in 31 of its characters, modulo 2^32. So
with running sums of `byte[i] * 31^-i` (31 has an inverse), the hash of any stretch is the
difference of two sums, times a power of 31. `index_keys` says what the keys of a record are.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np

from cometmq.proto.java import string_hash, text_of
from cometmq.store.index.index_alike import alike_keys
from cometmq.store.index.index_format import positive_hash
from cometmq.store.index.index_keys import NotedBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from cometmq.store.index.index_alike import AlikeKey
    from cometmq.store.index.index_keys import Noted, NotedRecord

    Hashes = npt.NDArray[np.int32]
    Places = npt.NDArray[np.int64]
    Powers = npt.NDArray[np.uint32]

JOINED_SIZE_MAX: Final = 1 << 17
"""Bytes of properties processed together; more than one record can have."""
_ALIKE_MIN: Final = 32
"""With fewer records of one size it does not pay to check whether they are alike."""
_GROUP_MIN: Final = 64
"""With fewer records for each group it is cheaper to hash all together."""
PREFIXES_MAX: Final = 32_768
"""Topics whose hashes are remembered: a broker may have 10,000, and each costs 1.5 µs."""
_PAD: Final = b"\x02" * 9
"""Put before the first record, so that the bytes before a name can always be looked at."""

_ID: Final = int.from_bytes(b"UNIQ_KEY", "little")
_KEYS: Final = int.from_bytes(b"\x02KEYS", "little")
_TAGS: Final = int.from_bytes(b"\x02TAGS", "little")
_WORD: Final = re.compile(rb"[^ ]+")


class Hashed(NamedTuple):
    """Keys on their way into a file: their hashes, their records' physical offsets and times."""

    hashes: Hashes
    offsets: Places
    times: Places

    def first(self, count: int) -> Hashed:
        """Return the first `count` keys."""
        return Hashed(self.hashes[:count], self.offsets[:count], self.times[:count])

    def behind(self, count: int) -> Hashed | None:
        """Return all but the first `count` keys; None if none are left."""
        if len(self.hashes) <= count:
            return None
        return Hashed(self.hashes[count:], self.offsets[count:], self.times[count:])


class _Values(NamedTuple):
    """Where the values of one property are in the joined bytes, and the record of each."""

    begins: Places
    ends: Places
    rows: Places


def hash_noted(noted: Sequence[Noted]) -> Hashed | None:
    """Return the keys of records, hashed; None if they have none."""
    kinds = set(map(type, noted))
    if kinds == {NotedBatch}:
        found = _hash_batches(cast("Sequence[NotedBatch]", noted))
        if found is not None:
            return found
    if NotedBatch in kinds:
        each = (one.records() if isinstance(one, NotedBatch) else (one,) for one in noted)
        noted = list(chain.from_iterable(each))
    return _hash_records(cast("Sequence[NotedRecord]", noted))


def _hash_batches(batches: Sequence[NotedBatch]) -> Hashed | None:
    """Hash batches whose messages are all alike; None if they are not, or have no keys."""
    firsts, topics, properties, times, sizes, counts = zip(*batches, strict=True)
    size = len(properties[0]) // counts[0]
    if any(len(each) != size * count for each, count in zip(properties, counts, strict=True)):
        return None
    keys = alike_keys(b"".join(properties), size, _powers()[0])
    if not keys:
        return None
    counted = np.array(counts)
    rows = np.repeat(np.arange(len(counts)), counted)
    numbers = np.arange(len(rows)) - (np.cumsum(counted) - counted)[rows]
    offsets = np.array(firsts)[rows] + np.array(sizes)[rows] * numbers
    hashes = _hashes_of_keys(topics, len(rows), keys, counted)
    each = len(keys)
    return Hashed(hashes, np.repeat(offsets, each), np.repeat(np.array(times)[rows], each))


def _hash_records(noted: Sequence[NotedRecord]) -> Hashed | None:
    # One list, and every fourth element of it: `zip` would make an iterator for each record.
    flat: list[Any] = list(chain.from_iterable(noted))
    times = flat[3::4]
    hashes, rows = record_hashes(flat[1::4], flat[2::4])
    if not len(hashes):
        return None
    count = len(noted)
    offsets = np.fromiter(flat[::4], np.int64, count)
    if times.count(times[0]) == count:  # All of one turn.
        return Hashed(hashes, offsets[rows], np.full(len(rows), times[0], np.int64))
    return Hashed(hashes, offsets[rows], np.fromiter(times, np.int64, count)[rows])


def record_hashes(topics: Sequence[bytes], properties: Sequence[bytes]) -> tuple[Hashes, Places]:
    """Return the hashes of the records' keys, in order, and for each key its record's number."""
    sizes = set(map(len, properties))
    count = len(properties)
    if count > 1 and count * (max(sizes) + 1) > JOINED_SIZE_MAX:
        half = count // 2
        first = record_hashes(topics[:half], properties[:half])
        second = record_hashes(topics[half:], properties[half:])
        return np.concatenate((first[0], second[0])), np.concatenate((first[1], second[1] + half))
    if count < _ALIKE_MIN:
        return _Joined(topics, properties).hashes()
    if len(sizes) == 1:
        return _hashes_of_alike(topics, properties) or _Joined(topics, properties).hashes()
    return _hashes_by_size(topics, properties)


def _hashes_by_size(topics: Sequence[bytes], properties: Sequence[bytes]) -> tuple[Hashes, Places]:
    """Hash records whose properties have several sizes: many of one size may be alike."""
    size_of = np.fromiter(map(len, properties), np.int64, len(properties))
    counts = np.bincount(size_of)
    frequent = np.flatnonzero(counts >= _ALIKE_MIN)
    if len(properties) < _GROUP_MIN * (1 + len(frequent)):
        return _Joined(topics, properties).hashes()
    groups = [(np.flatnonzero(size_of == size), True) for size in frequent]
    # The rest together: for instance, the op message of each turn of transactions differs in size.
    groups.append((np.flatnonzero(counts[size_of] < _ALIKE_MIN), False))
    parts: list[tuple[Hashes, Places]] = []
    for numbers, is_one_size in groups:
        chosen: list[int] = numbers.tolist()
        some = [topics[n] for n in chosen], [properties[n] for n in chosen]
        found = _hashes_of_alike(*some) if is_one_size else None
        hashes, rows = found or _Joined(*some).hashes()
        parts.append((hashes, numbers[rows]))
    hashes, rows = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(rows, kind="stable")
    return hashes[order], rows[order]


def _hashes_of_alike(
    topics: Sequence[bytes], properties: Sequence[bytes]
) -> tuple[Hashes, Places] | None:
    keys = alike_keys(b"".join(properties), len(properties[0]), _powers()[0])
    if keys is None:
        return None
    count = len(properties)
    return _hashes_of_keys(topics, count, keys), np.repeat(np.arange(count), len(keys))


def _hashes_of_keys(
    topics: Sequence[bytes], count: int, keys: Sequence[AlikeKey], counts: Places | None = None
) -> Hashes:
    """Hash the keys of `count` records that are alike, record by record.

    There is a topic for each record or, if `counts` are given, one for that many in a row.
    """
    powers, _ = _powers()
    sums = np.empty((count, len(keys)), np.uint32)
    for column, key in enumerate(keys):
        prefixes = _prefix_hashes(topics, are_tags=key.is_tags)
        if counts is not None and len(prefixes) > 1:
            prefixes = np.repeat(prefixes, counts)
        sums[:, column] = key.sums + prefixes * powers[key.size]
    return _positive(sums.ravel())


def _prefix_hashes(topics: Sequence[bytes], *, are_tags: bool) -> Powers:
    """Return the hash of the values' prefix for each topic; only one if all topics are the same."""
    if topics.count(topics[0]) == len(topics):
        return np.array([_prefix_hash(topics[0], tags=are_tags)], np.uint32)
    known = _known_prefixes[are_tags]
    try:
        return np.fromiter(map(known.__getitem__, topics), np.uint32, len(topics))
    except KeyError:
        hashes = {topic: _prefix_hash(topic, tags=are_tags) for topic in set(topics)}
        return np.fromiter(map(hashes.__getitem__, topics), np.uint32, len(topics))


def _positive(sums: Powers) -> Hashes:
    """Return hashes for the index; abs of -2^31 is itself, and becomes 0."""
    return np.maximum(np.abs(sums.view(np.int32)), 0)


class _Joined:
    """Some records with their properties in one string; every pair has a 0x02 on both sides."""

    def __init__(self, topics: Sequence[bytes], properties: Sequence[bytes]) -> None:
        self.topics = topics
        self.raw = b"\x02".join((_PAD, *properties, b""))
        self.bytes = np.frombuffer(self.raw, np.uint8)
        sizes = np.fromiter(map(len, properties), np.int64, len(properties)) + 1
        self.starts = np.cumsum(sizes) - sizes + len(_PAD) + 1
        self.twos = np.flatnonzero(self.bytes == 2)

    def hashes(self) -> tuple[Hashes, Places]:
        """Hash the keys of all records."""
        ones = np.flatnonzero(self.bytes == 1)
        eights = np.ndarray(len(self.raw) - 7, "<u8", self.raw, strides=(1,))
        before = eights[ones - 8]  # The eight bytes before each 0x01.
        ids = ones[before == _ID]
        ids = ids[self.bytes[ids - 9] == 2]
        five = before >> np.uint64(24)
        found = (
            self._values(ids),
            self._words(self._values(ones[five == _KEYS])),
            self._values(ones[five == _TAGS]),
        )
        begins, ends, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
        ranks = np.repeat(np.arange(3), [len(values.rows) for values in found])
        hashes = self._hash(begins, ends, rows, ranks == 2)
        order = np.argsort(rows * 3 + ranks, kind="stable")
        return hashes[order], rows[order]

    def _values(self, at: Places) -> _Values:
        """Return the values of a property whose 0x01 are at these places.

        An empty value counts as absent; if a record has several, the last counts.
        """
        begins = at + 1
        ends = self.twos[np.searchsorted(self.twos, at)]
        rows = np.searchsorted(self.starts, begins, "right") - 1
        counts = ends > begins
        if not counts.all():
            begins, ends, rows = begins[counts], ends[counts], rows[counts]
        repeated = rows[1:] == rows[:-1]
        if repeated.any():
            last = np.append(~repeated, True)
            begins, ends, rows = begins[last], ends[last], rows[last]
        return _Values(begins, ends, rows)

    def _words(self, values: _Values) -> _Values:
        """Cut values that hold spaces into their words."""
        spaces = np.flatnonzero(self.bytes == 32)
        several = np.searchsorted(spaces, values.begins) < np.searchsorted(spaces, values.ends)
        if not several.any():
            return values
        words: list[tuple[int, int, int]] = []
        for number in np.flatnonzero(several).tolist():
            begin, end, row = (int(each[number]) for each in values)
            words += [(*word.span(), row) for word in _WORD.finditer(self.raw, begin, end)]
        cut = np.array(words, np.int64).reshape(-1, 3)
        single = ~several
        return _Values(
            *(
                np.concatenate((whole[single], parts))
                for whole, parts in zip(values, cut.T, strict=True)
            )
        )

    def _hash(
        self, begins: Places, ends: Places, rows: Places, are_tags: npt.NDArray[np.bool_]
    ) -> Hashes:
        powers, inverses = _powers()
        sums = np.zeros(len(self.raw) + 1, np.uint32)
        np.cumsum(self.bytes * inverses[: len(self.raw)], dtype=np.uint32, out=sums[1:])
        of_values = (sums[ends] - sums[begins]) * powers[ends - 1]
        hashes = _positive(of_values + self._prefixes(rows, are_tags) * powers[ends - begins])
        if not self.raw.isascii():
            above = np.zeros(len(self.raw) + 1, np.int64)
            np.cumsum(self.bytes >= 0x80, out=above[1:])
            numbers: list[int] = np.flatnonzero(above[ends] > above[begins]).tolist()
            for number in numbers:
                key = _prefix(self.topics[int(rows[number])], tags=bool(are_tags[number]))
                key += self.raw[begins[number] : ends[number]]
                hashes[number] = positive_hash(_hash_of(key))
        return hashes

    def _prefixes(self, rows: Places, are_tags: npt.NDArray[np.bool_]) -> Powers:
        """Return the hash of the prefix of each value in its key."""
        numbers = {topic: number for number, topic in enumerate(set(self.topics))}
        table: Powers = np.array(
            [[_prefix_hash(topic, tags=tags) for topic in numbers] for tags in (False, True)],
            np.uint32,
        )
        if len(numbers) == 1:
            prefixes: Powers = table[are_tags.view(np.int8), 0]
        else:
            of_rows = np.fromiter(map(numbers.__getitem__, self.topics), np.int64, len(self.topics))
            prefixes = table[are_tags.view(np.int8), of_rows[rows]]
        return prefixes


def _prefix(topic: bytes, *, tags: bool) -> bytes:
    return topic + (b"#T#" if tags else b"#")


_known_prefixes: Final[tuple[dict[bytes, int], dict[bytes, int]]] = ({}, {})
"""By topic, the hash of the prefix of values, and of tags."""


def _prefix_hash(topic: bytes, *, tags: bool) -> int:
    known = _known_prefixes[tags]
    found = known.get(topic)
    if found is None:
        if len(known) >= PREFIXES_MAX:
            known.clear()
        found = known[topic] = _hash_of(_prefix(topic, tags=tags)) & 0xFFFFFFFF
    return found


def _hash_of(key: bytes) -> int:
    return string_hash(text_of(key))


def make_tables() -> None:
    """Make the tables that hashing needs, which takes 2 ms: a thread may do this ahead."""
    _powers()


@lru_cache(maxsize=1)
def _powers() -> tuple[Powers, Powers]:
    """Return the powers of 31, and of its inverse modulo 2^32."""
    size = JOINED_SIZE_MAX + len(_PAD) + 2
    powers = np.full(size, 31, np.uint32)
    inverses = np.full(size, pow(31, -1, 1 << 32), np.uint32)
    powers[0] = inverses[0] = 1
    return np.cumprod(powers, dtype=np.uint32), np.cumprod(inverses, dtype=np.uint32)
