"""Sends that are repeated because their answer was lost: each message is stored once.

How it works. A producer asks for this with the property `IDEMPOTENT`, and numbers its messages by
their unique ids: the last 12 characters increase from message to message, and those before them
identify the producer. The places of each such producer's last messages are remembered. A message
among them is answered with its place instead of being stored again. One that is older than all
remembered ones is refused, because nobody can tell whether it is stored.

A start rebuilds this memory from the log. A stored message has the property `SENT_ONCE` in place of
`IDEMPOTENT`, so that a client that forwards a received message does not repeat the request of its
producer. A start uses the last `TAIL_SIZE` bytes of the log, and whatever else it has to read.

When a topic is deleted, the messages sent to it are forgotten: a message that is in the log before
the store's mark of the deletion is new when it comes again, even after a restart.

Each producer has two generations of places, so that they need not be removed one by one: when the
younger generation is full, the older one is forgotten. The producers are kept in the order in which
they were last heard, so that the ones silent for longest are found without a search.
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
"""The names of both properties."""
TAIL_SIZE: Final = 16 << 20
"""Bytes at the end of the log, at least, that a start reads for what was sent."""
_BEGINS_A_TAIL: Final = 16
"""Places noted in a tail of this size at which the next start may begin to read."""
EXPIRED_MAX: Final = 10_000
"""Messages forgotten at a time because their producers are silent: some 10 ms."""

_NUMBER_SIZE: Final = 12
_ID_SIZE_MIN: Final = 32
"""The size for a producer with an IPv4 address; with an IPv6 address it is 56."""
_ID_SIZE_MAX: Final = 64
_ASIDE: Final = (SCHEDULE_TOPIC.encode(), HALF_TOPIC.encode())
_find_unique_id: Final = property_finder(b"UNIQ_KEY")
_find_queue: Final = property_finder(b"REAL_QID")
_find_topic: Final = property_finder(b"REAL_TOPIC")

# Where a message is: its physical offset, its queue id, its queue offset. A plain tuple, because
# one is made for each send.
Place: TypeAlias = "tuple[int, int, int]"

# The result of `find`: the producer, the number of its message, and its place, None if it is new.
Found: TypeAlias = "tuple[_Producer, bytes, Place | None]"

# The same for a batch: the producer of each message, None if it came before; and its number. These
# are two lists, because the garbage collector would look at a tuple for each message.
FoundAll: TypeAlias = "tuple[list[_Producer | None], list[bytes]]"


class _Producer:
    """The remembered messages of one producer."""

    __slots__ = ("floor", "heard_ms", "last", "name", "old", "old_last", "young")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.young: dict[bytes, Place] = {}
        self.old: dict[bytes, Place] = {}
        self.old_last = self.last = b""
        """The highest number in the older generation, and of all."""
        self.floor = b""
        """Nothing is known of messages with this number or a lower one."""
        self.heard_ms = -1

    def __len__(self) -> int:
        return len(self.young) + len(self.old)


def _new_producer(unique_id: bytes) -> _Producer:
    if not _ID_SIZE_MIN <= len(unique_id) <= _ID_SIZE_MAX:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"IDEMPOTENT: UNIQ_KEY must have {_ID_SIZE_MIN} to {_ID_SIZE_MAX} characters, of"
            f" which the last {_NUMBER_SIZE} count",
        )
    return _Producer(unique_id[:-_NUMBER_SIZE])


def _below(number: bytes) -> bytes:
    """Return the number before this one; zero bytes are the smallest."""
    return max(int.from_bytes(number, "big") - 1, 0).to_bytes(_NUMBER_SIZE, "big")


class Idempotence:
    """The messages that producers have sent lately."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        acknowledgements: Acknowledgements,
        alive_ms: Callable[[], int],
    ) -> None:
        self.configure(config)
        self.tail_offset = -1
        """Where in the log a start has to begin to read; -1 while nothing was sent once."""
        self._store = store
        self._acknowledgements = acknowledgements
        self._alive_ms = alive_ms
        self._heard_ms = alive_ms()
        """When this turn began. Messages found by a start count as heard at the start."""
        self._producers: OrderedDict[bytes, _Producer] = OrderedDict()
        self._count = 0
        self._turn: list[Found] = []
        self._turn_batches: list[tuple[list[_Producer], list[bytes]]] = []
        self._begins: deque[int] = deque()
        """Starts of records; the first one is far enough from the end of the log for a start to
        begin reading there."""

    def __len__(self) -> int:
        """Return how many messages are remembered."""
        return self._count

    def configure(self, config: BrokerConfig) -> None:
        """Remember as much as these settings say from now on."""
        self._messages_max = config.idempotent_messages_max
        # A single producer must have room for both its generations.
        self._window_max = max(min(config.idempotent_window_max, self._messages_max // 2), 1)

    # Called by handlers.

    def find(self, unique_id: bytes, topic: str, *, else_new: bool = False) -> Found:
        """Look for a message that was sent before. If it is new, the caller puts and `note`s it.

        A message sent to the topic before its deletion counts as new. Raises a `RequestError` if
        its id carries no number or, unless it is `else_new`, if it can no longer be told whether
        the message is new.
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
        elif place is None and number <= producer.floor and not else_new:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                "IDEMPOTENT: its producer has sent so much since that nobody can tell any more"
                " whether this message is stored",
            )
        return producer, number, place

    def find_all(
        self, unique_ids: Sequence[bytes], topic: str, *, else_new: bool = False
    ) -> FoundAll:
        """Look for the messages of a batch, which may also repeat each other.

        The caller puts the new ones, in this order, and passes them to `note_all`.
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
            elif unique_id in seen or self.find(unique_id, topic, else_new=else_new)[2] is not None:
                producers.append(None)
            else:
                producers.append(producer)
            seen.add(unique_id)
        return producers, numbers

    def note_all(
        self, found: FoundAll, physical_offsets: Sequence[int], queue_id: int, first: int
    ) -> None:
        """Note the places of the new messages in this turn: in a queue, from `first` on."""
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
                producer.heard_ms = -1  # It is new, or had to make room for another one.
            room = min(count, at + self._window_max - len(producer.young))
            end = at + 1
            while end < room and producers[end] is producer:
                end += 1
            producer.young.update(zip(numbers[at:end], places[at:end], strict=True))
            self._remembered(producer, max(numbers[at:end]), end - at)
            at = end

    def note(self, new: Found, place: Place) -> None:
        """Note the place, in this turn, of a message that `find` has just found to be new."""
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
        """Count messages that were just added to the places of a producer."""
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
        """Make this the most recently heard producer."""
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
        """Make room: forget the producers silent for longest, but not the one just heard."""
        self._hear(heard)
        while self._count > self._messages_max and len(self._producers) > 1:
            self._forget_first()

    def _forget_first(self) -> int:
        """Forget the producer silent for longest; return how many messages it had."""
        _, producer = self._producers.popitem(last=False)
        count = len(producer)
        self._count -= count
        # Some of its messages may be in the turn: `refused` must not find them.
        producer.young, producer.old = {}, {}
        return count

    def _forget_one(self, producer: _Producer, number: bytes) -> None:
        for places in (producer.young, producer.old):
            self._count -= places.pop(number, None) is not None

    def expire(self, before_ms: int) -> None:
        """Forget the producers not heard since then, `EXPIRED_MAX` messages at a time."""
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
        """Look at a record of the log's tail, and remember it if it is the first with its id."""
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
        # A delayed, committed or sent-back message is in the log again with the same id.
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
        """Note that a start has read the log from `begin` on: it knows of nothing before that.

        If the tail is shorter than `TAIL_SIZE`, nothing was sent once before it: `flush` moves the
        tail's begin only once there is more than that after it.
        """
        store, tail = self._store, self.tail_offset
        if begin <= 0 or (tail >= store.first_offset and store.end_offset - tail < TAIL_SIZE):
            return
        for producer in self._producers.values():
            if not producer.floor:
                producer.floor = _below(min([*producer.young, *producer.old]))

    def flush(self) -> int:
        """Return where a start has to begin to read the log; -1 while nothing was sent once.

        The tail is measured from the synced end. A power cut may take the rest, and a tail that it
        left shorter would look as if it had never moved.
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
