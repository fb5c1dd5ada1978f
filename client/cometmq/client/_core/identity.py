"""Who a client is: its id, which brokers tell members of a group apart by, and its message ids."""

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
    """The wall clock."""
    return time.time_ns() // 1_000_000


class Identity:
    """The names that a client goes by.

    Two clients of one process differ, as two of one machine do: brokers take members of one id for
    one member, and would give both the same queues.
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
        """Make the ids of several messages, now."""
        return self._unique_ids.make_several(now_ms(), count)

    def new_message_id(self) -> str:
        """Make the id of a message, now."""
        return self._unique_ids.make(now_ms())
