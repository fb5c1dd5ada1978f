"""Ids of rows that are to be stored once, made for many rows at once from their identities.

The last twelve characters of an id are a number, and the others name its producer (see decision 7).
For messages of a source, the producer is a stretch of 4,096 offsets of one queue, and the number is
made from a message's store time and offset: a broker remembers more messages than that for each
producer. If a topic was deleted and recreated, its offsets occur again, but not its times. Rows
without a store time, and those that earlier versions sent, are numbered by offset only. With
`dedupKey`, every value is its own producer. The destination topic is part of the id: brokers know a
message by its id alone, and a row that goes to two topics is two messages.
"""

from __future__ import annotations

import secrets
import time
from hashlib import sha256
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from cometmq.pipeline.errors import SinkError
from cometmq.pipeline.planning import STRETCH
from cometmq.pipeline.records.slices import hex_letters

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from cometmq.pipeline.records.layout import Bytes, Longs

    Spreads: TypeAlias = "npt.NDArray[np.uint64]"
    _Run: TypeAlias = "tuple[str | int, ...]"
    """Topic to go to, topic, broker, queue and stretch of rows that stand behind one another, and
    the address of their broker, if they say it."""

PRODUCER_SIZE: Final = 32
"""How many characters of the id of a source's message name its stretch."""
_NUMBER_SIZE: Final = 12
COORDINATE_ID_SIZE: Final = PRODUCER_SIZE + _NUMBER_SIZE
_TIMED: Final = "timed"
"""Distinguishes producers whose numbers have times from those with offsets only."""
_KEY_SIZE: Final = 24
_REMEMBERED_MAX: Final = 500_000
"""How many messages of one task are remembered, to detect one that comes twice: some 50 MB."""
ONLY_ONE: Final = (
    "and only one of them would be stored: send them to two topics or, in a program of your own,"
    " leave out the columns that say where it was, tell the rows apart by dedupKey or, of two"
    " clusters, by a column source_host, which is their store_host"
)
"""What to do about rows that look like one row sent twice; SQL of `transform` can do the first."""
_ONLY: Final = np.frombuffer(b"0" * (_NUMBER_SIZE - 1) + b"1", np.uint8)
"""The number of a producer's only message."""


class Identities(NamedTuple):
    """The identities of rows."""

    ids: Bytes
    """The id of each row, in characters."""
    spreads: Spreads
    """A number per row that, modulo the number of queues, chooses its queue."""
    untimed: Bytes | None = None
    """If rows have store times: the ids that they would have without them."""
    stored_ms: Longs | None = None
    """If rows have store times: these, with 0 for rows without."""
    twins: SinkError | None = None
    """Why they must not be stored once: two rows are of one message."""


class CoordinateIds:
    """Makes the ids of messages that are identified by their place.

    Messages of one queue go to one queue, and queues of different brokers are spread.
    """

    def __init__(self, sink: str, *, finds_twins: bool = True) -> None:
        self._sink = sink
        self._twins = _Twins() if finds_twins else None
        self._producers: dict[_Run, bytes] = {}
        self._spreads: dict[tuple[str, str], int] = {}

    def of(
        self,
        places: Sequence[pa.Array],
        to: str | pa.DictionaryArray,
        times: pa.Array | None = None,
        hosts: pa.Array | None = None,
    ) -> Identities:
        """Return the identities of messages; `places` are columns of topic, broker, queue, offset.

        `times` are their store times, in µs, and `hosts` the addresses where they were stored, null
        if unknown. `to` is the topic that they go to. Consecutive messages of one stretch cost no
        more than one. Rows of one task with the same place, and the same time if known, are
        reported as twins.
        """
        count = len(places[0])
        whereto = pa.repeat(to, count) if isinstance(to, str) else to
        addresses = pa.repeat("", count) if hosts is None else hosts.fill_null("")
        texts = [each.dictionary_encode() for each in (whereto, *places[:2], addresses)]
        codes = [each.indices.to_numpy() for each in texts]
        queues, offsets = (each.to_numpy() for each in places[2:])
        stretches = offsets // STRETCH
        begins = np.ones(count, np.bool_)
        begins[1:] = False
        for each in (*codes, queues, stretches):
            begins[1:] |= each[1:] != each[:-1]
        firsts = np.flatnonzero(begins)
        names = [each.dictionary.to_pylist() for each in texts]
        runs = [
            (names[0][whereto], names[1][topic], names[2][broker], queue, stretch)
            + ((names[3][host],) if names[3][host] else ())
            for whereto, topic, broker, host, queue, stretch in zip(
                *(each[firsts].tolist() for each in (*codes, queues, stretches)), strict=True
            )
        ]
        stored = None
        if times is not None and times.null_count < count:
            stored = times.fill_null(0).to_numpy() // 1000
        lengths = np.diff(firsts, append=len(offsets))
        twins = None
        if self._twins is not None:
            times_of = 0 if stored is None else stored
            twins = self._twins.find(runs, lengths, times_of * STRETCH + offsets % STRETCH)
        spreads = np.array([self._spread(*run[1:3]) for run in runs], np.uint64)
        spreads = spreads.repeat(lengths) + queues.astype(np.uint64)
        untimed = self._ids(runs, lengths, offsets + 1)
        if times is None or stored is None:
            return Identities(untimed, spreads, twins=twins)
        ids = self._ids(
            [(*run, _TIMED) for run in runs], lengths, stored * STRETCH + offsets % STRETCH
        )
        if times.null_count:
            unknown = times.is_null().to_numpy(zero_copy_only=False)
            ids[unknown] = untimed[unknown]
        return Identities(ids, spreads, untimed, stored, twins)

    def _ids(self, runs: Sequence[_Run], lengths: Longs, numbers: Longs) -> Bytes:
        producers = np.frombuffer(b"".join(map(self._producer, runs)), np.uint8)
        ids = np.empty((len(numbers), COORDINATE_ID_SIZE), np.uint8)
        ids[:, :PRODUCER_SIZE] = producers.reshape(-1, PRODUCER_SIZE).repeat(lengths, axis=0)
        ids[:, PRODUCER_SIZE:] = _numbers(numbers)
        return ids

    def _producer(self, stretch: _Run) -> bytes:
        found = self._producers.get(stretch)
        if found is None:
            text = "\0".join((self._sink, *map(str, stretch)))
            found = sha256(text.encode()).hexdigest().upper()[:PRODUCER_SIZE].encode()
            self._producers[stretch] = found
        return found

    def _spread(self, topic: str, broker: str) -> int:
        found = self._spreads.get((topic, broker))
        if found is None:
            found = self._spreads[topic, broker] = spread_of(f"{topic}/{broker}".encode())
        return found


