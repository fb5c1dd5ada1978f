"""What handlers work on: the tables of one broker, and the connection of the request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from cometmq.broker.damage_met import DamageMet
from cometmq.proto.host import pack_host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.broker.acknowledgements import Acknowledgements
    from cometmq.broker.broadcasts import Broadcasts
    from cometmq.broker.changes import Changes
    from cometmq.broker.cold_reads import ColdReads
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers import Consumers, Producers
    from cometmq.broker.delays import Delays
    from cometmq.broker.filter.compiler import Loading
    from cometmq.broker.groups import Groups
    from cometmq.broker.handlers.send_answers import SendAnswers
    from cometmq.broker.handlers.sent_properties import SentProperties
    from cometmq.broker.idempotence import Idempotence
    from cometmq.broker.locks import Locks
    from cometmq.broker.long_polling import LongPolling
    from cometmq.broker.offsets import ConsumerOffsets
    from cometmq.broker.recent_rates import RecentRates
    from cometmq.broker.topics import Topics
    from cometmq.broker.traffic import Traffic
    from cometmq.broker.transactions import Transactions
    from cometmq.net import Frame, Later, Peer
    from cometmq.proto.bodies import DataVersion
    from cometmq.proto.command import Command
    from cometmq.proto.host import Host
    from cometmq.proto.message_id import UniqueIds
    from cometmq.store.message_store import MessageStore


Handlers: TypeAlias = "Mapping[int, Callable[[Command, Session], Command | Frame | Later]]"
"""Handlers by request code."""


@dataclass(slots=True, kw_only=True)
class State:
    """Everything that one broker holds. Only `Broker.configure` replaces any field."""

    config: BrokerConfig
    """The settings in force."""
    config_version: DataVersion
    """Counts the changes of the settings since the start."""
    store: MessageStore
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    consumers: Consumers
    broadcasts: Broadcasts
    producers: Producers
    locks: Locks
    idempotence: Idempotence
    acknowledgements: Acknowledgements
    delays: Delays
    transactions: Transactions
    send_answers: SendAnswers
    changes: Changes
    sent_properties: SentProperties
    long_polling: LongPolling
    cold_reads: ColdReads
    loading: Loading
    configure: Callable[[BrokerConfig], None]
    """Changes the settings in force."""
    traffic: Traffic
    recent: RecentRates
    unique_ids: UniqueIds
    address: Host
    """The address that clients connect to."""
    store_host: bytes
    """The packed address in records and in offset message ids."""
    stored_properties: bytes
    """The properties that every message gets: cluster, region, trace switch."""
    now_ms: Callable[[], int]
    """The wall clock, for records and tables."""
    elapsed_ms: Callable[[], int]
    """A clock that never goes back, for deadlines."""
    alive_ms: Callable[[], int]
    """A clock that neither goes back nor jumps, for signs of life."""
    boot_ms: int
    """When this broker started, by the wall clock."""
    damage: DamageMet = field(init=False)
    """The damage in the store that clients have come upon."""

    def __post_init__(self) -> None:
        self.damage = DamageMet(self.store, self.elapsed_ms)


class Session:
    """One connection to the broker."""

    __slots__ = ("born_host", "handlers", "peer", "state")

    def __init__(self, state: State, peer: Peer, handlers: Handlers) -> None:
        self.state = state
        self.handlers = handlers
        self.peer = peer
        self.born_host = pack_host(peer.host.address, peer.host.port)
