"""Questions of servers to a client, and the answers: for the broker itself or for an operator.

`mqadmin consumerStatus`, `consumerConnection`, `queryMsgById -g` and the dashboards reach the
members of a group through brokers; each question has a function here.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from cometmq.client._connections import elapsed_ms
from cometmq.client._core.queues import to_wire
from cometmq.net import LATER
from cometmq.proto.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    ConsumeType,
    ProcessQueueInfo,
    decode_reset_offsets,
)
from cometmq.proto.codes import RequestCode, ResponseCode, request_name
from cometmq.proto.commands import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    NotifyConsumerIdsChanged,
    ResetOffset,
)
from cometmq.proto.message import read_message
from cometmq.proto.version import CURRENT_VERSION, version_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.client._consumption import Consumption
    from cometmq.client._core.process_queue import Outcome, ProcessQueue
    from cometmq.client._parts import Parts
    from cometmq.net import Later, Peer
    from cometmq.proto.command import Command

_log = logging.getLogger("cometmq.client")


class Questions:
    """Answers questions about the consumers of one client."""

    def __init__(self, consumptions: Mapping[str, Consumption], parts: Callable[[], Parts]) -> None:
        self._consumptions = consumptions
        self._parts = parts
        self._answers: dict[int, Callable[[Command, Peer], Command | Later]] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def answer(self, request: Command, peer: Peer) -> Command | Later:
        """Answer a question, or say that it is not supported."""
        known = self._answers.get(request.code)
        if known is not None:
            return known(request, peer)
        _log.debug("%s asks %s, which is not served here", peer.host, request_name(request.code))
        return request.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f" request type {request.code} not supported",
        )

    def _members_changed(self, request: Command, peer: Peer) -> Later:  # noqa: ARG002  # The table's
        """40: share the queues again."""
        group = request.read(NotifyConsumerIdsChanged).consumer_group
        if (consumption := self._consumptions.get(group)) is not None:
            consumption.member.share_soon()
        return LATER

    def _reset(self, request: Command, peer: Peer) -> Later:  # noqa: ARG002  # The table's
        """220: move to other offsets."""
        group = request.read(ResetOffset).group
        if (consumption := self._consumptions.get(group)) is not None:
            consumption.reset(decode_reset_offsets(request.body))
        return LATER

    def _status(self, request: Command, peer: Peer) -> Command:  # noqa: ARG002  # The table's
        """221: the offsets up to which everything is consumed."""
        header = request.read(GetConsumerStatus)
        consumption = self._consumptions.get(header.group)
        queues = [] if consumption is None else consumption.member.process_queues
        body = ConsumerStatus(
            message_queue_table={
                to_wire(each.queue): each.commit_offset
                for each in queues
                if each.queue.topic == header.topic
            }
        )
        return request.answer(ResponseCode.SUCCESS, body=body.encode())

    def _running_info(self, request: Command, peer: Peer) -> Command:  # noqa: ARG002  # The table's
        """307: everything about a consumer."""
        header = request.read(GetConsumerRunningInfo)
        consumption = self._consumptions.get(header.consumer_group)
        if consumption is None:
            return _no_such_group(request, header.consumer_group)
        body = ConsumerRunningInfo(
            jstack=_stacks() if header.jstack_enable else None,
            mq_table={
                to_wire(each.queue): _queue_info(each, consumption)
                for each in consumption.member.process_queues
            },
            properties=self._properties(consumption),
            subscription_set=consumption.member.subscriptions().subscription_data_set,
        )
        return request.answer(ResponseCode.SUCCESS, body=body.encode())

    def _properties(self, consumption: Consumption) -> dict[str, str]:
        options = consumption.options
        return {
            "PROP_CLIENT_VERSION": version_name(CURRENT_VERSION),
            "PROP_CONSUMEORDERLY": str(options.is_ordered).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(consumption.started_ms),
            "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY.value,
            "PROP_NAMESERVER_ADDR": ";".join(self._parts().nameservers.addresses),
            "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
            "consumerGroup": options.group,
            "messageModel": "BROADCASTING" if options.is_broadcast else "CLUSTERING",
            "maxReconsumeTimes": str(options.max_retries),
            "pullThresholdForQueue": str(options.prefetch),
            "language": f"Python {sys.version.split()[0]}",
        }

    def _consume_directly(self, request: Command, peer: Peer) -> Command | Later:
        """309: consume one message now, before all others."""
        header = request.read(ConsumeMessageDirectly)
        consumption = self._consumptions.get(header.consumer_group)
        if consumption is None or consumption.delivery.is_ended:
            return _no_such_group(request, header.consumer_group)
        stored = read_message(bytes(request.body or b""))
        began_ms = elapsed_ms()
        is_ordered = consumption.options.is_ordered

        def told(outcome: Outcome) -> None:
            result = ConsumeMessageDirectlyResult(
                order=is_ordered,
                consume_result=_result_of(outcome),
                remark=None if outcome.error is None else _shown(outcome.error),
                spent_time_ms=elapsed_ms() - began_ms,
            )
            peer.answer(request, request.answer(ResponseCode.SUCCESS, body=result.encode()))

        consumption.consume_directly(stored, told)
        return LATER


def _result_of(outcome: Outcome) -> ConsumeResult:
    if outcome.is_consumed:
        return ConsumeResult.CR_SUCCESS
    return ConsumeResult.CR_LATER if outcome.error is None else ConsumeResult.CR_THROW_EXCEPTION


def _shown(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _no_such_group(request: Command, group: str) -> Command:
    return request.answer(
        ResponseCode.SYSTEM_ERROR, remark=f"The Consumer Group <{group}> not exist in this consumer"
    )


def _queue_info(queue: ProcessQueue, consumption: Consumption) -> ProcessQueueInfo:
    locks = consumption.member.locks
    return ProcessQueueInfo(
        cached_msg_count=len(queue),
        cached_msg_min_offset=queue.commit_offset if queue else 0,
        cached_msg_max_offset=queue.next_offset - 1 if queue else 0,
        cached_msg_size_in_mib=queue.size >> 20,
        commit_offset=queue.commit_offset,
        dropped=queue.is_dropped,
        locked=locks is not None and locks.holds(queue.queue),
        last_consume_timestamp=queue.settled_ms,
        last_pull_timestamp=queue.fetched_ms,
    )


def _stacks() -> str:
    """Return the stack of each thread of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(number, number)}\n{''.join(traceback.format_stack(frame))}"
        for number, frame in sys._current_frames().items()  # pyright: ignore[reportPrivateUsage]  # The documented way.
    )
