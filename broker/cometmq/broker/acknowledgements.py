"""Sends that wait for what was promised: for the write of their turn, for the disk, and for the
file and the route of their topic.

How it works. Handlers add the sends of a turn; `commit` writes the turn and queues its sends as a
group. A group is answered once the log is synced up to its end (with async flush: at once) and the
topic table, to which the group may have added, is saved. Groups are answered in order, so only the
head of the queue is looked at. A send that created its topic waits on, by itself, until the name
servers know the topic: a consumer that is started upon its answer asks for the route once, and not
again for half a minute.

Nearly all sends are answered with a frame that is already encoded. These frames are kept by
connection, so that each costs only a place in a list, and a turn's frames leave with one call.

If the write is refused, exactly the sends of that turn are refused. If a sync fails, no further
send is reported safe: all waiting sends are refused, and the process has to stop. What is refused
then is written, and the next start may find it, so these refusals say `mayBeStored`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from msgspec.structs import replace

from cometmq.broker.refusals import put_refusal
from cometmq.proto.capture import decode_frame
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import ReceivedFields
from cometmq.store.config import Flush
from cometmq.store.errors import PutRefusedError, SyncFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.saved_table import SavedTable
    from cometmq.broker.traffic import Traffic
    from cometmq.net import Peer
    from cometmq.proto.command import Command
    from cometmq.store.message_store import MessageStore

# The peer that asked, its request, and the answer on success; None if nobody waits for one.
Sent: TypeAlias = "tuple[Peer, Command, Command | None]"

# The frames of answers to single messages (310) and to ends of transactions (37), by peer.
Frames: TypeAlias = "dict[Peer, list[bytes]]"

TELLING_PATIENCE_MS: Final = 1_000
"""Producers wait 3 s for an answer; a name server that hangs must not make them time out."""

_SEND_CODE: Final = int(RequestCode.SEND_MESSAGE_V2)
_END_CODE: Final = int(RequestCode.END_TRANSACTION)
_TIMEOUT: Final = int(ResponseCode.FLUSH_DISK_TIMEOUT)


class TurnPart(Protocol):
    """A participant in a turn besides its sends."""

    def complete(self, now_ms: int) -> None:
        """Put this part's records into the turn; a `PutRefusedError` refuses the whole turn."""

    def written(self) -> None:
        """Take note that the turn is written."""

    def refused(self) -> None:
        """Take note that nothing of the turn is written."""


class _Group(NamedTuple):
    end: int
    """The end of the log after these sends."""
    topics_version: int
    """The version of the topic table when they were written."""
    since_ms: int
    since_ns: int
    """When the first of them was taken, by the clock of `Traffic`."""
    sends: list[Sent]
    frames: Frames

    def __len__(self) -> int:
        return len(self.sends) + sum(map(len, self.frames.values()))


class _Untold(NamedTuple):
    version: int
    """A version of the topic table: name servers that know it know the send's topic."""
    deadline_ms: int
    peer: Peer
    request: Command
    response: Command


