"""The parts of an open client, for the parts that need several of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.client._connections import Connections
    from cometmq.client._core.identity import Identity
    from cometmq.client._membership import Membership
    from cometmq.client._nameservers import NameServers
    from cometmq.client._parcels import Packing
    from cometmq.client._producer import Producer
    from cometmq.client._reading import Reading
    from cometmq.client._routes import Routes
    from cometmq.client._runtime import Runtime
    from cometmq.client.config import ClientConfig
    from cometmq.client.hooks import Hook


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one client."""

    runtime: Runtime
    config: ClientConfig
    identity: Identity
    membership: Membership
    connections: Connections
    nameservers: NameServers
    routes: Routes
    reading: Reading
    packing: Packing
    producer: Producer
    hooks: Sequence[Hook]