class _Twins:
    """The messages that a task has sent: two rows of one would look like one row sent again."""

    def __init__(self) -> None:
        self._sent: dict[_Run, set[int]] = {}
        self._count = 0

    def find(self, runs: Sequence[_Run], lengths: Longs, numbers: Longs) -> SinkError | None:
        """Remember messages by their numbers in their stretches; report one that was there before.

        Messages that the task sent long ago are forgotten.
        """
        first, found = 0, None
        for run, length in zip(runs, lengths.tolist(), strict=True):
            several = numbers[first : first + length].tolist()
            first += length
            sent = self._sent.setdefault(run, set())
            before = len(sent)
            if found is None and (twin := _first_twin(several, sent)) is not None:
                found = _same_rows(run, twin)
            sent.update(several)
            self._count += len(sent) - before
        while self._count > _REMEMBERED_MAX:
            self._count -= len(self._sent.pop(next(iter(self._sent))))
        return found


def _first_twin(several: Sequence[int], sent: set[int]) -> int | None:
    """Return the first number that was there before, or that occurs twice here."""
    if sent.isdisjoint(several) and len(set(several)) == len(several):
        return None
    seen: set[int] = set()
    for number in several:
        if number in sent or number in seen:
            return number
        seen.add(number)
    return None


def _same_rows(run: _Run, number: int) -> SinkError:
    to, topic, broker, queue, stretch = run[:5]
    place = f"{topic}/{broker}/{queue} at {int(stretch) * STRETCH + number % STRETCH}"
    return SinkError(f"two rows for topic {to} come from one message, {place}, {ONLY_ONE}")


class KeyIds:
    """Makes the ids of messages that are identified by a key: a producer of one message each."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._begun: dict[str, Any] = {}
        """The hash state after the topic, by topic."""

    def of(self, column: str, keys: pa.Array, to: str | pa.DictionaryArray) -> Identities:
        """Return the identities of messages with these keys and topic; `SinkError` for null."""
        if keys.null_count:
            raise SinkError(f"column {column}: is null, but dedupKey needs a value")
        topics = repeat(to, len(keys)) if isinstance(to, str) else to.to_pylist()
        digests: list[bytes] = []
        for key, topic in zip(keys.to_pylist(), topics, strict=True):
            digest = self._of_topic(topic).copy()
            digest.update(key if isinstance(key, bytes) else str(key).encode())
            digests.append(digest.digest())
        packed = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
        ids = np.empty((len(packed), 2 * _KEY_SIZE + _NUMBER_SIZE), np.uint8)
        ids[:, : 2 * _KEY_SIZE] = hex_letters(packed[:, :_KEY_SIZE])
        ids[:, 2 * _KEY_SIZE :] = _ONLY
        spreads = np.ascontiguousarray(packed[:, _KEY_SIZE:]).view(">u8")
        return Identities(ids, spreads.astype(np.uint64).reshape(-1))

    def _of_topic(self, topic: str) -> Any:
        begun = self._begun.get(topic)
        if begun is None:
            text = f"{self._sink}\0{topic}\0"
            begun = self._begun[topic] = sha256(text.encode())
        return begun


class FreshIds:
    """Makes ids for messages that have none, in Apache's form, with the time in it."""

    def __init__(self) -> None:
        now = time.gmtime()
        in_month = ((now.tm_mday - 1) * 86_400 + now.tm_hour * 3_600 + now.tm_min * 60) * 1000
        prefix = "7F000001" + secrets.token_hex(6).upper()
        self._prefix = np.frombuffer(prefix.encode(), np.uint8)
        self._number = (in_month & 0xFFFFFFFF) << 16

    def take(self, count: int) -> Bytes:
        """Return new, unique ids."""
        numbers = np.arange(self._number, self._number + count) + 1
        self._number += count
        ids = np.empty((count, len(self._prefix) + _NUMBER_SIZE), np.uint8)
        ids[:, : len(self._prefix)] = self._prefix
        ids[:, len(self._prefix) :] = _numbers(numbers)
        return ids


def spread_of(text: bytes) -> int:
    """Return a number that is always the same for the same text."""
    return int.from_bytes(sha256(text).digest()[:8], "big")


def _numbers(numbers: Longs) -> Bytes:
    """Return numbers in the form in which they end ids."""
    packed = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return hex_letters(packed[:, 8 - _NUMBER_SIZE // 2 :])
