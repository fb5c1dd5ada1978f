"""Pulling messages (11, 361): reading, answering, and holding the request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.pull_answers import answer_fields, found_answer
from cometmq.broker.handlers.pull_broadcast import BY_PROXY, first_offset, note_pull
from cometmq.broker.handlers.pull_checks import forbidden, made_group, unreadable, wanted_by
from cometmq.broker.long_polling import HeldPull
from cometmq.broker.refusals import Refusal, no_topic, read_failed, refuse
from cometmq.broker.topics import READ
from cometmq.net import LATER
from cometmq.proto.codes import ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.pull import ForbiddenType, PullMessage, PullMessageResponse
from cometmq.proto.errors import MessageError
from cometmq.store.errors import CorruptionError
from cometmq.store.messages.reading import ReadStatus

if TYPE_CHECKING:
    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session, State
    from cometmq.broker.topics import Topic
    from cometmq.net import Frame, Later
    from cometmq.proto.bodies import SubscriptionGroupConfig
    from cometmq.store.messages.reading import Filter, ReadResult

log = logging.getLogger(__name__)

_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_OFFSET_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
_RETRY_IMMEDIATELY: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)

_CODES: Final = {
    ReadStatus.FOUND: int(ResponseCode.SUCCESS),
    ReadStatus.NO_MATCHED_MESSAGE: _RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: _RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    ReadStatus.NO_MESSAGE_IN_QUEUE: _OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: _OFFSET_MOVED,
    ReadStatus.OFFSET_OVERFLOW_BADLY: _OFFSET_MOVED,
}

_WAITING: Final = frozenset(
    {ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.OFFSET_OVERFLOW_ONE, ReadStatus.NO_MESSAGE_IN_QUEUE}
)
"""The results of another look after which a pull is still held."""


def pull_message(request: Command, session: Session) -> Command | Frame | Later:
    """11 and 361: messages of one queue, from an offset on."""
    header = request.read(PullMessage)
    state = session.state
    group = state.groups.find(header.consumer_group) or made_group(header, state)
    if not group.consume_enable:
        raise forbidden(
            ForbiddenType.GROUP, f"subscription group no permission, {header.consumer_group}"
        )
    topic = state.topics.find(header.topic)
    if topic is None:
        raise no_topic(header.topic)
    if not (topic.config.perm & READ and 0 <= header.queue_id < topic.read_queue_count):
        raise unreadable(header, topic, session)
    wanted = wanted_by(header, group, state)
    if header.commit_offset >= 0 and header.commits_offset:
        state.offsets.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        )
    since_ns = state.traffic.clock_ns()
    result = None
    if _is_broadcast(header, state):
        first = first_offset(header, session)
        if first is not None:
            return _elsewhere(request, first, topic, group)
    if not state.offsets.resets:
        result = _read(header, session, header.queue_offset, wanted)
        if result.record_count:
            return _found(request, header, session, topic, group, result, since_ns)
    return _Pull(request, header, session, topic, group, wanted, since_ns).first(result)


def _is_broadcast(header: PullMessage, state: State) -> bool:
    return (
        header.consumer_group in state.consumers.broadcasting or header.request_source == BY_PROXY
    )


def _elsewhere(
    request: Command,
    offset: int,
    topic: Topic,
    group: SubscriptionGroupConfig,
    ends: tuple[int, int] = (0, 0),
) -> Command:
    """Tell a consumer to continue at another offset; `ends` are the queue's, if they are sent."""
    fields = PullMessageResponse(
        group.broker_id,
        offset,
        *ends,
        None,
        topic.config.topic_sys_flag,
        group.group_sys_flag,
    )
    return request.answer(_OFFSET_MOVED, fields, remark="OFFSET_RESET")


def _read(
    header: PullMessage,
    session: Session,
    queue_offset: int,
    wanted: Filter | None,
    fetched: Fetched | None = None,
) -> ReadResult:
    try:
        return session.state.store.read(
            header.topic,
            header.queue_id,
            queue_offset,
            header.max_msg_nums if header.max_msg_nums > 0 else 1,
            wanted=wanted,
            fetched=fetched,
        )
    except (CorruptionError, MessageError) as error:
        # A client that comes again and again is logged once, with the damaged message.
        if not session.state.damage.look(header.topic, header.queue_id, queue_offset):
            log.error("a pull of %r from %s: %s", header.topic, session.peer.host, error)
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error


