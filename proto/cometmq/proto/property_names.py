"""The names of message properties by Apache's convention, in its spelling.

Users must not set a `RESERVED` name directly: brokers and clients give it a meaning, and the
client's API has its own parameters for those that users may choose.
"""

from __future__ import annotations

from typing import Final

# Set by users.
KEYS: Final = "KEYS"  # blank separated; each becomes an index key
TAGS: Final = "TAGS"
DELAY: Final = "DELAY"  # delay level, 1..18
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
SHARDING_KEY: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
LITE_TOPIC: Final = "__LITE_TOPIC"

# Set by client libraries.
WAIT: Final = "WAIT"  # "false": answer before flush and replication
UNIQ_KEY: Final = "UNIQ_KEY"
EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
TRAN_MSG: Final = "TRAN_MSG"  # "true": a half message
PGROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
INSTANCE_ID: Final = "INSTANCE_ID"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
INNER_NUM: Final = "INNER_NUM"  # how many messages an inner batch holds

# Our own: a message that is stored once, however often it is sent.
IDEMPOTENT: Final = "IDEMPOTENT"  # "1", from the producer
SENT_ONCE: Final = "SENT_ONCE"  # "1", in the store

# Our own: a delayed message that was delivered.
DELAYED_AT: Final = "DELAYED_AT"  # its level and where it waited, so that it is delivered once

# Our own: a dead letter that is sent again.
REDRIVEN_FROM: Final = "REDRIVEN_FROM"  # the id of the dead letter

# Request and reply.
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
MSG_TYPE: Final = "MSG_TYPE"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"

# Set by brokers.
CLUSTER: Final = "CLUSTER"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRANS_OFFSET: Final = "TRANS_OFFSET"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_ROLL_LABEL: Final = "TIMER_ROLL_LABEL"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
INNER_BASE: Final = "INNER_BASE"  # queue offset of an inner batch's first message
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
POP_CK: Final = "POP_CK"
POP_CK_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
CRC32: Final = "__CRC32#"  # checksum of the whole record, at its end

# Set by proxies.
BORNHOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"

# From older versions and migrations.
BUYER_ID: Final = "BUYER_ID"
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
MQ2_FLAG: Final = "MQ2_FLAG"
DUP_INFO: Final = "DUP_INFO"
REDIRECT: Final = "REDIRECT"
PROPERTY_FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"

TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
"""Properties with this prefix exist only in a broker's memory and are never stored."""

FREE: Final = frozenset({CHECK_IMMUNITY_TIME_IN_SECONDS, SHARDING_KEY, TRANSIENT_PREFIX})
"""Names above that users may set like any other."""

RESERVED: Final[frozenset[str]] = (
    frozenset(
        value
        for constant, value in tuple(globals().items())
        if constant.isupper() and isinstance(value, str)
    )
    - FREE
)
"""Every name above but the free ones."""
