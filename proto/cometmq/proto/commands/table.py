"""The header classes of each command, for request, answer and refusal, by who serves it.

Only header fields are here: the bodies of requests and answers are in `REQUEST_BODIES` and
`RESPONSE_BODIES` of `cometmq.proto.bodies`. Many answers have a body and no fields, or nothing, so
few rows name a response class.

`None` in a row means that the command has no fields there. A command in no table is no longer
served by anybody (13, 22, 23, 27, 47, 50 to 54, 209 to 214, 301, 302), or its fields are not
modelled yet: broker containers (902, 903) and lite topics (200070 to 200079).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cometmq.proto.codes import RequestCode as Code, ResponseCode
from cometmq.proto.commands import (
    admin,
    auth,
    broker,
    bulk,
    consumer,
    controller,
    group,
    offset,
    pop,
    pull,
    query,
    recall,
    route,
    send,
    topic,
    transaction,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.proto.header import Header


_SUCCESS = frozenset({ResponseCode.SUCCESS})
_QUERIED = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


class Headers(NamedTuple):
    """The header classes of one request code."""

    request: type[Header] | None = None
    response: type[Header] | None = None
    # For an answer that refuses the request. All its fields are optional, because such an answer
    # may come from a layer that does not know the command.
    refusal: type[Header] | None = None
    answered: frozenset[ResponseCode] = _SUCCESS  # The codes that `response` comes with.

    def of_answer(self, code: int) -> type[Header] | None:
        """Find the class of an answer by its response code."""
        return self.response if code in self.answered else self.refusal


NO_FIELDS = Headers()
"""For a command that has a body at most."""

# Requests to a broker, from clients, admin tools and other brokers.
BROKER_COMMANDS: Mapping[Code, Headers] = {
    Code.SEND_MESSAGE: Headers(
        send.SendMessage, send.SendMessageResponse, send.SendMessageRefusal, send.STORED_CODES
    ),
    Code.PULL_MESSAGE: Headers(
        pull.PullMessage, pull.PullMessageResponse, pull.PullMessageRefusal, pull.PULLED_CODES
    ),
    Code.QUERY_MESSAGE: Headers(query.QueryMessage, query.QueryMessageResponse, answered=_QUERIED),
    Code.QUERY_CONSUMER_OFFSET: Headers(offset.QueryConsumerOffset, offset.OffsetResponse),
    Code.UPDATE_CONSUMER_OFFSET: Headers(offset.UpdateConsumerOffset),
    Code.UPDATE_AND_CREATE_TOPIC: Headers(topic.UpdateAndCreateTopic),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: NO_FIELDS,
    Code.GET_ALL_TOPIC_CONFIG: Headers(topic.GetAllTopicConfig, topic.GetAllTopicConfigResponse),
    Code.UPDATE_BROKER_CONFIG: NO_FIELDS,
    Code.GET_BROKER_CONFIG: Headers(None, admin.GetBrokerConfigResponse),
    Code.GET_BROKER_RUNTIME_INFO: NO_FIELDS,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: Headers(offset.SearchOffsetByTimestamp, offset.OffsetResponse),
    Code.GET_MAX_OFFSET: Headers(offset.GetMaxOffset, offset.OffsetResponse),
    Code.GET_MIN_OFFSET: Headers(offset.GetMinOffset, offset.OffsetResponse),
    Code.GET_EARLIEST_MSG_STORETIME: Headers(
        offset.GetEarliestMsgStoretime, offset.GetEarliestMsgStoretimeResponse
    ),
    Code.VIEW_MESSAGE_BY_ID: Headers(query.ViewMessageById),
    Code.HEART_BEAT: Headers(None, consumer.HeartBeatResponse),
    Code.UNREGISTER_CLIENT: Headers(consumer.UnregisterClient),
    Code.CONSUMER_SEND_MSG_BACK: Headers(send.ConsumerSendMsgBack),
    Code.END_TRANSACTION: Headers(transaction.EndTransaction),
    Code.GET_CONSUMER_LIST_BY_GROUP: Headers(consumer.GetConsumerListByGroup),
    Code.LOCK_BATCH_MQ: NO_FIELDS,
    Code.UNLOCK_BATCH_MQ: NO_FIELDS,
    Code.GET_ALL_CONSUMER_OFFSET: NO_FIELDS,
    Code.GET_ALL_DELAY_OFFSET: NO_FIELDS,
    Code.CHECK_CLIENT_CONFIG: NO_FIELDS,
    Code.GET_TIMER_CHECK_POINT: NO_FIELDS,
    Code.GET_TIMER_METRICS: NO_FIELDS,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: NO_FIELDS,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Headers(
        group.GetAllSubscriptionGroupConfig, group.GetAllSubscriptionGroupConfigResponse
    ),
    Code.GET_TOPIC_STATS_INFO: Headers(topic.GetTopicStatsInfo),
    Code.GET_CONSUMER_CONNECTION_LIST: Headers(consumer.GetConsumerConnectionList),
    Code.GET_PRODUCER_CONNECTION_LIST: Headers(consumer.GetProducerConnectionList),
    Code.DELETE_SUBSCRIPTIONGROUP: Headers(group.DeleteSubscriptionGroup),
    Code.GET_CONSUME_STATS: Headers(group.GetConsumeStats),
    Code.DELETE_TOPIC_IN_BROKER: Headers(topic.DeleteTopicInBroker),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: Headers(consumer.ResetOffset),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Headers(consumer.GetConsumerStatus),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: NO_FIELDS,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: Headers(topic.QueryTopicConsumeByWho),
    Code.QUERY_CONSUME_TIME_SPAN: Headers(topic.QueryConsumeTimeSpan),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: NO_FIELDS,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: NO_FIELDS,
    Code.GET_CONSUMER_RUNNING_INFO: Headers(consumer.GetConsumerRunningInfo),
    Code.QUERY_CORRECTION_OFFSET: Headers(group.QueryCorrectionOffset),
    Code.CONSUME_MESSAGE_DIRECTLY: Headers(consumer.ConsumeMessageDirectly),
    Code.SEND_MESSAGE_V2: Headers(
        send.SendMessageV2, send.SendMessageResponse, send.SendMessageRefusal, send.STORED_CODES
    ),
    Code.CLONE_GROUP_OFFSET: Headers(group.CloneGroupOffset),
    Code.VIEW_BROKER_STATS_DATA: Headers(admin.ViewBrokerStatsData),
    Code.CLEAN_UNUSED_TOPIC: NO_FIELDS,
    Code.GET_BROKER_CONSUME_STATS: Headers(group.GetBrokerConsumeStats),
    Code.SEND_BATCH_MESSAGE: Headers(
        send.SendMessageV2, send.SendMessageResponse, send.SendMessageRefusal, send.STORED_CODES
    ),
    Code.QUERY_CONSUME_QUEUE: Headers(query.QueryConsumeQueue),
    Code.RESUME_CHECK_HALF_MESSAGE: Headers(transaction.ResumeCheckHalfMessage),
    Code.SEND_REPLY_MESSAGE: Headers(
        send.SendMessage, send.SendMessageResponse, send.SendMessageRefusal, send.STORED_CODES
    ),
    Code.SEND_REPLY_MESSAGE_V2: Headers(
        send.SendMessageV2, send.SendMessageResponse, send.SendMessageRefusal, send.STORED_CODES
    ),
    Code.GET_ALL_PRODUCER_INFO: NO_FIELDS,
    Code.DELETE_EXPIRED_COMMITLOG: NO_FIELDS,
    Code.QUERY_TOPICS_BY_CONSUMER: Headers(group.QueryTopicsByConsumer),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: Headers(group.QuerySubscriptionByConsumer),
    Code.GET_TOPIC_CONFIG: Headers(topic.GetTopicConfig),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: Headers(group.GetSubscriptionGroupConfig),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: Headers(group.UpdateAndGetGroupForbidden),
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: Headers(admin.CheckRocksdbCqWriteProgress),
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: Headers(admin.ExportRocksdbConfigToJson),
    Code.LITE_PULL_MESSAGE: Headers(
        pull.PullMessage, pull.PullMessageResponse, pull.PullMessageRefusal, pull.PULLED_CODES
    ),
    Code.RECALL_MESSAGE: Headers(
        recall.RecallMessage, recall.RecallMessageResponse, recall.RecallMessageRefusal
    ),
    Code.QUERY_ASSIGNMENT: NO_FIELDS,
    Code.SET_MESSAGE_REQUEST_MODE: NO_FIELDS,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: NO_FIELDS,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: Headers(topic.UpdateAndCreateTopic),
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: Headers(broker.NotifyMinBrokerIdChange),
    Code.EXCHANGE_BROKER_HA_INFO: Headers(broker.ExchangeBrokerHaInfo, broker.ExchangeBrokerHaInfo),
    Code.GET_BROKER_HA_STATUS: NO_FIELDS,
    Code.RESET_MASTER_FLUSH_OFFSET: Headers(broker.ResetMasterFlushOffset),
    Code.GET_BROKER_EPOCH_CACHE: NO_FIELDS,
    Code.NOTIFY_BROKER_ROLE_CHANGED: Headers(broker.NotifyBrokerRoleChanged),
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: NO_FIELDS,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: NO_FIELDS,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: NO_FIELDS,
    Code.SET_COMMITLOG_READ_MODE: Headers(admin.SetCommitlogReadMode),
    Code.AUTH_CREATE_USER: Headers(auth.AuthUser),
    Code.AUTH_UPDATE_USER: Headers(auth.AuthUser),
    Code.AUTH_DELETE_USER: Headers(auth.AuthUser),
    Code.AUTH_GET_USER: Headers(auth.AuthUser),
    Code.AUTH_LIST_USER: Headers(auth.AuthListUser),
    Code.AUTH_CREATE_ACL: Headers(auth.AuthAcl),
    Code.AUTH_UPDATE_ACL: Headers(auth.AuthAcl),
    Code.AUTH_DELETE_ACL: Headers(auth.AuthDeleteAcl),
    Code.AUTH_GET_ACL: Headers(auth.AuthAcl),
    Code.AUTH_LIST_ACL: Headers(auth.AuthListAcl),
    Code.SWITCH_TIMER_ENGINE: Headers(admin.SwitchTimerEngine),
    Code.GET_QUEUE_RANGES: Headers(bulk.GetQueueRanges),
    Code.BULK_PULL_MESSAGE: Headers(
        bulk.BulkPullMessage,
        bulk.BulkPullMessageResponse,
        pull.PullMessageRefusal,
        bulk.BULK_PULLED_CODES,
    ),
    Code.GET_RANGE_SIZE: Headers(bulk.GetRangeSize, bulk.GetRangeSizeResponse),
    Code.FIND_UNIQUE_KEYS: Headers(bulk.FindUniqueKeys),
    Code.SEND_BATCH_ONCE: Headers(
        send.SendMessageV2,
        send.SendBatchOnceResponse,
        send.SendMessageRefusal,
        send.STORED_CODES,
    ),
    Code.POP_MESSAGE: Headers(pop.PopMessage, pop.PopMessageResponse, pop.PopMessageRefusal),
    Code.ACK_MESSAGE: Headers(pop.AckMessage),
    Code.PEEK_MESSAGE: Headers(pop.PeekMessage, pop.PopMessageResponse, pop.PopMessageRefusal),
    Code.CHANGE_MESSAGE_INVISIBLETIME: Headers(
        pop.ChangeMessageInvisibleTime, pop.ChangeMessageInvisibleTimeResponse
    ),
    Code.NOTIFICATION: Headers(pop.Notification, pop.NotificationResponse),
    Code.POLLING_INFO: Headers(pop.PollingInfo, pop.PollingInfoResponse),
    Code.POP_ROLLBACK: NO_FIELDS,
    Code.BATCH_ACK_MESSAGE: NO_FIELDS,
}

# Requests to a name server.
NAME_SERVER_COMMANDS: Mapping[Code, Headers] = {
    Code.PUT_KV_CONFIG: Headers(route.PutKvConfig),
    Code.GET_KV_CONFIG: Headers(route.GetKvConfig, route.GetKvConfigResponse),
    Code.DELETE_KV_CONFIG: Headers(route.DeleteKvConfig),
    Code.REGISTER_BROKER: Headers(broker.RegisterBroker, broker.RegisterBrokerResponse),
    Code.UNREGISTER_BROKER: Headers(broker.UnregisterBroker),
    Code.GET_ROUTEINFO_BY_TOPIC: Headers(route.GetRouteInfoByTopic),
    Code.GET_BROKER_CLUSTER_INFO: NO_FIELDS,
    Code.WIPE_WRITE_PERM_OF_BROKER: Headers(
        route.WipeWritePermOfBroker, route.WipeWritePermOfBrokerResponse
    ),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: NO_FIELDS,
    Code.DELETE_TOPIC_IN_NAMESRV: Headers(route.DeleteTopicInNamesrv),
    Code.REGISTER_TOPIC_IN_NAMESRV: Headers(route.RegisterTopicInNamesrv),
    Code.GET_KVLIST_BY_NAMESPACE: Headers(route.GetKvListByNamespace),
    Code.GET_TOPICS_BY_CLUSTER: Headers(route.GetTopicsByCluster),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: NO_FIELDS,
    Code.GET_UNIT_TOPIC_LIST: NO_FIELDS,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: NO_FIELDS,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: NO_FIELDS,
    Code.UPDATE_NAMESRV_CONFIG: NO_FIELDS,
    Code.GET_NAMESRV_CONFIG: NO_FIELDS,
    Code.QUERY_DATA_VERSION: Headers(broker.QueryDataVersion, broker.QueryDataVersionResponse),
    Code.ADD_WRITE_PERM_OF_BROKER: Headers(
        route.AddWritePermOfBroker, route.AddWritePermOfBrokerResponse
    ),
    Code.GET_BROKER_MEMBER_GROUP: Headers(broker.GetBrokerMemberGroup),
    Code.BROKER_HEARTBEAT: Headers(broker.BrokerHeartbeat),
}

# Requests of a broker to a client, over the connection that the client opened.
CLIENT_COMMANDS: Mapping[Code, Headers] = {
    Code.CHECK_TRANSACTION_STATE: Headers(transaction.CheckTransactionState),
    Code.NOTIFY_CONSUMER_IDS_CHANGED: Headers(consumer.NotifyConsumerIdsChanged),
    Code.RESET_CONSUMER_CLIENT_OFFSET: Headers(consumer.ResetOffset),
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: Headers(consumer.GetConsumerStatus),
    Code.GET_CONSUMER_RUNNING_INFO: Headers(consumer.GetConsumerRunningInfo),
    Code.CONSUME_MESSAGE_DIRECTLY: Headers(consumer.ConsumeMessageDirectly),
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT: Headers(send.PushReplyMessageToClient),
}

# Requests to the controller of a group of brokers.
CONTROLLER_COMMANDS: Mapping[Code, Headers] = {
    Code.BROKER_HEARTBEAT: Headers(broker.BrokerHeartbeat),
    Code.CONTROLLER_ALTER_SYNC_STATE_SET: Headers(
        controller.AlterSyncStateSet, controller.AlterSyncStateSetResponse
    ),
    Code.CONTROLLER_ELECT_MASTER: Headers(controller.ElectMaster, controller.ElectMasterResponse),
    Code.CONTROLLER_REGISTER_BROKER: Headers(
        controller.RegisterBrokerToController, controller.RegisterBrokerToControllerResponse
    ),
    Code.CONTROLLER_GET_REPLICA_INFO: Headers(
        controller.GetReplicaInfo, controller.GetReplicaInfoResponse
    ),
    Code.CONTROLLER_GET_METADATA_INFO: Headers(None, controller.GetMetadataInfoResponse),
    Code.CONTROLLER_GET_SYNC_STATE_DATA: NO_FIELDS,
    Code.UPDATE_CONTROLLER_CONFIG: NO_FIELDS,
    Code.GET_CONTROLLER_CONFIG: NO_FIELDS,
    Code.CLEAN_BROKER_DATA: Headers(controller.CleanBrokerData),
    Code.CONTROLLER_GET_NEXT_BROKER_ID: Headers(
        controller.GetNextBrokerId, controller.GetNextBrokerIdResponse
    ),
    Code.CONTROLLER_APPLY_BROKER_ID: Headers(
        controller.ApplyBrokerId, controller.ApplyBrokerIdResponse
    ),
}
