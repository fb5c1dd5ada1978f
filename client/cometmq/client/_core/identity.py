"""A client's identity: its id, by which brokers tell members apart, and the ids of its messages."""

from __future__ import annotations

import ipaddress
import itertools
import os
import time
from typing import TYPE_CHECKING, Final

from cometmq.client._core.names import in_namespace
from cometmq.proto.message_id import UniqueIds

if TYPE_CHECKING:
    from cometmq.client.config import ClientConfig

_numbers: Final = itertools.count()


def now_ms() -> int:
    """Return the time of the wall clock."""
    return time.time_ns() // 1_000_000


class Identity:
    """The names of a client.

    Two clients of one process have different ids, as have two on one machine: brokers would take
    members with the same id for one member, and give both the same queues.
    """

    def __init__(self, address: str, config: ClientConfig) -> None:
        number = next(_numbers)
        self.producer_group = in_namespace(config.namespace, config.producer_group)
        self.instance = config.instance or f"{os.getpid()}#{time.monotonic_ns()}{number}"
        self.client_id = f"{address}@{self.instance}"
        self.broadcast_id = f"{address}@{config.instance or 'DEFAULT'}"
        packed = ipaddress.ip_address(address.partition("%")[0]).packed
        instance = (time.monotonic_ns() & 0xFFFFFF) << 8 | number & 0xFF
        self._unique_ids = UniqueIds(packed, os.getpid(), instance)

    def new_message_ids(self, count: int) -> list[str]:
        """Make the ids of several messages from the current time."""
        return self._unique_ids.make_several(now_ms(), count)

    def new_message_id(self) -> str:
        """Make the id of a message from the current time."""
        return self._unique_ids.make(now_ms())