class Acknowledgements:
    """All sends that have not been answered yet."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: SavedTable,
        traffic: Traffic,
        *,
        now_ms: Callable[[], int],
        elapsed_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._topics = topics
        self._traffic = traffic
        self._clock_ns = traffic.clock_ns
        self._since_ns = 0
        self._now_ms = now_ms
        self._elapsed_ms = elapsed_ms
        self.config = config
        """The settings in force: `Broker.configure` replaces them."""
        self._is_sync = config.store.flush is Flush.SYNC
        self._turn: list[Sent] = []
        self._hasty: list[tuple[Peer, Command, Command]] = []
        self._parts: list[TurnPart] = []
        self.frames: Frames = defaultdict(list)
        """The frames of this turn: a common send adds its answer here, after `begin`."""
        self._groups: deque[_Group] = deque()
        self._late = 0  # groups at the head that have been told of the timeout
        self._makers: list[tuple[int, Command]] = []
        """Sends that created topics, each with the table version that name servers must learn."""
        self._untold: list[_Untold] = []
        self._told_version = -1
        self.turn_ms = 0
        """The store time of this turn's sends; 0 until `begin`. The clock is read once a turn."""

    def begin(self) -> int:
        """Begin a turn with its first send, and return `turn_ms`."""
        self._since_ns = self._clock_ns()
        self.turn_ms = self._now_ms()
        return self.turn_ms

    def add(self, peer: Peer, request: Command, response: Command | None, waits: bool) -> None:
        """Add a send to this turn; unless it `waits`, it is answered as soon as it is written."""
        if not self.turn_ms:
            self.begin()
        if not waits and response is not None:
            self._hasty.append((peer, request, response))
        else:
            self._turn.append((peer, request, response))

    def made_topic(self, request: Command) -> None:
        """Note that a send of this turn created its topic."""
        if self._topics.version > self._told_version:
            self._makers.append((self._topics.version, request))

    def told(self, version: int) -> None:
        """Note up to which version of the topic table the name servers have been told."""
        self._told_version = version
        self._makers = [each for each in self._makers if each[0] > version]
        untold, self._untold = self._untold, []
        for each in untold:
            if each.version <= version:
                each.peer.answer(each.request, each.response)
            else:
                self._untold.append(each)

    def join(self, part: TurnPart) -> None:
        """Let a part take part in this turn; joining twice counts once."""
        if part not in self._parts:
            self._parts.append(part)

    def oldest_ms(self, elapsed_ms: int) -> int:
        """Return how long the oldest waiting group has waited."""
        return elapsed_ms - self._groups[0].since_ms if self._groups else 0

    def __len__(self) -> int:
        return sum(map(len, self._groups)) + len(self._untold)

    def commit(self) -> None:
        """End the turn: write it, and answer the sends that need not wait."""
        now_ms, self.turn_ms = self.turn_ms, 0
        sends, hasty, frames, parts = self._turn, self._hasty, self.frames, self._parts
        if not (sends or hasty or frames or parts):
            return
        self._turn, self._hasty, self.frames = [], [], defaultdict(list)
        try:
            end = self._commit(parts, now_ms) if parts else self._store.commit()
        except PutRefusedError as error:
            self._refuse([*sends, *hasty], frames, error)
            return
        for peer, request, response in hasty:
            peer.answer(request, response)
            sends.append((peer, request, None))
        topics = self._topics
        is_saved = topics.version == topics.saved_version
        if is_saved and not self._is_sync and not self._groups:
            self._answer(sends, frames, self._since_ns)
            return
        group = _Group(end, topics.version, self._elapsed_ms(), self._since_ns, sends, frames)
        self._groups.append(group)
        # A turn of repeated sends may be synced already: no sync will come for it.
        if not self._is_sync or end <= self._store.synced_offset:
            self.release()

    def _commit(self, parts: list[TurnPart], now_ms: int) -> int:
        """Write a turn in which other parts than sends take part."""
        self._parts = []
        try:
            for part in parts:
                part.complete(now_ms or self._now_ms())
            end = self._store.commit()
        except PutRefusedError:
            self._store.take_back()
            for part in parts:
                part.refused()
            raise
        for part in parts:
            part.written()
        return end

    def release(self) -> None:
        """Answer the sends that are safe by now; called after a sync or a save."""
        synced = self._store.advance()
        groups = self._groups
        if self._store.failure is not None:
            failed = SyncFailedError(f"a sync failed: {self._store.failure}")
            while groups:
                group = groups.popleft()
                self._refuse(group.sends, group.frames, failed, may_be_stored=True)
            return
        saved_version = self._topics.saved_version
        while groups:
            group = groups[0]
            if group.topics_version > saved_version or (self._is_sync and group.end > synced):
                return
            groups.popleft()
            if self._late:
                self._late -= 1
            self._answer(group.sends, group.frames, group.since_ns)

    def tick(self, elapsed_ms: int) -> None:
        """Answer the sends that have waited too long: they are stored, but may not be safe.

        Sends whose topic a name server has still not confirmed are answered, too.
        """
        while self._untold and self._untold[0].deadline_ms <= elapsed_ms:
            self.told(self._untold[0].version)
        while self._late < len(self._groups):
            group = self._groups[self._late]
            if elapsed_ms - group.since_ms < self.config.sync_flush_timeout_ms:
                return
            self._late += 1
            refused = self._traffic.refused
            for index, (peer, request, response) in enumerate(group.sends):
                refused[request.code, _TIMEOUT] += 1
                if response is not None:
                    peer.answer(request, replace(response, code=_TIMEOUT))
                    group.sends[index] = (peer, request, None)
            for peer, said in _decoded(group.frames):
                refused[_code_of(said), _TIMEOUT] += 1
                peer.answer(said, replace(said, code=_TIMEOUT))
            group.frames.clear()

    def _answer(self, sends: list[Sent], frames: Frames, since_ns: int) -> None:
        count = len(sends)
        if self._makers:
            sends = list(self._without_untold(sends))
        for peer, request, response in sends:
            if response is not None:
                peer.answer(request, response)
        for peer, answers in frames.items():
            peer.answer_all(answers)
            count += len(answers)
        self._traffic.send_durations.add((self._clock_ns() - since_ns) // 1000, count)

    def _without_untold(self, sends: Sequence[Sent]) -> Iterator[Sent]:
        """Yield sends, but set those aside whose topic the name servers do not know yet."""
        for sent in sends:
            peer, request, response = sent
            made = [version for version, maker in self._makers if maker is request]
            if made and response is not None:
                deadline_ms = self._elapsed_ms() + TELLING_PATIENCE_MS
                self._untold.append(_Untold(made[0], deadline_ms, peer, request, response))
            else:
                yield sent

    def _refuse(
        self,
        sends: Sequence[Sent],
        frames: Frames,
        error: PutRefusedError,
        *,
        may_be_stored: bool = False,
    ) -> None:
        refusal = put_refusal(error, self.config, may_be_stored=may_be_stored)
        code, fields, remark = int(refusal.code), refusal.fields, refusal.remark
        refused = self._traffic.refused
        for peer, request, response in sends:
            refused[request.code, code] += 1
            if response is not None:
                peer.answer(request, request.answer(code, fields, remark=remark))
        for peer, said in _decoded(frames):
            refused[_code_of(said), code] += 1
            peer.answer(said, replace(said, code=code, fields=fields, remark=remark))


def _code_of(said: Command) -> int:
    """Return the code of the answered request: only the answer to a send has fields."""
    fields = said.fields
    nameless = fields.nameless if isinstance(fields, ReceivedFields) else ()
    return _SEND_CODE if nameless or said.ext_fields else _END_CODE


def _decoded(frames: Frames) -> Iterator[tuple[Peer, Command]]:
    """Decode answers that cannot be sent as they are; each carries its request's number."""
    for peer, answers in frames.items():
        for frame in answers:
            yield peer, decode_frame(frame)