def _found(
    request: Command,
    header: PullMessage,
    session: Session,
    topic: Topic,
    group: SubscriptionGroupConfig,
    result: ReadResult,
    since_ns: int,
) -> Command | Frame:
    """Answer with messages; `since_ns` is 0 for a pull that was held."""
    state = session.state
    name, group_name = header.topic, header.consumer_group
    queue_id, end = header.queue_id, result.next_begin_offset
    if header.queue_offset < state.offsets.note_pull(group_name, name, queue_id, end):
        state.damage.look(name, queue_id, header.queue_offset)
    traffic = state.traffic
    traffic.got_flow(name, group_name).take(result.record_count, result.size)
    if since_ns:
        traffic.pull_durations.add((traffic.clock_ns() - since_ns) // 1000)
    return found_answer(request, session.peer, result, topic, group)


class _Pull:
    """One pull that has passed its checks. It reads, and reads again after it was held or after
    data was fetched that was not in memory."""

    __slots__ = (
        "_group",
        "_header",
        "_offset",
        "_request",
        "_session",
        "_since_ns",
        "_topic",
        "_wanted",
    )

    def __init__(
        self,
        request: Command,
        header: PullMessage,
        session: Session,
        topic: Topic,
        group: SubscriptionGroupConfig,
        wanted: Filter | None,
        since_ns: int,
    ) -> None:
        self._request = request
        self._header = header
        self._session = session
        self._topic = topic
        self._group = group
        self._wanted = wanted
        self._since_ns = since_ns  # 0 once it is held.
        self._offset = header.queue_offset  # A held pull moves past messages it does not want.

    def first(self, result: ReadResult | None) -> Command | Frame | Later:
        """Answer, or hold the request if there is nothing and the client is ready to wait.

        `result` is the read made already; None while a reset of any group is pending.
        """
        if result is None:
            if (told := self._reset()) is not None:
                return told
            result = self._read()
        if result.cold:
            return self._fetch(result)
        if self._may_wait(result) and self._header.may_suspend and self._hold():
            return LATER
        return self._answer(result)

    def _reset(self) -> Command | None:
        """Tell the group to continue at another offset, if an operator has reset it."""
        header, state = self._header, self._session.state
        offset = state.offsets.take_reset(
            header.consumer_group, header.topic, header.queue_id, header.queue_offset
        )
        if offset is None:
            return None
        ends = (
            state.store.min_offset(header.topic, header.queue_id),
            state.store.max_offset(header.topic, header.queue_id),
        )
        return _elsewhere(self._request, offset, self._topic, self._group, ends)

    def _may_wait(self, result: ReadResult) -> bool:
        status = result.status
        return status is ReadStatus.OFFSET_OVERFLOW_ONE or (
            status is ReadStatus.NO_MESSAGE_IN_QUEUE and self._header.queue_offset == 0
        )

    def _hold(self) -> bool:
        state = self._session.state
        config = state.config
        timeout_ms = config.short_polling_ms
        if config.long_polling_enable:
            timeout_ms = min(self._header.suspend_timeout_millis, config.suspend_timeout_max_ms)
        if timeout_ms <= 0:
            return False
        self._since_ns = 0
        self._keep_little()
        return state.long_polling.hold(
            HeldPull(
                self._session.peer,
                self._request,
                self._header.topic,
                self._header.queue_id,
                state.elapsed_ms() + timeout_ms,
                self.again,
            )
        )

    def _keep_little(self) -> None:
        """Drop what no answer needs: a peer may have many requests held, of 16 MiB each."""
        request, header = self._request, self._header
        self._request = Command(
            request.code, None, request.flag, request.opaque, codec=request.codec
        )
        if header.subscription or header.lite_topic or header.proxy_forward_client_id:
            self._header = replace(
                header, subscription=None, lite_topic=None, proxy_forward_client_id=None
            )

    def again(self, is_last: bool) -> Command | Frame | Later | None:
        """Look again; None if there is nothing yet and this is not the last time."""
        if self._session.state.offsets.resets and (told := self._reset()) is not None:
            return told
        try:
            result = self._read()
        except Refusal as error:
            return refuse(self._request, self._session, error)
        if result.cold:
            return self._fetch(result)
        if not is_last and result.status in _WAITING:
            self._offset = result.next_begin_offset
            return None
        if self._offset > self._header.queue_offset and result.status in _WAITING:
            result = replace(result, status=ReadStatus.NO_MATCHED_MESSAGE)
        return self._answer(result)

    def _read(self, fetched: Fetched | None = None) -> ReadResult:
        return _read(self._header, self._session, self._offset, self._wanted, fetched)

    def _fetch(self, result: ReadResult) -> Later:
        self._session.state.cold_reads.fetch(result.cold, self._fetched, self._failed)
        return LATER

    def _fetched(self, fetched: Fetched) -> None:
        request = self._request
        response: Command | Frame
        try:
            result = self._read(fetched)
        except Refusal as error:
            response = refuse(request, self._session, error)
        else:
            if result.cold:
                self._session.state.cold_reads.fetch(
                    result.cold, lambda more: self._fetched([*fetched, *more]), self._failed
                )
                return
            response = self._answer(result)
        self._session.peer.answer(request, response)

    def _failed(self, error: OSError) -> None:
        log.error("a pull of %r: the disk failed a read: %s", self._header.topic, error)
        self._session.peer.answer(self._request, read_failed(self._request, error))

    def _answer(self, result: ReadResult) -> Command | Frame:
        request, header, session = self._request, self._header, self._session
        topic, group = self._topic, self._group
        if result.record_count:
            return _found(request, header, session, topic, group, result, self._since_ns)
        state, status = session.state, result.status
        state.traffic.missed += 1
        if self._since_ns:
            state.traffic.pull_durations.add((state.traffic.clock_ns() - self._since_ns) // 1000)
        state.offsets.note_pull(
            header.consumer_group, header.topic, header.queue_id, result.next_begin_offset
        )
        is_new = status is ReadStatus.NO_MESSAGE_IN_QUEUE and self._offset == 0
        code = _NOT_FOUND if is_new else _CODES[status]
        if code == _OFFSET_MOVED and _is_broadcast(header, state):
            note_pull(header, session, result.next_begin_offset)
        return request.answer(code, answer_fields(result, topic, group), remark=status.name)
