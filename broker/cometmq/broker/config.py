"""Every setting of a broker: its default, its unit and why it is what it is."""

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
    """Masters and slaves of one name hold the same messages."""
    cluster_name: str = "DefaultCluster"
    """Brokers of one cluster are administered together."""
    broker_id: int = 0
    """0, a master: slaves, of other numbers, are not there yet."""
    bind_address: str = "127.0.0.1"
    """Nobody but this machine, unless told otherwise: there is no authentication yet."""
    advertise_address: str = "127.0.0.1"
    """The numeric address that clients are told: in routes, and in each message's offset id."""
    listen_port: int = 10911
    """Apache's port; clients of old also use the port two below. 0 is any free one, alone."""
    insecure: bool = False
    """Whether an address that others reach may be bound without authentication."""
    metrics_port: int | None = None
    """Where the metrics page is, on the same address; 0 is any free one, `off` is nowhere."""
    nameservers: str = ""
    """`host:port;host:port`: where the broker registers."""
    register_interval_ms: int = 30_000
    """Time between two registrations without a change; name servers forget a broker after four."""
    region_id: str = "DefaultRegion"
    """Stored with each message and told to its sender, for traces."""
    trace_on: bool = True
    """Whether clients are told to trace."""

    # The store.

    store_path: str = "cometmq-data"
    """The folder of the store; one process each."""
    store: StoreConfig = field(default_factory=StoreConfig)
    """What the store is set to; its `store_host` comes from the address that is advertised."""

    # Topics and groups.

    auto_create_topic_enable: bool = True
    """Whether a send to an unknown topic makes it, after the template `TBW102`."""
    default_topic_queue_nums: int = 8
    """Queues of the template."""
    auto_create_subscription_group: bool = True
    """Whether a consumer of an unknown group makes it."""
    topics_max: int = 100_000
    """Topics: beyond it none is created by a send or a heartbeat."""
    topic_queues_max: int = 8_192
    """Queues of one topic: each takes memory here and in every client."""
    groups_max: int = 100_000
    """Subscription groups: beyond it none is created by itself."""
    clients_max: int = 100_000
    """Memberships of clients in producer and consumer groups."""
    heartbeat_bytes_max: int = 256 << 20
    """Bytes of the newest heartbeats, over all memberships: what they say is kept."""
    offsets_max: int = 2_000_000
    """Offsets of groups in queues."""
    broadcast_offsets_enable: bool = True
    """Whether it is noted how far members of broadcasting groups have pulled: proxies ask."""
    broadcast_offset_expiry_ms: int = 120_000
    """How long that counts of a member that is not connected any more."""
    broadcast_offset_expiry_max_ms: int = 300_000
    """And of one that is connected, but does not pull."""
    broadcast_offsets_max: int = 100_000
    """Members of them, and offsets of theirs, some 150 bytes each: beyond it none is noted."""
    locks_max: int = 200_000
    """Queues that consumers in order have locked."""
    lock_lifetime_ms: int = 60_000
    """How long such a lock lasts that is not renewed; clients renew theirs every 20 s."""
    server_side_reset_enable: bool = True
    """Whether the broker itself resets offsets; otherwise it has the group's members do it."""
    metrics_labels_max: int = 1_000
    """Topics, and pairs of topic and group, that have lines of their own on the metrics page: the
    busiest ones. A page of 1,000 each has 1.5 MB and takes 0.15 s to make, in slices."""
    flows_max: int = 100_000
    """Topics that are counted each, and pairs of topic and group: others are counted together."""

    # Sending and pulling.

    sync_flush_timeout_ms: int = 5_000
    """With sync flush: a send that waits longer is told that it is stored, not that it is safe."""
    long_polling_enable: bool = True
    """Whether a pull without a message is held as long as its client allows."""
    short_polling_ms: int = 1_000
    """How long it is held otherwise."""
    suspend_timeout_max_ms: int = 120_000
    """The longest that a client may have a pull held."""
    bulk_pull_bytes_max: int = 4 << 20
    """Bytes of one bulk pull, which our own readers of whole topics use: they are in memory while
    they are sent. One message is given whatever its size."""
    unique_keys_max: int = 128
    """Unique keys that one request may look for: each takes some 20 µs, and the disk may have to be
    waited for."""
    held_pulls_max: int = 200_000
    """Pulls held at a time, some 1 KiB each; more are answered at once."""
    enable_property_filter: bool = True
    """Whether consumers may filter by properties, with SQL92 expressions; Apache's do not unless
    told, for what it costs their store. Here it costs nothing until one does."""
    filter_expression_length_max: int = 8_192
    """Characters of an SQL92 expression: to read as many takes 50 ms, and to keep them 0.5 MB."""
    tag_expression_length_max: int = 32_767
    """Characters of an expression by tags: as long as one tag can be, for there are clients that
    ask for such."""
    filter_depth_max: int = 100
    """Levels of such an expression: how deep it stands in the interpreter's stack."""
    client_timeout_ms: int = 120_000
    """A client that is silent for longer has left its groups."""
    offset_from_zero_enable: bool = True
    """Whether a group without an offset begins a queue, that still has its first message in
    memory, at that message, whatever it asked for: as Apache's brokers do."""
    save_interval_ms: int = 5_000
    """Time between two saves of consumer offsets."""

    store_replies: bool = True
    """Whether replies are kept in their topic, too, beside being handed to who asked."""

    # Transactions.

    reject_transactions: bool = False
    """Whether half messages are refused."""
    transaction_timeout_ms: int = 6_000
    """How long a producer has for its commit or rollback before it is asked."""
    transaction_check_interval_ms: int = 30_000
    """Time between two questions about one transaction."""
    transaction_checks_max: int = 15
    """Questions that reached a producer; after as many a transaction is given up."""
    open_transactions_max: int = 1_000_000
    """Transactions at a time that are neither committed nor rolled back, some 300 bytes each."""

    # Messages that are stored once, however often they are sent.

    idempotent_window_max: int = 10_000
    """Messages of one producer among which a repeated one is found, and up to twice as many; no
    more than half of `idempotent_messages_max`."""
    idempotent_messages_max: int = 500_000
    """The same over all producers, some 250 bytes each, and 500 a producer: beyond it those are
    forgotten that have been silent for the longest."""
    idempotent_expiry_ms: int = 900_000
    """A producer that is silent for longer is forgotten."""

    config_black_list: str = ""
    """More keys, divided by `;`, that a running broker does not change."""

    limits: Limits = field(default_factory=Limits)
    """What peers can make the network layer hold."""

    def __post_init__(self) -> None:
        """Refuse settings that no broker could work with."""
        for name, port in (("listen_port", self.listen_port), ("metrics_port", self.metrics_port)):
            if port is not None and not 0 <= port <= 65535:
                raise ConfigError(f"{name}: {port} is no port")
        if problem := exposure(self.bind_address, insecure=self.insecure):
            raise ConfigError(f"bind_address: {problem}")
        if self.broker_id:
            raise ConfigError(
                f"broker_id: {self.broker_id}: only 0, a master, is there yet, and no client sends"
                " to any other; another broker has another broker_name"
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
                " nothing would be kept but the last one; 10GiB is how to write more"
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
                f"{shown} is none that a client can connect to: say which it is,"
                " as in --advertise 10.0.0.5 (advertise_address)"
            )

    @property
    def vip_port(self) -> int | None:
        """The second port, for clients of old; None where there is none."""
        return self.listen_port - 2 if self.listen_port > 2 else None
