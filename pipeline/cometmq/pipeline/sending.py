"""Sending what a task writes: requests in flight over one connection to each broker.

Messages are sent in batches, one queue each. Those that must be stored once are sent in CometMQ's
own requests (31005), from which a broker leaves out what it has stored before. Delayed messages are
sent alone, and so is a message that is larger than a batch: Apache's brokers limit the size of a
batch to that of a message's body, but for a single message they count only the body.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cometmq.pipeline.identities import COORDINATE_ID_SIZE, FreshIds
from cometmq.pipeline.lanes import (
    SEND_BATCH_MESSAGE,
    SEND_BATCH_ONCE,
    SEND_MESSAGE_V2,
    Lane,
    Request,
    Sending,
    no_cometmq,
)
from cometmq.pipeline.marks import Marks
from cometmq.pipeline.messages import PROPERTIES_SIZE_MAX, split_item, too_many_properties
from cometmq.pipeline.records.slices import parts_of
from cometmq.pipeline.stored import Stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from cometmq.pipeline.messages import Messages
    from cometmq.pipeline.records.layout import Bytes
    from cometmq.pipeline.targets import Target, Targets

_HELD_MAX: Final = 64 << 20
"""How many bytes of messages may wait for others to fill a request: in a topic with thousands of
queues, messages of every queue could otherwise wait."""


@dataclass(slots=True)
class Sent:
    """What a task has written."""

    rows: int = 0
    size: int = 0
    """The size of the bodies in bytes."""
    once: int = 0
    """The number of rows that were sent to be stored once."""
    again: int = 0
    """How many of these an earlier run had stored. Delayed ones are not counted: if one is sent
    again, the broker answers as it did the first time."""
    marks: Marks = field(default_factory=Marks)
    """The marks of rows that say from which message they were made."""


@dataclass(slots=True)
class Sender:
    """Sends the rows of one task; `finish` returns when all are stored."""

    targets: Targets
    how: Sending
    sent: Sent = field(default_factory=Sent)
    _lanes: dict[str, Lane] = field(default_factory=lambda: dict[str, Lane]())
    _batches: dict[_Lot, _Batch] = field(default_factory=lambda: dict[_Lot, _Batch]())
    _held: int = 0
    """The size of the messages in these lots, in bytes."""
    _turn: int = field(default_factory=lambda: secrets.randbelow(1 << 16))
    _ids: FreshIds = field(default_factory=FreshIds)
    _stored: Stored = field(init=False)

    def __post_init__(self) -> None:
        self._stored = Stored(self.how)

    def send(self, messages: Messages) -> None:
        """Send messages; most are in flight when it returns."""
        self.sent.rows += len(messages)
        self.sent.size += messages.size
        for topic, of_topic in messages.by_topic():
            if of_topic.delayed.any():
                self._send_singly(topic, of_topic.rows(of_topic.delayed))
                of_topic = of_topic.rows(~of_topic.delayed)
            if not of_topic.placed.all():
                rest = of_topic.rows(~of_topic.placed)
                self._add(_Lot(topic, None, is_once=False), rest.items(self._ids.take(len(rest))))
                of_topic = of_topic.rows(of_topic.placed)
            for target, there in self._placed(topic, of_topic):
                self._send_to(topic, target, there)

    def _placed(self, topic: str, messages: Messages) -> Iterator[tuple[Target, Messages]]:
        """Yield the messages for each queue."""
        if len(messages):
            targets = self.targets.of(topic)
            chosen = messages.spreads % len(targets)
            for number in np.unique(chosen).tolist():
                yield targets[number], messages.rows(chosen == number)

    def _send_to(self, topic: str, target: Target, messages: Messages) -> None:
        ids = messages.ids
        is_once = ids is not None and self._is_once(target, messages)
        if ids is None or not is_once:
            ids = self._ids.take(len(messages))
        else:
            self.sent.once += len(ids)
            self._mark(ids)
            stored = self._stored.look(topic, target, ids, messages)
            if stored.any():
                self.sent.again += int(stored.sum())
                messages, ids = messages.rows(~stored), ids[~stored]
        self._add(_Lot(topic, target, is_once=is_once), messages.items(ids))

    def _send_singly(self, topic: str, messages: Messages) -> None:
        """Send messages that cannot be in a batch."""
        targets = self.targets.of(topic)
        ids = self._ids.take(len(messages)) if messages.ids is None else messages.ids
        once = np.zeros(len(messages), np.bool_)
        for index, raw in enumerate(messages.properties.to_pylist()):
            spread = int(messages.spreads[index]) if messages.placed[index] else self._turn
            self._turn += 1
            target = targets[spread % len(targets)]
            asks = b""
            if messages.ids is not None and self._is_once(target, messages):
                asks = b"IDEMPOTENT\x011\x02"
                once[index] = True
            properties = b"UNIQ_KEY\x01%b\x02%b%b" % (ids[index].tobytes(), raw, asks)
            if len(properties) > PROPERTIES_SIZE_MAX:
                raise too_many_properties(len(properties))
            self._lane(target).submit(
                Request(
                    SEND_MESSAGE_V2,
                    topic,
                    target.queue_id,
                    properties.decode(),
                    int(messages.flags[index]),
                    messages.bodies[index].as_py(),
                )
            )
        self.sent.once += int(once.sum())
        self._mark(ids[once])  # All at once: one by one would take half as long as all the rest.

    def finish(self) -> Sent:
        """Send the rest, and wait until everything is stored."""
        self._send_batches()
        for lane in self._lanes.values():
            lane.finish()
            self.sent.again += lane.repeated
        return self.sent

    def close(self) -> None:
        """Leave intact connections to the next task, and end the others."""
        for lane in self._lanes.values():
            lane.close()

    def _mark(self, ids: Bytes) -> None:
        """Record the marks of rows, except with a `dedupKey`, where equal rows are allowed."""
        if ids.shape[1] == COORDINATE_ID_SIZE:
            self.sent.marks.add(ids)

    def _is_once(self, target: Target, messages: Messages) -> bool:
        """Whether messages are stored once there; raise `SinkError` if that would drop a twin."""
        if self.how.delivery == "at-least-once":
            return False
        lane = self._lane(target)
        if lane.speaks_cometmq:
            if messages.twins is not None:
                raise messages.twins
            return True
        if self.how.delivery == "idempotent":
            raise no_cometmq(target.broker)
        return False

    def _add(self, lot: _Lot, items: pa.Array) -> None:
        """Add messages to a lot, and send full requests."""
        batch = self._batches.get(lot)
        if batch is None:
            batch = self._batches[lot] = _Batch()
        raw, borders = parts_of(items)
        view: memoryview = raw.data
        first, size_max = 0, self.how.batch_bytes
        while first < len(items):
            behind = int(borders[first]) + size_max - batch.size
            end = int(np.searchsorted(borders, behind, "right")) - 1
            if end <= first and batch.parts:
                self._send_batch(lot, batch)
                continue
            end = max(end, first + 1)
            part = view[int(borders[first]) : int(borders[end])]
            batch.parts.append(part)
            batch.size += len(part)
            self._held += len(part)
            first = end
        if self._held > _HELD_MAX:
            self._send_batches()

    def _send_batches(self) -> None:
        for lot, batch in self._batches.items():
            self._send_batch(lot, batch)

    def _send_batch(self, lot: _Lot, batch: _Batch) -> None:
        if not batch.parts:
            return
        body = b"".join(batch.parts)
        self._held -= batch.size
        batch.parts, batch.size = [], 0
        target = lot.target
        if target is None:  # Messages that may go anywhere go to the next queue.
            targets = self.targets.of(lot.topic)
            target = targets[self._turn % len(targets)]
            self._turn += 1
        code = SEND_BATCH_ONCE if lot.is_once else SEND_BATCH_MESSAGE
        request = Request(code, lot.topic, target.queue_id, "", 0, body)
        if len(body) > self.how.batch_bytes and not lot.is_once:  # It is a single message.
            flag, body, properties = split_item(body)
            request = request._replace(
                code=SEND_MESSAGE_V2, properties=properties.decode(), flag=flag, body=body
            )
        self._lane(target).submit(request)

    def _lane(self, target: Target) -> Lane:
        lane = self._lanes.get(target.address)
        if lane is None:
            lane = self._lanes[target.address] = Lane(target.address, self.how)
        return lane


class _Lot(NamedTuple):
    """Messages that can be sent together."""

    topic: str
    target: Target | None
    """`None` for any queue."""
    is_once: bool


@dataclass(slots=True)
class _Batch:
    parts: list[memoryview] = field(default_factory=list[memoryview])
    size: int = 0
