"""Positions of queues, as people and Spark's checkpoints write them.

Both are JSON, by topic, broker and queue::

    {"orders": {"broker-a": {"0": 5, "1": -1}}}

In what people write, -2 is the earliest and -1 the latest offset, and the broker may be left out,
which means every broker.

A stream's checkpoint has more. Spark writes the *end* of each batch into its log. If the first
batch is repeated after a crash, Spark asks for its start again; "the latest" has changed by then,
and messages would be skipped silently. So each end also says where its batch begins, unless that is
simply the previous end:

===========  ====================================================================
member       content
===========  ====================================================================
`queues`     positions
`initial`    true: it is the beginning of a stream, and nothing has been read yet
`from`       positions where queues begin that are not in the previous end, or whose
             position there no longer applies
`gone`       topics that no longer exist or are no longer named, which was reported as a
             loss, so that no later run fails because of it; omitted while empty
`lost`       how many messages had expired, since the stream began, before they were
             read; omitted while there are none
`firsts`     by topic, broker and queue: the offset of the first message that was
             there, and its store time in ms; not in older checkpoints. A time
             below 0: all had expired; it is when that was seen, the offset is where
===========  ====================================================================

Spark compares these documents as text, so their members are always in the same order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar, cast

from cometmq.pipeline.cluster import Bounds, Queue
from cometmq.pipeline.errors import OptionError

Positions = Mapping[Queue, int]
V = TypeVar("V")

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
_QUEUE_ID: Final = re.compile("0|[1-9][0-9]{0,9}")  # Not 00, which would be queue 0 again.


class First(NamedTuple):
    """The first message that a queue had at some time."""

    offset: int
    stored_ms: int
    """Its store time. Below 0 if the queue had none: when that was seen, at offset `offset`."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a stream stands, and where the batch that ends there begins."""

    queues: Positions
    is_initial: bool = False
    begins: Positions = field(default_factory=dict[Queue, int])
    firsts: Mapping[Queue, First] = field(default_factory=dict[Queue, First])
    lost: int = 0
    """How many messages had expired before they were read, since the stream began."""
    gone: frozenset[str] = frozenset()
    """Topics that no longer exist, which was reported as a loss."""

    def document(self) -> dict[str, Any]:
        """Return it as a document for Spark, with its members in order."""
        said: dict[str, Any] = {}
        if self.firsts:
            said["firsts"] = document_of(self.firsts)
        if self.begins:
            said["from"] = document_of(self.begins)
        if self.gone:
            said["gone"] = sorted(self.gone)
        if self.is_initial:
            said["initial"] = True
        if self.lost:
            said["lost"] = self.lost
        said["queues"] = document_of(self.queues)
        return said


def read_stream_offset(said: Mapping[str, Any]) -> StreamOffset:
    """Read what `document` wrote."""
    return StreamOffset(
        _positions(said["queues"]),
        bool(said.get("initial", False)),
        _positions(said.get("from", {})),
        {queue: First(*map(int, each)) for queue, each in _each(said.get("firsts", {}))},
        int(said.get("lost", 0)),
        frozenset(said.get("gone", ())),
    )


def ranges(start: StreamOffset, end: StreamOffset) -> dict[Queue, Bounds]:
    """Return the ranges between two positions of a stream; omit empty ones."""
    found: dict[Queue, Bounds] = {}
    if end.is_initial:  # A first batch without messages; if it is repeated, `start` may be another.
        return found
    for queue, until in end.queues.items():
        first = end.begins.get(queue, start.queues.get(queue, until))
        if first < until:
            found[queue] = Bounds(first, until)
    return found


def document_of(values: Mapping[Queue, V]) -> dict[str, dict[str, dict[str, V]]]:
    """Return values by queue in the nested form of JSON, in order."""
    said: dict[str, dict[str, dict[str, V]]] = {}
    for queue in sorted(values):
        of_broker = said.setdefault(queue.topic, {}).setdefault(queue.broker, {})
        of_broker[str(queue.id)] = values[queue]
    return said


