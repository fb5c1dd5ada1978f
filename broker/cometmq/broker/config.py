"""Every setting of a broker: its default, its unit and the reason for it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, fields

from cometmq.broker.errors import ConfigError
from cometmq.broker.topic_names import own_topic_problem
from cometmq.net import AddressError, Limits, exposure, parse_addresses
from cometmq.proto.settings import SHOWN_MAX
from cometmq.store.config import StoreConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker."""

    # Who it is, and where.

    broker_name: str = "broker-a"
    """Masters and slaves with the same name hold the same messages."""
    cluster_name: str = "DefaultCluster"
    """Brokers of one cluster are administered together."""
    broker_id: int = 0
    """0 for a master. Slaves, which have other numbers, are not supported yet."""
    bind_address: str = "127.0.0.1"
    """By default only this machine can connect: there is no authentication yet."""
    advertise_address: str = "127.0.0.1"
    """The numeric address given to clients, in routes and in each message's offset id."""
    listen_port: int = 10911
    """Apache's port; old clients also use the port two below. 0 picks any free port, and only it
    is opened."""
    insecure: bool = False
    """Whether an address that others can reach may be bound without authentication."""
    metrics_port: int | None = None
    """Port of the metrics page, on the same address; 0 picks any free port, `off` serves none."""
    nameservers: str = ""
    """`host:port;host:port`: the name servers at which the broker registers."""
    register_interval_ms: int = 30_000
    """Time between two registrations when nothing changes; name servers forget a broker after it
    has missed four."""
    region_id: str = "DefaultRegion"
    """Stored with each message and returned to its sender, for traces."""
    trace_on: bool = True
    """Whether clients are told to trace."""

    # The store.

    store_path: str = "cometmq-data"
    """The folder of the store, which only one process may use."""
    store: StoreConfig = field(default_factory=StoreConfig)
    """The settings of the store; its `store_host` is derived from the advertised address."""

    # Topics and groups.

    auto_create_topic_enable: bool = True
    """Whether a send to an unknown topic creates it, from the template `TBW102`."""
    default_topic_queue_nums: int = 8
    """Queues of the template topic."""
    auto_create_subscription_group: bool = True
    """Whether a consumer of an unknown group creates it."""
    topics_max: int = 100_000
    """Topics; beyond this, no send or heartbeat creates one."""
    topic_queues_max: int = 8_192
    """Queues of one topic: each takes memory here and in every client."""
    groups_max: int = 100_000
    """Subscription groups; beyond this, none is created automatically."""
    clients_max: int = 100_000
    """Memberships of clients in producer and consumer groups."""
    heartbeat_bytes_max: int = 256 << 20
    """Bytes of the latest heartbeats of all memberships, whose content is kept in memory."""
    offsets_max: int = 2_000_000
    """Consumer offsets: one for each queue that a group has consumed."""
    broadcast_offsets_enable: bool = True
    """Whether the broker records how far members of broadcasting groups have pulled; proxies rely
    on it."""
    broadcast_offset_expiry_ms: int = 120_000
    """How long the record of a disconnected member counts after its last pull."""
    broadcast_offset_expiry_max_ms: int = 300_000
    """How long the record of a connected member is kept after its last pull."""
    broadcast_offsets_max: int = 100_000
    """Members of broadcasting groups and their offsets, some 150 bytes each; beyond this, nothing
    new is recorded."""
    locks_max: int = 200_000
    """Queues locked by consumers that consume in order."""
    lock_lifetime_ms: int = 60_000
    """How long such a lock lasts unless it is renewed; clients renew theirs every 20 s."""
    server_side_reset_enable: bool = True
    """Whether the broker resets offsets itself; otherwise it has the group's members do so."""
    metrics_labels_max: int = 1_000
    """How many topics, and how many pairs of topic and group, have lines of their own on the
    metrics page: the busiest ones. A page with 1,000 of each has 1.5 MB and takes 0.15 s to make,
    in slices."""
    flows_max: int = 100_000
    """Topics, and pairs of topic and group, that are counted one by one; the rest are counted
    together."""

    # Sending and pulling.

    sync_flush_timeout_ms: int = 5_000
    """With sync flush, a send that waits longer is told that it is stored, but not yet safe."""
    long_polling_enable: bool = True
    """Whether a pull that finds no message is held for as long as its client allows."""
    short_polling_ms: int = 1_000
    """How long such a pull is held if `long_polling_enable` is off."""
    suspend_timeout_max_ms: int = 120_000
    """The longest time for which a client may have a pull held."""
    bulk_pull_bytes_max: int = 4 << 20
    """Bytes of one bulk pull, as CometMQ's own readers of whole topics use it; they stay in memory
    while they are sent. The first message is returned whatever its size."""
    unique_keys_max: int = 128
    """Unique keys that one request may look up; each takes some 20 µs and may have to wait for the
    disk."""
    held_pulls_max: int = 200_000
    """Pulls held at a time, some 1 KiB each; any more are answered at once."""
    enable_property_filter: bool = True
    """Whether consumers may filter by properties, with SQL92 expressions. Apache's brokers have
    this off by default because of its cost in their store; here it costs nothing until used."""
    filter_expression_length_max: int = 8_192
    """Characters of an SQL92 expression; one of this length takes 50 ms to parse and 0.5 MB to
    keep."""
    tag_expression_length_max: int = 32_767
    """Characters of a tag expression: as long as a single tag can be, since some clients ask for
    such a tag."""
    filter_depth_max: int = 100
    """Nesting levels of an SQL92 expression: how deep it goes on the interpreter's stack."""
    client_timeout_ms: int = 120_000
    """A client that is silent for longer counts as having left its groups."""
    offset_from_zero_enable: bool = True
    """Whether a group without an offset begins a queue at its very first message, whatever it
    asked for, if that message is still in memory. Apache's brokers do so."""
    save_interval_ms: int = 5_000
    """Time between two saves of consumer offsets."""

    store_replies: bool = True
    """Whether replies are stored in their topic as well as handed to the requester."""

    # Transactions.

    reject_transactions: bool = False
    """Whether half messages are refused."""
    transaction_timeout_ms: int = 6_000
    """How long a producer has to commit or roll back before it is asked."""
    transaction_check_interval_ms: int = 30_000
    """Time between two questions about one transaction."""
    transaction_checks_max: int = 15
    """Questions that reached a producer; after this many the transaction is given up."""
    open_transactions_max: int = 1_000_000
    """Transactions open at a time, neither committed nor rolled back, some 300 bytes each."""

    # Messages that are stored only once, however often they are sent.

    idempotent_window_max: int = 10_000
    """Latest messages of each producer that are remembered to recognize a repeated one: at least
    this many, at most twice as many. Capped at half of `idempotent_messages_max`."""
    idempotent_messages_max: int = 500_000
    """The same over all producers, some 250 bytes a message and 500 a producer. Beyond it, the
    producers that have been silent longest are forgotten."""
    idempotent_expiry_ms: int = 900_000
    """A producer that is silent for longer is forgotten."""

    config_black_list: str = ""
    """More keys, separated by `;`, that a running broker does not change."""

    limits: Limits = field(default_factory=Limits)
    """The limits of what peers can make the network layer hold."""

    def __post_init__(self) -> None:
        """Refuse settings that no broker could work with."""
        for name, port in (("listen_port", self.listen_port), ("metrics_port", self.metrics_port)):
            if port is not None and not 0 <= port <= 65535:
                raise ConfigError(f"{name}: {port} is not a port")
        if problem := exposure(self.bind_address, insecure=self.insecure):
            raise ConfigError(f"bind_address: {problem}")
        if self.broker_id:
            raise ConfigError(
                f"broker_id: {self.broker_id}: only 0, a master, is supported yet, and no client"
                " sends to any other; give another broker another broker_name"
            )
        if not self.store_path:
            raise ConfigError("store_path: it is empty; name the folder of the store (--dir)")
        self._check_names()
        self._check_advertised()
        for part in (self, self.limits):
            for each in fields(part):
                value: object = getattr(part, each.name)
                counts = each.name.endswith(("_max", "_ms", "_nums", "_pause"))
                if type(value) is int and value < 1 and counts:
                    raise ConfigError(f"{each.name}: {value} is not positive")
        kept, segment_size = self.store.retention_size_max, self.store.segment_size
        if kept is not None and kept < segment_size:
            raise ConfigError(
                f"retention_size_max: {kept} bytes are less than one segment of {segment_size}:"
                " only the last one would be kept; write a larger size like 10GiB"
            )

    def _check_names(self) -> None:
        for key, name in (("broker_name", self.broker_name), ("cluster_name", self.cluster_name)):
            if problem := own_topic_problem(name):
                raise ConfigError(f"{key}: {name[:SHOWN_MAX]!r} {problem}")
        try:
            if self.nameservers:
                parse_addresses(self.nameservers)
        except AddressError as error:
            raise ConfigError(
                f"nameservers: {error}; write host:port, such as 10.0.0.1:9876, and several as"
                " 10.0.0.1:9876;10.0.0.2:9876"
            ) from None

    def _check_advertised(self) -> None:
        shown = f"advertise_address: {self.advertise_address!r}"
        try:
            address = ipaddress.ip_address(self.advertise_address)
        except ValueError:
            raise ConfigError(f"{shown} is not a numeric address") from None
        if address.is_unspecified:
            raise ConfigError(
                f"{shown} is not one that a client can connect to: give one, as in --advertise"
                " 10.0.0.5 (advertise_address)"
            )

    @property
    def vip_port(self) -> int | None:
        """The second port, for old clients; None if there is none."""
        return self.listen_port - 2 if self.listen_port > 2 else None
