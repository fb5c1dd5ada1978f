"""Pulling messages (11, 361): the checks in Apache's order, the read, and holding the request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cometmq.broker.errors import RequestError
from cometmq.broker.filter.errors import FilterError, FilterTypeError
from cometmq.broker.filter.subscriptions import filter_of, is_tag_type
from cometmq.broker.long_polling import HeldPull
from cometmq.broker.refusals import FAQ, no_topic
from cometmq.broker.topics import READ
from cometmq.net import LATER
from cometmq.proto.codes import ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.pull import (
    ForbiddenType,
    PullMessage,
    PullMessageRefusal,
    PullMessageResponse,
)
from cometmq.store.errors import CorruptionError
from cometmq.store.reading import ReadStatus

if TYPE_CHECKING:
    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers import ConsumerGroup
    from cometmq.broker.session import Session, State
    from cometmq.broker.topics import Topic
    from cometmq.net import Later
    from cometmq.proto.bodies import SubscriptionData, SubscriptionGroupConfig
    from cometmq.store.reading import Filter, ReadResult

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
"""What a held pull may meet when it looks again, and still be held."""


def pull_message(request: Command, session: Session) -> Command | Later:
    """11, and 361: messages of one queue from an offset on."""
    header = request.read(PullMessage)
    state = session.state
    group = state.groups.find(header.consumer_group) or _made_group(header, state)
    if not group.consume_enable:
        raise _forbidden(
            ForbiddenType.GROUP, f"subscription group no permission, {header.consumer_group}"
        )
    topic = state.topics.find(header.topic)
    if topic is None:
        raise no_topic(header.topic)
    _check_queue(header, topic, session)
    pull = _Pull(request, header, session, topic, group, _wanted(header, group, state))
    if header.commits_offset and header.commit_offset >= 0:
        state.offsets.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        )
    return pull.first()


class _Pull:
    """One pull past its checks: reads, and comes back to it when it is held or what it reads is
    not in memory."""

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
    ) -> None:
        self._request = request
        self._header = header
        self._session = session
        self._topic = topic
        self._group = group
        self._wanted = wanted
        self._since_ns = session.state.traffic.clock_ns()  # 0 once it is held.
        self._offset = header.queue_offset  # A held one goes on behind what it does not want.

    def first(self) -> Command | Later:
        """Answer, or hold the request when there is nothing and the client waits."""
        offsets = self._session.state.offsets
        if offsets.resets and (told := self._reset()) is not None:
            return told
        result = self._read()
        if result.cold:
            return self._fetch(result)
        if self._may_wait(result) and self._header.may_suspend and self._hold():
            return LATER
        return self._answer(result)

    def _reset(self) -> Command | None:
        """Tell the group to go on elsewhere, if an operator wants that."""
        header, state = self._header, self._session.state
        offset = state.offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            return None
        fields = PullMessageResponse(
            self._group.broker_id,
            offset,
            state.store.min_offset(header.topic, header.queue_id),
            state.store.max_offset(header.topic, header.queue_id),
            None,
            self._topic.config.topic_sys_flag,
            self._group.group_sys_flag,
        )
        return self._request.answer(_OFFSET_MOVED, fields, remark="OFFSET_RESET")

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
        """Let go what no answer needs: a peer may hold many requests, of 16 MiB each."""
        request, header = self._request, self._header
        self._request = Command(
            request.code, None, request.flag, request.opaque, codec=request.codec
        )
        if header.subscription or header.lite_topic or header.proxy_forward_client_id:
            self._header = replace(
                header, subscription=None, lite_topic=None, proxy_forward_client_id=None
            )

    def again(self, is_last: bool) -> Command | Later | None:
        """Look again; None while there is nothing and it is not the last time."""
        if self._session.state.offsets.resets and (told := self._reset()) is not None:
            return told
        try:
            result = self._read()
        except RequestError as error:
            return self._request.answer(error.code, error.fields, remark=error.remark)
        if result.cold:
            return self._fetch(result)
        if not is_last and result.status in _WAITING:
            self._offset = result.next_begin_offset
            return None
        if self._offset > self._header.queue_offset and result.status in _WAITING:
            result = result._replace(status=ReadStatus.NO_MATCHED_MESSAGE)
        return self._answer(result)

    def _read(self, fetched: Fetched | None = None) -> ReadResult:
        header = self._header
        try:
            return self._session.state.store.read(
                header.topic,
                header.queue_id,
                self._offset,
                max(header.max_msg_nums, 1),
                wanted=self._wanted,
                fetched=fetched,
            )
        except CorruptionError as error:
            log.error("a pull of %r from %s: %s", header.topic, self._session.peer.host, error)
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error

    def _fetch(self, result: ReadResult) -> Later:
        self._session.state.cold_reads.fetch(result.cold, self._fetched, self._failed)
        return LATER

    def _fetched(self, fetched: Fetched) -> None:
        request = self._request
        try:
            result = self._read(fetched)
        except RequestError as error:
            response = request.answer(error.code, error.fields, remark=error.remark)
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
        response = self._request.answer(ResponseCode.SYSTEM_ERROR, remark=f"a read failed: {error}")
        self._session.peer.answer(self._request, response)

    def _answer(self, result: ReadResult) -> Command:
        status = result.status
        code = _CODES[status]
        header = self._header
        traffic = self._session.state.traffic
        if result.record_count:
            flow = traffic.got_flow(header.topic, header.consumer_group)
            flow.take(result.record_count, result.size)
        else:
            traffic.missed += 1
        if self._since_ns:
            traffic.pull_durations.add((traffic.clock_ns() - self._since_ns) // 1000)
        if status is ReadStatus.NO_MESSAGE_IN_QUEUE and self._offset == 0:
            code = _NOT_FOUND
        self._session.state.offsets.note_pull(
            header.consumer_group, header.topic, header.queue_id, result.next_begin_offset
        )
        return self._request.answer(
            code,
            PullMessageResponse(
                self._group.broker_id,
                result.next_begin_offset,
                result.min_offset,
                result.max_offset,
                None,
                self._topic.config.topic_sys_flag,
                self._group.group_sys_flag,
            ),
            remark=status.name,
            parts=result.slices,
        )


def _made_group(header: PullMessage, state: State) -> SubscriptionGroupConfig:
    group = state.groups.find_or_make(header.consumer_group, state.now_ms())
    if group is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{header.consumer_group}] does not exist,{FAQ}",
        )
    return group


def _check_queue(header: PullMessage, topic: Topic, session: Session) -> None:
    if not topic.config.perm & READ:
        raise _forbidden(
            ForbiddenType.TOPIC, f"the topic[{header.topic}] pulling message is forbidden"
        )
    if not 0 <= header.queue_id < topic.read_queue_count:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
            f" topicConfig.readQueueNums:[{topic.read_queue_count}]"
            f" consumer:[{session.peer.host}]",
        )


def _wanted(header: PullMessage, group: SubscriptionGroupConfig, state: State) -> Filter | None:
    """Find which messages the consumer wants: by its request, or by its group's heartbeats."""
    if header.has_subscription:
        return _compiled(header.expression_type, header.subscription, state.config)
    found = state.consumers.find(header.consumer_group)
    if found is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}"
        )
    _check_group(found, group, header.topic, state)
    subscription = found.subscriptions.get(header.topic)
    if subscription is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}"
        )
    if subscription.sub_version < header.sub_version:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
        )
    return _filter_of_group(found, subscription, state.config)


