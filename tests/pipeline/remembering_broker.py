"""A broker that rows are written to, with the real memory of what it was sent, and no network."""

from __future__ import annotations

import json
from contextlib import suppress
from struct import Struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from cometmq.broker.errors import RequestError
from cometmq.broker.idempotence import STORED, Idempotence
from cometmq.pipeline.cluster import GET_MAX_OFFSET
from cometmq.pipeline.errors import ConnectionLostError
from cometmq.pipeline.lanes import SEND_BATCH_MESSAGE, SEND_BATCH_ONCE, SEND_MESSAGE_V2
from cometmq.pipeline.messages import items_by_id, split_item
from cometmq.pipeline.stored import FIND_UNIQUE_KEYS
from cometmq.pipeline.wire import Answer
from cometmq.proto.codes import ResponseCode
from cometmq.store.messages.dispatch import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from cometmq.proto.message import StoredMessage

TOPIC, SCHEDULED = b"copy", SCHEDULE_TOPIC.encode()
FRAME: Final = Struct(">I")
WINDOW: Final = 256
"""How many messages of one producer it remembers at least."""
SUCCESS, FAILED, BUSY, NO_PERMISSION = 0, 1, 2, 16


class Record(NamedTuple):
    """A message in a broker's log, as far as its memory looks at it."""

    physical_offset: int
    topic_raw: bytes
    queue_id: int
    properties_raw: bytes
    unique_id: str
    body: bytes
    queue_offset: int = 0


class Asked(NamedTuple):
    """A request that a broker has not looked at yet."""

    number: int
    code: int
    fields: Mapping[str, str]
    body: bytes


class Broker:
    """A broker with two queues of one topic."""

    def __init__(self, random: Random, trouble: float, kind: str) -> None:
        self.random = random
        self.is_ours = kind != "Apache's"
        self._messages_max = 800 if kind == "once" else 10_000
        self.life = 0
        """The number of its starts."""
        self.untold = 0
        """How often it could not tell whether a message is stored."""
        self.forgotten: set[bytes] = set()
        """Bodies of what it took for new if it were sent again."""
        self.late: list[Asked] = []
        """What came over connections that are no more, and what it looks at later."""
        self.trouble = trouble
        self._keys_max = random.choice((1, 3, 128))
        self._log: list[Record] = []
        self._waiting: list[Record] = []
        """The delayed messages that are to be delivered."""
        self._recreated_at = 0
        self._store = SimpleNamespace(
            first_offset=0, deletions=SimpleNamespace(offsets=dict[bytes, int]())
        )
        self._noted_tail = -1
        self._memory = self._remembering()

    def _remembering(self) -> Idempotence:
        config = SimpleNamespace(
            idempotent_messages_max=self._messages_max, idempotent_window_max=WINDOW
        )
        self._end_turn()
        turns = SimpleNamespace(join=id)  # Each request is a turn.
        return Idempotence(*cast("Any", (config, self._store, turns, lambda: 0)))

    def happens(self) -> bool:
        """Whether something goes wrong now."""
        return self.random.random() < self.trouble

    def stored(self) -> list[Record]:
        """Return the messages of the topic, and those that are to be delivered."""
        there = [each for each in self._log if each.topic_raw == TOPIC]
        return [
            each for each in there if each.physical_offset >= self._recreated_at
        ] + self._waiting

    def restart(self) -> None:
        """Be killed, and come back with what the end of the log says."""
        self.life += 1
        self.late.clear()
        self._memory = self._remembering()
        tail = self._memory.tail_offset = self._noted_tail
        begin = max(tail, 0)
        for record in self._log[begin:]:
            self._memory.recovered(cast("StoredMessage", record))
        self._memory.recovered_from(begin)
        if len(self._memory) and tail < 0:
            self._memory.tail_offset = begin
        for record in self._log:
            with suppress(RequestError):  # It knows that it does not know.
                if self._memory.find(record.unique_id.encode(), TOPIC.decode())[2] is None:
                    self.forgotten.add(record.body)
        self._noted_tail = self._memory.flush()

    def forget(self) -> None:
        """Let so much time pass that it remembers nobody."""
        self._look_at_late()
        self._memory.expire(1)

    def recreate(self) -> None:
        """Have the topic deleted and created again."""
        self._look_at_late()
        self._recreated_at = self._store.deletions.offsets[TOPIC] = len(self._log)
        self._waiting.clear()

    def _look_at_late(self) -> None:
        while self.late:
            self.answer(self.late.pop(0))

    def answer(self, asked: Asked) -> Answer:
        """Answer a request."""
        if self.late and self.random.random() < 0.5:
            self.answer(self.late.pop(0))
        if self.random.random() < 0.5:
            self._noted_tail = self._memory.flush()
        if self._waiting and self.random.random() < 0.1:
            self._put(self._waiting.pop(0))
            self._end_turn()
        if self.happens():
            code = NO_PERMISSION if self.random.random() < 0.1 else BUSY
            return Answer(asked.number, code, "refused", {}, b"")
        if asked.code == FIND_UNIQUE_KEYS:
            return self._find(asked)
        if asked.code == GET_MAX_OFFSET:
            return Answer(asked.number, SUCCESS, "", {}, b"")
        first = len(self._log)
        try:
            said = self._send(asked)
        except RequestError as error:
            self.untold += error.code == ResponseCode.ILLEGAL_OPERATION
            return Answer(asked.number, int(error.code), str(error), {}, b"")
        if self.happens():
            self._memory.refused()
            del self._log[first:]
            return Answer(asked.number, BUSY, "a full disk", {}, b"")
        self._end_turn()
        self._memory.written()
        added = [each for each in self._log[first:] if each.topic_raw != TOPIC]
        self._waiting += [each._replace(topic_raw=TOPIC) for each in added]
        return Answer(asked.number, SUCCESS, "", said, b"")

    def _find(self, asked: Asked) -> Answer:
        keys = json.loads(asked.body)["keys"]
        if len(keys) > self._keys_max:
            return Answer(asked.number, FAILED, "too many", {}, b"")
        there = {each.unique_id for each in self.stored()}
        there -= {each.unique_id for each in self._waiting}
        found = [{"key": each, "storeTimestamp": 1 << 50} for each in keys if each in there]
        return Answer(asked.number, SUCCESS, "", {}, json.dumps({"messages": found}).encode())

    def _send(self, asked: Asked) -> dict[str, str]:
        if asked.code == SEND_MESSAGE_V2:
            return self._send_delayed(asked)
        items = [
            (unique_id.encode(), split_item(raw)[1])
            for unique_id, raw in items_by_id(asked.body).items()
        ]
        if asked.code == SEND_BATCH_MESSAGE:
            for unique_id, body in items:
                self._add(TOPIC, asked, unique_id, b"", body)
            return {}
        first = len(self._log)
        ids = [unique_id for unique_id, _ in items]
        is_not_stored = "NOT_STORED" in asked.fields["i"]
        found = self._memory.find_all(ids, TOPIC.decode(), else_new=is_not_stored)
        mark = b"" if is_not_stored else STORED
        for (unique_id, body), producer in zip(items, found[0], strict=True):
            if producer is not None:
                self._add(TOPIC, asked, unique_id, mark, body)
        if new := range(first, len(self._log)):
            self._memory.note_all(found, new, 0, 0)
        return {"storedCount": str(len(new)), "count": str(len(items))}

    def _send_delayed(self, asked: Asked) -> dict[str, str]:
        properties = asked.fields["i"].encode()
        unique_id = properties.removeprefix(b"UNIQ_KEY\x01").partition(b"\x02")[0]
        if b"\x02IDEMPOTENT\x01" not in properties:
            self._add(SCHEDULED, asked, unique_id, b"", asked.body)
            return {}
        found = self._memory.find(unique_id, TOPIC.decode())
        if found[2] is None:
            self._memory.note(found, (len(self._log), 0, 0))
            self._add(SCHEDULED, asked, unique_id, STORED, asked.body)
        return {}

    def _add(self, topic: bytes, asked: Asked, unique_id: bytes, mark: bytes, body: bytes) -> None:
        where = b"REAL_TOPIC\x01%b\x02REAL_QID\x010\x02" % TOPIC if topic == SCHEDULED else b""
        properties = b"UNIQ_KEY\x01%b\x02%b%b" % (unique_id, mark, where)
        self._put(Record(0, topic, int(asked.fields["e"]), properties, unique_id.decode(), body))

    def _end_turn(self) -> None:
        self._store.end_offset = self._store.synced_offset = len(self._log)

    def _put(self, record: Record) -> None:
        self._log.append(record._replace(physical_offset=len(self._log)))