def _positions(said: Mapping[str, Any]) -> dict[Queue, int]:
    return {queue: int(offset) for queue, offset in _each(said)}


def _each(said: Mapping[str, Any]) -> Iterable[tuple[Queue, Any]]:
    return (
        (Queue(topic, broker, int(queue_id)), value)
        for topic, brokers in said.items()
        for broker, queues in brokers.items()
        for queue_id, value in queues.items()
    )


def check_given_positions(option: str, text: str) -> None:
    """Refuse a text that cannot be positions, whatever queues exist."""
    for topic, brokers in _object(option, _parse(option, text), "of topics").items():
        for broker, of_broker in _brokers(option, brokers, topic, [""]):
            for queue_id, offset in _object(option, of_broker, f"of {topic}'s queues").items():
                number = _queue_id(option, queue_id)
                place = "/".join(filter(None, (topic, broker, str(number))))
                _offset(option, place, offset)


def read_given_positions(option: str, text: str, queues: Iterable[Queue]) -> dict[Queue, int]:
    """Parse positions that somebody wrote, for these queues; -2 and -1 are kept.

    Raise `OptionError` for invalid JSON, and for a topic, broker or queue that does not exist.
    """
    known = set(queues)
    brokers_of: dict[str, set[str]] = {}
    for queue in known:
        brokers_of.setdefault(queue.topic, set()).add(queue.broker)
    found: dict[Queue, int] = {}
    for topic, brokers in _object(option, _parse(option, text), "of topics").items():
        if topic not in brokers_of:
            raise OptionError(f"{option}: topic {topic!r} is not read, or does not exist")
        for broker, of_broker in _brokers(option, brokers, topic, brokers_of[topic]):
            numbers = _object(option, of_broker, f"of {topic}'s queues")
            if broker not in brokers_of[topic]:
                raise OptionError(
                    f"{option}: no queue of {topic} is on broker {broker!r}; `cometmq topic"
                    f" status {topic}` shows where they are"
                )
            for queue_id, offset in numbers.items():
                queue = Queue(topic, broker, _queue_id(option, queue_id))
                if queue not in known:
                    raise OptionError(
                        f"{option}: there is no queue {queue}; `cometmq topic status {topic}` shows"
                        " all"
                    )
                found[queue] = _offset(option, str(queue), offset)
    return found


def _brokers(
    option: str, said: object, topic: str, known: Iterable[str]
) -> Iterable[tuple[str, object]]:
    """Yield the positions for each broker; if no member is an object, they hold for all brokers."""
    members = _object(option, said, f"of {topic}'s brokers")
    if any(isinstance(value, dict) for value in members.values()):
        return members.items()
    return [(name, members) for name in sorted(known)]


def _parse(option: str, text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _members(option, pairs))
    except OptionError:  # It is a `ValueError`, too.
        raise
    except RecursionError:
        raise OptionError(f"{option}: {text[:80]!r} is nested too deeply") from None
    except ValueError as error:
        raise OptionError(
            f"{option}: {text[:80]!r} is not earliest, latest or group:NAME, and not JSON such as"
            f' {{"orders": {{"broker-a": {{"0": 5}}}}}}: {error}'
        ) from None


def _members(option: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members; refuse duplicates, of which Python would take the last."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in members if names.count(name) > 1)
        raise OptionError(f"{option}: {twice!r} is named twice in one object")
    return members


def _object(option: str, said: object, what: str) -> dict[str, Any]:
    if isinstance(said, dict):
        return cast("dict[str, Any]", said)
    raise OptionError(f"{option}: {said!r} must be an object {what}")


def _queue_id(option: str, text: str) -> int:
    if _QUEUE_ID.fullmatch(text):
        return int(text)
    raise OptionError(f"{option}: {text!r} is not the number of a queue")


def _offset(option: str, queue: str, said: object) -> int:
    if type(said) is int and said >= EARLIEST_OFFSET:
        return said
    raise OptionError(
        f"{option}: {said!r} of queue {queue} is not an offset; write one, or -2 for the earliest,"
        " -1 for the latest"
    )
