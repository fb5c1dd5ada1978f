"""Support for handlers that need data from the disk: they try, have it fetched, and try again.

Handlers that look at many queues do so in slices, so that the loop can work in between.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final, TypeAlias

from cometmq.broker.errors import RequestError
from cometmq.broker.intact import read_intact
from cometmq.broker.refusals import Refusal, put_refusal, read_failed, refuse
from cometmq.net import LATER
from cometmq.proto.codes import ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.record import STORE_TIMESTAMP_AT
from cometmq.proto.sysflag import SysFlag
from cometmq.store.disk.cold import Cold
from cometmq.store.disk.names import some_of
from cometmq.store.errors import PutRefusedError, StoreFilesError
from cometmq.store.queues.consume_queues import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session
    from cometmq.net import Later
    from cometmq.proto.message import StoredMessage
    from cometmq.store.message_store import MessageStore

    Attempt: TypeAlias = Callable[[Fetched], "Command | Sequence[Cold] | Later"]
    SlicedAttempt: TypeAlias = Callable[
        [Fetched], "Generator[None, None, Command | Sequence[Cold]]"
    ]

SLICE_NS: Final = 200_000
_SYS_FLAG: Final = struct.Struct(">i")
_SYS_FLAG_AT: Final = 36
_TIME: Final = struct.Struct(">q")
_BORN_HOST_IPV6: Final = int(SysFlag.BORN_HOST_IPV6)


def answered(request: Command, session: Session, attempt: Attempt) -> Command | Later:
    """Answer with the result of `attempt`, now or when the data that it asks for is fetched.

    `attempt` gets everything fetched so far. It returns the answer, LATER if that comes by another
    way, or the data that it needs in addition.
    """

    # First without the functions below: they are a reference cycle, left to the collector.
    first = attempt(())
    if first is LATER or isinstance(first, Command):
        return first

    def go_on(fetched: Fetched, result: Command | Sequence[Cold] | Later) -> Command | Later:
        if result is LATER or isinstance(result, Command):
            return result
        session.state.cold_reads.fetch(result, lambda more: again([*fetched, *more]), failed)
        return LATER

    def again(fetched: Fetched) -> None:
        try:
            response = go_on(fetched, attempt(fetched))
        except Refusal as error:
            response = refuse(request, session, error)
        if response is not LATER:
            session.peer.answer(request, response)
        session.peer.peers.turn.end()  # For puts into the store: no request comes to end the turn.

    def failed(error: OSError) -> None:
        session.peer.answer(request, read_failed(request, error))

    return go_on((), first)


def answered_of_queues(
    request: Command,
    session: Session,
    queues: Iterable[tuple[str, int]],
    attempt: Attempt,
) -> Command | Later:
    """Answer as `answered` does, once looking up where these queues begin need not wait."""
    of = session.state.store.queues

    def look(fetched: Fetched) -> Command | Sequence[Cold] | Later:
        fronts = () if fetched else (of.cold_front(*queue) for queue in queues)
        return [front for front in fronts if front is not None] or attempt(fetched)

    return answered(request, session, look)


def with_message(
    request: Command,
    session: Session,
    physical_offset: int,
    missing: str,
    use: Callable[[StoredMessage], Later],
) -> Command | Later:
    """Read a message, from the disk if need be, and pass it to `use`.

    `missing` is the remark of the refusal if there is no such message.
    """
    state = session.state

    def attempt(fetched: Fetched) -> Sequence[Cold] | Later:
        record = state.store.find_record(physical_offset, fetched)
        if isinstance(record, Cold):
            return [record]
        if record is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, missing)
        try:
            return use(read_intact(record))
        except PutRefusedError as error:  # Without the fields, which only senders get.
            refusal = put_refusal(error, state.config)
            raise RequestError(refusal.code, refusal.remark) from error

    return answered(request, session, attempt)


class _Sliced:
    """An attempt that is made in slices."""

    def __init__(self, request: Command, session: Session, attempt: SlicedAttempt) -> None:
        self._request = request
        self._session = session
        self._attempt = attempt
        self._fetched: list[tuple[Cold, bytes]] = []
        self._work = attempt(())

    def step(self) -> Command | Later:
        """Do the next slice; return the answer, or LATER if there is more to do."""
        until_ns = time.perf_counter_ns() + SLICE_NS
        try:
            next(self._work)
            while time.perf_counter_ns() < until_ns:
                next(self._work)
        except StopIteration as ended:
            result: Command | Sequence[Cold] = ended.value
            if isinstance(result, Command):
                return result
            self._session.state.cold_reads.fetch(result, self._fetch_done, self._failed)
            return LATER
        self._session.peer.peers.call_soon(self._go_on)
        return LATER

    def _go_on(self) -> None:
        peer = self._session.peer
        if peer.closed_because is None:
            try:
                response = self.step()
            except Refusal as error:
                response = refuse(self._request, self._session, error)
            if response is not LATER:
                peer.answer(self._request, response)

    def _fetch_done(self, more: Fetched) -> None:
        self._fetched += more
        self._work = self._attempt(self._fetched)
        self._go_on()

    def _failed(self, error: OSError) -> None:
        self._session.peer.answer(self._request, read_failed(self._request, error))


def answered_in_slices(
    request: Command, session: Session, attempt: SlicedAttempt
) -> Command | Later:
    """Answer as `answered` does, with the result of a generator that yields where it may pause."""
    return _Sliced(request, session, attempt).step()


class StoreTimes:
    """Looks up when messages of many queues were stored.

    It notes the data to be fetched for that, and the damaged queues.
    """

    def __init__(self, store: MessageStore, fetched: Fetched) -> None:
        self.cold: list[Cold] = []
        """Data to be fetched: until that is done, the returned times are of no use."""
        self._store = store
        self._fetched = fetched or None
        self._damaged: list[str] = []

    def span(self, topic: str, queue_id: int) -> Span | None:
        """Return where a queue begins and ends; None if it is damaged, which is noted.

        The begin is 0 while it has to be fetched.
        """
        queues = self._store.queues
        if not self._fetched and (front := queues.cold_front(topic, queue_id)) is not None:
            self.cold.append(front)
            return Span(0, self._store.max_offset(topic, queue_id))
        span = queues.span(topic, queue_id)
        if span is None:
            self._damaged.append(f"{topic}/{queue_id}")
        return span

    def left_out(self) -> str | None:
        """Return a remark that names the damaged queues left out; None if there are none."""
        if not self._damaged:
            return None
        names = some_of(self._damaged)
        return f"left out, because files are damaged (the broker's log says which): {names}"

    def at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return when the message at a queue offset was stored; -1 if there is none or damage."""
        try:
            result = self._store.read(topic, queue_id, queue_offset, 1, fetched=self._fetched)
        except StoreFilesError:
            return -1
        if result.cold:
            self.cold += result.cold
            return -1
        if not result.slices:
            return -1
        return store_time_of(result.slices[0])

    def earliest(self, topic: str, queue_id: int) -> int:
        """Return when the first message of a queue was stored; -1 if there is none."""
        return self.at(topic, queue_id, self._store.min_offset(topic, queue_id))


def store_time_of(record: bytes | bytearray | memoryview) -> int:
    """Read the store timestamp of a record."""
    (flag,) = _SYS_FLAG.unpack_from(record, _SYS_FLAG_AT)
    shift = 12 if flag & _BORN_HOST_IPV6 else 0
    (time,) = _TIME.unpack_from(record, STORE_TIMESTAMP_AT + shift)
    return int(time)
