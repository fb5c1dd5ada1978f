"""Sends that are repeated because their answer was lost: each message is stored once.

How it works. A producer that wants it says so (property `IDEMPOTENT`), and makes its unique ids so
that they count: the last 12 characters grow from message to message, those in front of them are its
own. Of each such producer the places of its last messages are remembered; a message that is among
them is answered with its place instead of being stored. One that is older than all that is
remembered is refused, for nobody can tell.

What is remembered is rebuilt from the log: a stored message has the property `SENT_ONCE` instead,
so that who sends a message on that it has received does not repeat what its producer said. A start
reads the last `TAIL_SIZE` bytes of the log, and what more it reads anyway.

Each producer has two generations of places, so that nothing is removed one by one: when the younger
one is full, the older one is forgotten.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from cometmq.broker.errors import RequestError
from cometmq.proto.codes import ResponseCode
from cometmq.proto.properties import property_finder
from cometmq.store.dispatch import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from cometmq.broker.acknowledgements import Acknowledgements
    from cometmq.broker.config import BrokerConfig
    from cometmq.proto.message import StoredMessage
    from cometmq.store.message_store import MessageStore

ASKED: Final = b"IDEMPOTENT\x01"
STORED: Final = b"SENT_ONCE\x011\x02"
TAIL_SIZE: Final = 16 << 20
"""Bytes of the log, at least, in which a start finds what was sent."""

_NUMBER_SIZE: Final = 12
_ID_SIZE_MIN: Final = 32
"""Of a producer with an IPv4 address; with an IPv6 address it is 56."""
_ID_SIZE_MAX: Final = 64
_ASIDE: Final = (SCHEDULE_TOPIC.encode(), b"RMQ_SYS_TRANS_HALF_TOPIC")
_find_unique_id: Final = property_finder(b"UNIQ_KEY")
_find_queue: Final = property_finder(b"REAL_QID")

# Where a message is: its physical offset, its queue, its offset in there. A plain tuple, made for
# each send.
Place: TypeAlias = "tuple[int, int, int]"


class _Producer:
    """What is remembered of one producer."""

    __slots__ = ("floor", "heard_ms", "last", "old", "old_last", "young")

    def __init__(self) -> None:
        self.young: dict[bytes, Place] = {}
        self.old: dict[bytes, Place] = {}
        self.old_last = self.last = b""
        """The highest counts, in the older generation and at all."""
        self.floor = b""
        """Of what counts no higher nothing is known."""
        self.heard_ms = 0

    def __len__(self) -> int:
        return len(self.young) + len(self.old)


class Idempotence:
    """What the producers have sent lately."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, acknowledgements: Acknowledgements
    ) -> None:
        self.config = config
        """The settings in force: `Broker.configure` replaces them."""
        self.tail_offset = -1
        """From where in the log a start has to read it; -1 while nothing was sent once."""
        self._store = store
        self._acknowledgements = acknowledgements
        self._producers: dict[bytes, _Producer] = {}
        self._count = 0
        self._new: tuple[_Producer, bytes] | None = None
        self._turn: list[tuple[_Producer, bytes]] = []
        self._turn_ends: deque[int] = deque()
        """Ends of turns, of which the first is far enough from the end of the log to begin at."""

    def __len__(self) -> int:
        """How many messages are remembered."""
        return self._count

    # What handlers call.

    def find(self, unique_id: bytes) -> Place | None:
        """Return where a message is that was sent before; None when it is new: then `note` it.

        A `RequestError` when that cannot be told any more, or the id is none that counts.
        """
        producer = self._producers.get(unique_id[:-_NUMBER_SIZE])
        number = unique_id[-_NUMBER_SIZE:]
        if producer is None:
            producer = self._new_producer(unique_id)
        self._new = producer, number
        if number > producer.last:
            return None
        place = producer.young.get(number) or producer.old.get(number)
        if place is None and number <= producer.floor:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                "IDEMPOTENT: its producer has sent so much since that it cannot be told any more"
                " whether this message is stored",
            )
        return place

    def _new_producer(self, unique_id: bytes) -> _Producer:
        if not _ID_SIZE_MIN <= len(unique_id) <= _ID_SIZE_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"IDEMPOTENT: UNIQ_KEY has not {_ID_SIZE_MIN} to {_ID_SIZE_MAX} characters, of"
                f" which the last {_NUMBER_SIZE} count",
            )
        return self._begin(unique_id[:-_NUMBER_SIZE])

    def note(self, place: Place, now_ms: int) -> None:
        """Note where the message is put, with this turn, that was found to be new last."""
        turn = self._turn
        if not turn:
            self._acknowledgements.join(self)
            if self.tail_offset < 0:
                self.tail_offset = self._store.end_offset
        new = self._new
        assert new is not None
        turn.append(new)
        self._remember(new[0], new[1], place, now_ms)

    def _remember(self, producer: _Producer, number: bytes, place: Place, now_ms: int) -> None:
        young = producer.young
        young[number] = place
        producer.heard_ms = now_ms
        if number > producer.last:
            producer.last = number
        self._count += 1
        if len(young) >= self.config.idempotent_window_max:
            self._rotate(producer)

    def _begin(self, name: bytes) -> _Producer:
        if self._count >= self.config.idempotent_messages_max:
            self._shed()
        producer = self._producers[name] = _Producer()
        return producer

    def _rotate(self, producer: _Producer) -> None:
        """Forget the older generation of a producer."""
        self._count -= len(producer.old)
        if producer.old:
            producer.floor = producer.old_last
        producer.old, producer.old_last = producer.young, producer.last
        producer.young = {}
        if self._count >= self.config.idempotent_messages_max:
            self._shed()

    def _shed(self) -> None:
        """Forget those producers that have been silent for the longest."""
        goal = self.config.idempotent_messages_max * 9 // 10
        for name, producer in sorted(self._producers.items(), key=lambda each: each[1].heard_ms):
            if self._count <= goal:
                return
            self._forget(name, producer)

    def _forget(self, name: bytes, producer: _Producer) -> None:
        self._count -= len(producer)
        del self._producers[name]

    def expire(self, before_ms: int) -> None:
        """Forget the producers that have not been heard since."""
        for name, producer in tuple(self._producers.items()):
            if producer.heard_ms < before_ms:
                self._forget(name, producer)

    # The turn: see `acknowledgements.TurnPart`.

    def complete(self, now_ms: int) -> None:
        """Add nothing to the turn."""

    def written(self) -> None:
        """Take note that the turn is written."""
        self._turn = []

    def refused(self) -> None:
        """Forget the messages of a turn that is not written: they may be sent again."""
        for producer, number in self._turn:
            if producer.young.pop(number, None) or producer.old.pop(number, None):
                self._count -= 1
        self._turn = []

    # Over restarts.

    def recovered(self, message: StoredMessage) -> None:
        """Look at a record of the log's tail: whether it was sent once, and is the first one."""
        properties = message.properties_raw
        if properties.find(STORED) < 0:
            return
        unique_id = _find_unique_id(properties) or b""
        if not _ID_SIZE_MIN <= len(unique_id) <= _ID_SIZE_MAX:
            return
        producer = self._producers.get(unique_id[:-_NUMBER_SIZE])
        number = unique_id[-_NUMBER_SIZE:]
        # What was delayed, committed or sent back comes again with the same id.
        if producer is None:
            producer = self._begin(unique_id[:-_NUMBER_SIZE])
        elif number <= producer.floor or number in producer.young or number in producer.old:
            return
        queue_id = message.queue_id
        if message.topic_raw in _ASIDE:
            queue_id = int(_find_queue(properties) or 0)
        place = message.physical_offset, queue_id, message.queue_offset
        self._remember(producer, number, place, message.store_timestamp)

    def flush(self) -> int:
        """Return from where a start has to read the log, -1 while nothing was sent once."""
        if self.tail_offset < 0:
            return -1
        end, ends = self._store.end_offset, self._turn_ends
        if not ends or ends[-1] != end:
            ends.append(end)
        while len(ends) > 1 and ends[1] <= end - TAIL_SIZE:
            ends.popleft()
        self.tail_offset = max(self.tail_offset, ends[0] if end - ends[0] >= TAIL_SIZE else 0)
        return self.tail_offset
