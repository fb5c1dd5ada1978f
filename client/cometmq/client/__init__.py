"""The SDK: produce and consume, async and sync, with CometMQ's servers and Apache RocketMQ's.

::

    from cometmq.client import Client

    async with Client("127.0.0.1:9876") as mq:
        await mq.send("orders", b"...", key="o-17", tag="paid")
"""

from __future__ import annotations

from cometmq.client._core.filters import Sql
from cometmq.client._core.outgoing import NewMessage
from cometmq.client.client import Client
from cometmq.client.config import ClientConfig
from cometmq.client.errors import (
    BusyError,
    ClientError,
    ClosedError,
    ConnectionEndedError,
    DeadlineError,
    ForbiddenError,
    NetworkError,
    NotFoundError,
    ProtocolViolationError,
    RefusedError,
    SettledError,
    UnreachableError,
    UsageError,
)
from cometmq.client.messages import Pulled, Queue, Receipt, ReceivedMessage

__all__ = [
    "BusyError",
    "Client",
    "ClientConfig",
    "ClientError",
    "ClosedError",
    "ConnectionEndedError",
    "DeadlineError",
    "ForbiddenError",
    "NetworkError",
    "NewMessage",
    "NotFoundError",
    "ProtocolViolationError",
    "Pulled",
    "Queue",
    "Receipt",
    "ReceivedMessage",
    "RefusedError",
    "SettledError",
    "Sql",
    "UnreachableError",
    "UsageError",
]
