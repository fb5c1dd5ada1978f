"""The client SDK: produce and consume, async or sync, with CometMQ or Apache RocketMQ servers.

::

    from cometmq.client import Client

    async with Client("127.0.0.1:9876") as mq:
        await mq.send("orders", b"...", key="o-17", tag="paid")
"""

from __future__ import annotations

from cometmq.client._admin_dead_letters import DeadLetters
from cometmq.client._admin_transactions import PendingTransaction, TransactionAdmin
from cometmq.client._core.filters import Sql
from cometmq.client._core.outgoing import NewMessage
from cometmq.client._core.rebalance import ByConfig, ByMachineRoom, ByNearbyRoom
from cometmq.client._core.trace_format import TraceStep
from cometmq.client._dead_letters import DeadLetterFilter, DeadLettersListed, Redriven
from cometmq.client.admin import (
    Admin,
    BrokerListed,
    BrokerRoute,
    GroupListed,
    MemberListed,
    QueueProgress,
    QueueStatus,
    TopicListed,
)
from cometmq.client.client import Client
from cometmq.client.config import ClientConfig
from cometmq.client.consumer import Consumer, Message
from cometmq.client.errors import (
    BusyError,
    ClientError,
    ClosedError,
    ConnectionEndedError,
    DeadlineError,
    ForbiddenError,
    NetworkError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolViolationError,
    RefusedError,
    SettledError,
    UnreachableError,
    UsageError,
)
from cometmq.client.hooks import ConsumeWatch, Hook, Sending, SendWatch, Sent
from cometmq.client.messages import Pulled, Queue, Receipt, ReceivedMessage, Reply
from cometmq.client.reader import Reader
from cometmq.client.sync import SyncAdmin, SyncClient
from cometmq.client.sync_consumer import SyncConsumer, SyncMessage
from cometmq.client.sync_kinds import SyncDeadLetters, SyncTransactionAdmin
from cometmq.client.sync_verbs import SyncReader, SyncTransaction
from cometmq.client.transaction import Transaction

__all__ = [
    "Admin",
    "BrokerListed",
    "BrokerRoute",
    "BusyError",
    "ByConfig",
    "ByMachineRoom",
    "ByNearbyRoom",
    "Client",
    "ClientConfig",
    "ClientError",
    "ClosedError",
    "ConnectionEndedError",
    "ConsumeWatch",
    "Consumer",
    "DeadLetterFilter",
    "DeadLetters",
    "DeadLettersListed",
    "DeadlineError",
    "ForbiddenError",
    "GroupListed",
    "Hook",
    "MemberListed",
    "Message",
    "NetworkError",
    "NewMessage",
    "NotFoundError",
    "OutcomeUnknownError",
    "PendingTransaction",
    "ProtocolViolationError",
    "Pulled",
    "Queue",
    "QueueProgress",
    "QueueStatus",
    "Reader",
    "Receipt",
    "ReceivedMessage",
    "Redriven",
    "RefusedError",
    "Reply",
    "SendWatch",
    "Sending",
    "Sent",
    "SettledError",
    "Sql",
    "SyncAdmin",
    "SyncClient",
    "SyncConsumer",
    "SyncDeadLetters",
    "SyncMessage",
    "SyncReader",
    "SyncTransaction",
    "SyncTransactionAdmin",
    "TopicListed",
    "TraceStep",
    "Transaction",
    "TransactionAdmin",
    "UnreachableError",
    "UsageError",
]