class Peer:
    """A connection, on which requests are answered one after the other."""

    is_known = False

    def __init__(self, broker: Broker, address: str) -> None:
        self.address = address
        self.speaks_cometmq = broker.is_ours
        self._broker = broker
        self._life = broker.life
        self._framed: list[Asked] = []
        self._there: list[Asked] = []
        """Requests that the broker has not looked at yet."""

    def number(self) -> int:
        """Return the number of the next request."""
        self._framed.append(Asked(len(self._framed), 0, {}, b""))
        return len(self._framed) - 1

    def frame(self, code: int, fields: Mapping[str, str], body: bytes, number: int) -> bytes:
        """Encode a request."""
        self._framed[number] = Asked(number, code, fields, body)
        return FRAME.pack(number)

    def write(self, data: bytes) -> None:
        """Send requests; if the connection breaks, the broker has some of them."""
        self._require_intact()
        numbers: list[int] = [number for (number,) in FRAME.iter_unpack(data)]
        sent = [self._framed[number] for number in numbers]
        if self._broker.happens():
            self._there += sent[: self._broker.random.randrange(len(sent) + 1)]
            raise ConnectionLostError("broken")
        self._there += sent

    def receive(self) -> Answer:
        """Return an answer; if the connection breaks, that may be lost."""
        self._require_intact()
        assert self._there, "nothing was sent"
        if self._broker.happens():
            raise ConnectionLostError("broken")
        answer = self._broker.answer(self._there.pop(0))
        if self._broker.happens():
            if self._broker.happens():
                self._broker.restart()
            raise ConnectionLostError("broken")
        self.is_known = True
        return answer

    def _require_intact(self) -> None:
        if self._life != self._broker.life:
            self._there.clear()
            raise ConnectionLostError("the broker was killed")

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> Answer:
        """Send a request and wait for the answer."""
        self.write(self.frame(code, fields, body, self.number()))
        return self.receive()

    def close(self) -> None:
        """End it; the broker may still look at what is under way."""
        if self._life == self._broker.life:
            for each in self._there[: self._broker.random.randrange(len(self._there) + 1)]:
                if each.code == SEND_BATCH_ONCE or "IDEMPOTENT" in each.fields.get("i", ""):
                    self._broker.late.append(each)
                else:
                    self._broker.answer(each)
        self._there.clear()
