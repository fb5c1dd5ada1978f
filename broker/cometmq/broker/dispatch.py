"""The table from request code to handler, and the place where a refusal becomes an answer.

Only this module turns an exception of a handler into an answer; work that a handler puts off calls
`refuse` by itself. Whatever a peer sends, a handler raises nothing but a `Refusal`; any other
exception is our own bug, which the network layer answers with code 1 and logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from cometmq.broker.filter.compiler import CompilerLoadingError
from cometmq.broker.handlers import (
    bulk,
    client_admin,
    config,
    connections,
    consume_stats,
    consumer,
    group_admin,
    lock,
    offset,
    offset_admin,
    peek,
    pull,
    query,
    queue_entries,
    reply,
    runtime_info,
    send,
    send_back,
    send_once,
    statistics,
    subscriptions,
    topic_admin,
    topic_stats,
    transaction,
    upkeep,
)
from cometmq.broker.refusals import Refusal, refuse
from cometmq.net import LATER
from cometmq.proto.codes import RequestCode as Code, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.broker.session import Handlers, Session
    from cometmq.net import Frame, Later, Peer
    from cometmq.proto.command import Command

    Handler: TypeAlias = Callable[[Command, Session], Command | Frame | Later]


class Row(NamedTuple):
    """How one request code is served."""

    handler: Handler
    on_vip: bool = True
    """Whether it is also served on the second port."""


TABLE: Mapping[int, Row] = {
    # Sending, pulling, looking up.
    Code.SEND_MESSAGE: Row(send.send_message),
    Code.PULL_MESSAGE: Row(pull.pull_message, on_vip=False),
    Code.QUERY_MESSAGE: Row(query.query_message),
    Code.VIEW_MESSAGE_BY_ID: Row(query.view_message_by_id),
    Code.CONSUMER_SEND_MSG_BACK: Row(send_back.consumer_send_msg_back),
    Code.SEND_MESSAGE_V2: Row(send.send_message_v2),
    Code.SEND_BATCH_MESSAGE: Row(send.send_message_v2),
    Code.LITE_PULL_MESSAGE: Row(pull.pull_message, on_vip=False),
    Code.PEEK_MESSAGE: Row(peek.peek_message, on_vip=False),
    Code.END_TRANSACTION: Row(transaction.end_transaction),
    Code.SEND_REPLY_MESSAGE: Row(reply.send_reply_message),
    Code.SEND_REPLY_MESSAGE_V2: Row(reply.send_reply_message_v2),
    Code.RESUME_CHECK_HALF_MESSAGE: Row(transaction.resume_check_half_message),
    # Offsets of queues and groups.
    Code.QUERY_CONSUMER_OFFSET: Row(offset.query_consumer_offset),
    Code.UPDATE_CONSUMER_OFFSET: Row(offset.update_consumer_offset),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: Row(offset.search_offset_by_timestamp),
    Code.GET_MAX_OFFSET: Row(offset.get_max_offset),
    Code.GET_MIN_OFFSET: Row(offset.get_min_offset),
    Code.GET_EARLIEST_MSG_STORETIME: Row(offset.get_earliest_store_time),
    Code.GET_ALL_CONSUMER_OFFSET: Row(offset_admin.get_all_consumer_offset),
    Code.GET_ALL_DELAY_OFFSET: Row(offset_admin.get_all_delay_offset),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: Row(offset_admin.reset_offset),
    Code.QUERY_CORRECTION_OFFSET: Row(offset_admin.query_correction_offset),
    Code.CLONE_GROUP_OFFSET: Row(offset_admin.clone_group_offset),
    # Clients.
    Code.HEART_BEAT: Row(consumer.heart_beat),
    Code.UNREGISTER_CLIENT: Row(consumer.unregister_client),
    Code.GET_CONSUMER_LIST_BY_GROUP: Row(consumer.get_consumer_list_by_group),
    Code.LOCK_BATCH_MQ: Row(lock.lock_batch),
    Code.UNLOCK_BATCH_MQ: Row(lock.unlock_batch),
    Code.CHECK_CLIENT_CONFIG: Row(consumer.check_client_config),
    Code.GET_CONSUMER_CONNECTION_LIST: Row(connections.get_consumer_connection_list),
    Code.GET_PRODUCER_CONNECTION_LIST: Row(connections.get_producer_connection_list),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Row(client_admin.get_consumer_status),
    Code.GET_CONSUMER_RUNNING_INFO: Row(client_admin.get_consumer_running_info),
    Code.CONSUME_MESSAGE_DIRECTLY: Row(client_admin.consume_message_directly),
    Code.GET_ALL_PRODUCER_INFO: Row(connections.get_all_producer_info),
    # Topics.
    Code.UPDATE_AND_CREATE_TOPIC: Row(topic_admin.update_and_create_topic),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: Row(topic_admin.update_and_create_topic_list),
    Code.GET_ALL_TOPIC_CONFIG: Row(topic_admin.get_all_topic_config),
    Code.GET_TOPIC_STATS_INFO: Row(topic_stats.get_topic_stats_info),
    Code.DELETE_TOPIC_IN_BROKER: Row(topic_admin.delete_topic),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Row(topic_admin.get_system_topic_list),
    Code.CLEAN_UNUSED_TOPIC: Row(topic_admin.clean_unused_topic),
    Code.GET_TOPIC_CONFIG: Row(topic_admin.get_topic_config),
    # Groups, and what they consume.
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Row(group_admin.update_and_create_group),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Row(group_admin.get_all_group_config),
    Code.DELETE_SUBSCRIPTIONGROUP: Row(group_admin.delete_group),
    Code.GET_CONSUME_STATS: Row(consume_stats.get_consume_stats),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Row(group_admin.update_and_create_group_list),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: Row(subscriptions.query_topic_consume_by_who),
    Code.QUERY_CONSUME_TIME_SPAN: Row(consume_stats.query_consume_time_span),
    Code.GET_BROKER_CONSUME_STATS: Row(consume_stats.get_broker_consume_stats),
    Code.QUERY_TOPICS_BY_CONSUMER: Row(subscriptions.query_topics_by_consumer),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: Row(subscriptions.query_subscription_by_consumer),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: Row(group_admin.get_group_config),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: Row(group_admin.update_and_get_group_forbidden),
    # The broker itself.
    Code.UPDATE_BROKER_CONFIG: Row(config.update_broker_config),
    Code.GET_BROKER_CONFIG: Row(config.get_broker_config),
    Code.GET_BROKER_RUNTIME_INFO: Row(runtime_info.get_broker_runtime_info),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: Row(upkeep.clean_expired_consume_queue),
    Code.VIEW_BROKER_STATS_DATA: Row(statistics.view_broker_stats_data),
    Code.QUERY_CONSUME_QUEUE: Row(queue_entries.query_consume_queue),
    Code.DELETE_EXPIRED_COMMITLOG: Row(upkeep.delete_expired_commit_log),
    # Our own, for reading and writing in bulk.
    Code.GET_QUEUE_RANGES: Row(bulk.get_queue_ranges),
    Code.BULK_PULL_MESSAGE: Row(bulk.bulk_pull_message, on_vip=False),
    Code.GET_RANGE_SIZE: Row(bulk.get_range_size),
    Code.FIND_UNIQUE_KEYS: Row(bulk.find_unique_keys),
    Code.SEND_BATCH_ONCE: Row(send_once.send_batch_once),
}
"""The requests that a broker serves; any other is answered with code 3."""

HANDLERS: Final[Handlers] = {int(code): row.handler for code, row in TABLE.items()}
VIP_HANDLERS: Final[Handlers] = {
    int(code): row.handler for code, row in TABLE.items() if row.on_vip
}
"""The handlers of a session on the first port, and of one on the second."""


def dispatch(request: Command, peer: Peer) -> Command | Frame | Later:
    """Answer a request, or return LATER if its answer comes later: the `handle` of an owner."""
    session: Session = peer.context
    try:
        handler = session.handlers[request.code]
    except KeyError:
        return request.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f" request type {request.code} not supported",
        )
    try:
        return handler(request, session)
    except CompilerLoadingError:
        session.state.loading.wait(request, peer)
        return LATER
    except Refusal as error:
        return refuse(request, session, error)
