"""Sends that are repeated because their answer was lost: each message is stored once.

How it works. A producer that wants it says so (property `IDEMPOTENT`), and makes its unique ids so
that they count: the last 12 characters grow from message to message, those in front of them are its
own. Of each such producer the places of its last messages are remembered; a message that is among
them is answered with its place instead of being stored. One that is older than all that is
remembered is refused, for nobody can tell.

What is remembered is rebuilt from the log: a stored message has the property `SENT_ONCE` instead,
so that who sends a message on that it has received does not repeat what its producer said. A start
reads the last `TAIL_SIZE` bytes of the log, and what more it reads anyway.

A topic that is deleted takes what was sent to it along: a message that stood there in front of the
store's mark of the deletion is new when it comes again, also behind a start.

Each producer has two generations of places, so that nothing is removed one by one: when the younger
one is full, the older one is forgotten. The producers stand in the order in which they were heard
last, so that those who have been silent for the longest are found without a look at the others.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import repeat
from typing import TYPE_CHECKING, Final, TypeAlias

from cometmq.broker.errors import RequestError
from cometmq.broker.transaction_records import HALF_TOPIC
from cometmq.proto.codes import ResponseCode
from cometmq.proto.properties import property_finder
from cometmq.store.messages.dispatch import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.broker.acknowledgements import Acknowledgements
    from cometmq.broker.config import BrokerConfig
    from cometmq.proto.message import StoredMessage
    from cometmq.store.message_store import MessageStore

ASKED: Final = b"IDEMPOTENT\x01"
STORED: Final = b"SENT_ONCE\x011\x02"
MARKS: Final = (b"IDEMPOTENT", b"SENT_ONCE")
"""The names of both."""
TAIL_SIZE: Final = 16 << 20
"""Bytes of the log, at least, in which a start finds what was sent."""
_BEGINS_A_TAIL: Final = 16
"""Places in so much of the log at which the next start may begin, as this one notes them."""
EXPIRED_MAX: Final = 10_000
"""Messages that are forgotten at a time, because their producers are silent: some 10 ms."""

_NUMBER_SIZE: Final = 12
_ID_SIZE_MIN: Final = 32
"""Of a producer with an IPv4 address; with an IPv6 address it is 56."""
_ID_SIZE_MAX: Final = 64
_ASIDE: Final = (SCHEDULE_TOPIC.encode(), HALF_TOPIC.encode())
_find_unique_id: Final = property_finder(b"UNIQ_KEY")
_find_queue: Final = property_finder(b"REAL_QID")
_find_topic: Final = property_finder(b"REAL_TOPIC")

# Where a message is: its physical offset, its queue, its offset in there. A plain tuple, made for
# each send.
Place: TypeAlias = "tuple[int, int, int]"

# What `find` found: the producer, the number of its message, and where that is; None if it is new.
Found: TypeAlias = "tuple[_Producer, bytes, Place | None]"

# The same of many that come together: the producer of each, None if it came before; its number.
# Two lists, and no tuple for each, which the garbage collection would look at.
FoundAll: TypeAlias = "tuple[list[_Producer | None], list[bytes]]"


class _Producer:
    """What is remembered of one producer."""

    __slots__ = ("floor", "heard_ms", "last", "name", "old", "old_last", "young")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.young: dict[bytes, Place] = {}
        self.old: dict[bytes, Place] = {}
        self.old_last = self.last = b""
        """The highest counts, in the older generation and at all."""
        self.floor = b""
        """Of what counts no higher nothing is known."""
        self.heard_ms = -1

    def __len__(self) -> int:
        return len(self.young) + len(self.old)


def _new_producer(unique_id: bytes) -> _Producer:
    if not _ID_SIZE_MIN <= len(unique_id) <= _ID_SIZE_MAX:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"IDEMPOTENT: UNIQ_KEY has not {_ID_SIZE_MIN} to {_ID_SIZE_MAX} characters, of"
            f" which the last {_NUMBER_SIZE} count",
        )
    return _Producer(unique_id[:-_NUMBER_SIZE])


def _below(number: bytes) -> bytes:
    """Return the number in front of this one; there are no smaller ones than zero bytes."""
    return max(int.from_bytes(number, "big") - 1, 0).to_bytes(_NUMBER_SIZE, "big")


class Idempotence:
    """What the producers have sent lately."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        acknowledgements: Acknowledgements,
        alive_ms: Callable[[], int],
    ) -> None:
        self.configure(config)
        self.tail_offset = -1
        """From where in the log a start has to read it; -1 while nothing was sent once."""
        self._store = store
        self._acknowledgements = acknowledgements
        self._alive_ms = alive_ms
        self._heard_ms = alive_ms()
        """When this turn began. What a start finds counts as heard then."""
        self._producers: OrderedDict[bytes, _Producer] = OrderedDict()
        self._count = 0
        self._turn: list[Found] = []
        self._turn_batches: list[tuple[list[_Producer], list[bytes]]] = []
        self._begins: deque[int] = deque()
        """Where records begin, of which the first is far enough from the end of the log for a start
        to begin at."""

    def __len__(self) -> int:
        """How many messages are remembered."""
        return self._count

    def configure(self, config: BrokerConfig) -> None:
        """Remember as much as these settings say from now on."""
        self._messages_max = config.idempotent_messages_max
        # Of a producer that is alone there is room for both generations.
        self._window_max = max(min(config.idempotent_window_max, self._messages_max // 2), 1)

    # What handlers call.

    def find(self, unique_id: bytes, topic: str) -> Found:
        """Look for a message that was sent before. Who then puts it, as it is new, must `note` it.

        What was sent to the topic before that was deleted is new.
        A `RequestError` when that cannot be told any more, or the id is none that counts.
        """
        producer = self._producers.get(unique_id[:-_NUMBER_SIZE])
        number = unique_id[-_NUMBER_SIZE:]
        if producer is None:
            return _new_producer(unique_id), number, None
        if number > producer.last:
            return producer, number, None
        place = producer.young.get(number) or producer.old.get(number)
        if place is not None and place[0] < self._store.deletions.offsets.get(topic.encode(), 0):
            self._forget_one(producer, number)
            place = None
        elif place is None and number <= producer.floor:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                "IDEMPOTENT: its producer has sent so much since that it cannot be told any more"
                " whether this message is stored",
            )
        return producer, number, place

    def find_all(self, unique_ids: Sequence[bytes], topic: str) -> FoundAll:
        """Look for messages that come together, each of which may also come twice among them.

        Who then puts those that are new, in this order, must `note_all` them.
        """
        producers: list[_Producer | None] = []
        numbers: list[bytes] = []
        highest: dict[bytes, tuple[_Producer, bytes]] = {}
        seen: set[bytes] = set()
        name, producer, last = b"", _Producer(b""), b""
        for unique_id in unique_ids:
            number = unique_id[-_NUMBER_SIZE:]
            if unique_id[:-_NUMBER_SIZE] != name or not name:
                if name:
                    highest[name] = producer, last
                name = unique_id[:-_NUMBER_SIZE]
                if name in highest:
                    producer, last = highest[name]
                else:
                    known = self._producers.get(name)
                    producer = _new_producer(unique_id) if known is None else known
                    last = producer.last
            numbers.append(number)
            if number > last:
                last = number
                producers.append(producer)
            elif unique_id in seen or self.find(unique_id, topic)[2] is not None:
                producers.append(None)
            else:
                producers.append(producer)
            seen.add(unique_id)
        return producers, numbers

    def note_all(
        self, found: FoundAll, physical_offsets: Sequence[int], queue_id: int, first: int
    ) -> None:
        """Note where the new ones are put, with this turn, in a queue from `first` on."""
        self._begin_turn()
        producers = [each for each in found[0] if each is not None]
        numbers = found[1]
        if len(producers) < len(numbers):
            pairs = zip(*found, strict=True)
            numbers = [number for each, number in pairs if each is not None]
        self._turn_batches.append((producers, numbers))
        ends = range(first, first + len(numbers))
        places = list(zip(physical_offsets, repeat(queue_id), ends, strict=False))
        at, count = 0, len(numbers)
        while at < count:
            producer = producers[at]
            if self._producers.get(producer.name) is not producer:
                producer.heard_ms = -1  # It is not known yet, or had to make room for another.
            room = min(count, at + self._window_max - len(producer.young))
            end = at + 1
            while end < room and producers[end] is producer:
                end += 1
            producer.young.update(zip(numbers[at:end], places[at:end], strict=True))
            self._remembered(producer, max(numbers[at:end]), end - at)
            at = end

    def note(self, new: Found, place: Place) -> None:
        """Note where a message is put, with this turn, that `find` just found to be new."""
        turn = self._turn
        if not turn:
            self._begin_turn()
        turn.append(new)
        self._remember(new[0], new[1], place)

    def _begin_turn(self) -> None:
        if not self._turn and not self._turn_batches:
            self._heard_ms = self._alive_ms()
            self._acknowledgements.join(self)
            if self.tail_offset < 0:
                self.tail_offset = self._store.end_offset

    def _remember(self, producer: _Producer, number: bytes, place: Place) -> None:
        young = producer.young
        young[number] = place
        if producer.heard_ms != self._heard_ms:
            self._hear(producer)
        if number > producer.last:
            producer.last = number
        self._count += 1
        if len(young) >= self._window_max:
            self._rotate(producer)
        if self._count > self._messages_max:
            self._shed(producer)

    def _remembered(self, producer: _Producer, highest: bytes, count: int) -> None:
        """Take note of messages that were just put among the places of a producer."""
        if producer.heard_ms != self._heard_ms:
            self._hear(producer)
        if highest > producer.last:
            producer.last = highest
        self._count += count
        if len(producer.young) >= self._window_max:
            self._rotate(producer)
        if self._count > self._messages_max:
            self._shed(producer)

    def _hear(self, producer: _Producer) -> None:
        """Make this the producer that was heard last."""
        producer.heard_ms = self._heard_ms
        self._producers[producer.name] = producer
        self._producers.move_to_end(producer.name)

    def _rotate(self, producer: _Producer) -> None:
        """Forget the older generation of a producer."""
        self._count -= len(producer.old)
        if producer.old:
            producer.floor = producer.old_last
        producer.old, producer.old_last = producer.young, producer.last
        producer.young = {}

    def _shed(self, heard: _Producer) -> None:
        """Make room by forgetting who has been silent for the longest, but not who is heard."""
        self._hear(heard)
        while self._count > self._messages_max and len(self._producers) > 1:
            self._forget_first()

    def _forget_first(self) -> int:
        """Forget who has been silent for the longest; return how many messages that were."""
        _, producer = self._producers.popitem(last=False)
        count = len(producer)
        self._count -= count
        # Messages of it may be in the turn: `refused` must not find them.
        producer.young, producer.old = {}, {}
        return count

    def _forget_one(self, producer: _Producer, number: bytes) -> None:
        for places in (producer.young, producer.old):
            self._count -= places.pop(number, None) is not None

    def expire(self, before_ms: int) -> None:
        """Forget the producers that have not been heard since, `EXPIRED_MAX` messages at a time."""
        producers, count = self._producers, 0
        while producers and count < EXPIRED_MAX:
            if next(iter(producers.values())).heard_ms >= before_ms:
                return
            count += self._forget_first()

    # The turn: see `acknowledgements.TurnPart`.

    def complete(self, now_ms: int) -> None:
        """Add nothing to the turn."""

    def written(self) -> None:
        """Take note that the turn is written."""
        self._turn = []
        self._turn_batches = []

    def refused(self) -> None:
        """Forget the messages of a turn that is not written: they may be sent again."""
        producers = self._producers
        one_by_one = [(producer, number) for producer, number, _ in self._turn]
        for batch in self._turn_batches:
            one_by_one += zip(*batch, strict=True)
        for producer, number in one_by_one:
            if producer.young.pop(number, None) or producer.old.pop(number, None):
                self._count -= 1
                if not len(producer) and not producer.floor:
                    del producers[producer.name]
        self._turn = []
        self._turn_batches = []

    # Over restarts.

    def recovered(self, message: StoredMessage) -> None:
        """Look at a record of the log's tail: whether it was sent once, and is the first one."""
        begins, physical_offset = self._begins, message.physical_offset
        if not begins or physical_offset - begins[-1] >= TAIL_SIZE // _BEGINS_A_TAIL:
            begins.append(physical_offset)
        properties = message.properties_raw
        if properties.find(STORED) < 0:
            return
        unique_id = _find_unique_id(properties) or b""
        if not _ID_SIZE_MIN <= len(unique_id) <= _ID_SIZE_MAX:
            return
        is_aside = message.topic_raw in _ASIDE
        topic = (_find_topic(properties) or b"") if is_aside else message.topic_raw
        if physical_offset < self._store.deletions.offsets.get(topic, 0):
            return
        producer = self._producers.get(unique_id[:-_NUMBER_SIZE])
        number = unique_id[-_NUMBER_SIZE:]
        # What was delayed, committed or sent back comes again with the same id.
        if producer is None:
            producer = _Producer(unique_id[:-_NUMBER_SIZE])
        elif number <= producer.floor or number in producer.young or number in producer.old:
            return
        queue_id = message.queue_id
        if is_aside:
            queue_id = int(_find_queue(properties) or 0)
        place = physical_offset, queue_id, message.queue_offset
        self._remember(producer, number, place)

    def recovered_from(self, begin: int) -> None:
        """Take note that a start has read the log from here: what is in front, it cannot tell.

        Unless this was not sent once: see `flush`, which moves the tail's begin only when there is
        more than the tail behind it.
        """
        store, tail = self._store, self.tail_offset
        if begin <= 0 or (tail >= store.first_offset and store.end_offset - tail < TAIL_SIZE):
            return
        for producer in self._producers.values():
            if not producer.floor:
                producer.floor = _below(min([*producer.young, *producer.old]))

    def flush(self) -> int:
        """Return from where a start has to read the log, -1 while nothing was sent once.

        Counted from what is synced: a power cut may take the rest, and a tail that is left shorter
        looks as if it had never moved.
        """
        if self.tail_offset < 0:
            return -1
        end, begins = self._store.end_offset, self._begins
        if not begins or begins[-1] != end:
            begins.append(end)
        move_to = self._store.synced_offset - TAIL_SIZE
        while len(begins) > 1 and begins[1] <= move_to:
            begins.popleft()
        self.tail_offset = max(self.tail_offset, begins[0] if begins[0] <= move_to else 0)
        return self.tail_offset