def _check_group(
    found: ConsumerGroup, group: SubscriptionGroupConfig, topic: str, state: State
) -> None:
    if found.is_broadcasting and not group.consume_broadcast_enable:
        raise _forbidden(
            ForbiddenType.BROADCASTING,
            f"the consumer group[{group.group_name}] can not consume by broadcast way",
        )
    if not state.groups.may_read(group.group_name, topic):
        raise _forbidden(
            ForbiddenType.SUBSCRIPTION,
            f"the consumer group[{group.group_name}] is forbidden for topic[{topic}]",
        )


def _filter_of_group(
    found: ConsumerGroup, subscription: SubscriptionData, config: BrokerConfig
) -> Filter | None:
    """Compile what a group's heartbeats say: what is not by tag once, when a pull first needs it.

    A heartbeat is answered in the same way whatever is in it, so that one with thousands of
    expressions holds nobody up.
    """
    kind, topic = subscription.expression_type, subscription.topic
    if subscription.class_filter_mode:
        raise _unserved(FilterTypeError("class"))
    if is_tag_type(kind):
        return _compiled(kind, subscription.sub_string, config)
    compiled = found.filters.get(topic)
    if compiled is None:
        try:
            compiled = filter_of(kind, subscription.sub_string, config)
        except FilterTypeError as error:
            if kind == "SQL92":
                raise _unserved(error) from None
            compiled = error
        except FilterError as error:
            compiled = error
        assert compiled is not None  # Only a filter by tag takes everything.
        found.filters[topic] = compiled
    if isinstance(compiled, FilterError):
        raise RequestError(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist!Your expression may be wrong!"
            f" {compiled}",
        )
    return compiled


def _compiled(
    expression_type: str | None, expression: str | None, config: BrokerConfig
) -> Filter | None:
    try:
        return filter_of(expression_type, expression, config)
    except FilterTypeError as error:
        raise _unserved(error) from None
    except FilterError as error:
        why = "" if is_tag_type(expression_type) else f": {error}"
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed{why}"
        ) from None


def _unserved(error: FilterTypeError) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, str(error))


def _forbidden(kind: ForbiddenType, remark: str) -> RequestError:
    return RequestError(
        ResponseCode.NO_PERMISSION, remark, PullMessageRefusal(forbidden_type=int(kind))
    )
