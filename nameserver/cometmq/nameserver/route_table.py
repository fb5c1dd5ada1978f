"""Which brokers serve which topic: all the knowledge of a name server, as plain state with verbs.

There is no I/O and no clock: connections are numbers, and the caller passes the time in, in ms of
any clock that never goes back. Brokers fill the table by registering. A broker that unregisters,
falls silent or loses the connection over which it registered is removed, with its topics.

Two rules make answers cheap to cache (`answers.py`). The queues of a topic are a mapping that is
never changed, only replaced, so that a mapping is current if it is still the same object. And
`brokers_version` and `topics_version` grow with each change of what they are named after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from cometmq.nameserver.broker_table import MASTER_ID, Broker, BrokerTable, Member
from cometmq.nameserver.errors import RequestError
from cometmq.nameserver.static_topics import StaticTopics
from cometmq.proto.bodies import QueueData
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.topic import Permission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cometmq.nameserver.config import NameServerConfig
    from cometmq.proto.bodies import (
        DataVersion,
        TopicConfig,
        TopicConfigTable,
        TopicQueueMappingInfo,
    )
    from cometmq.proto.commands.broker import RegisterBroker

_WRITE = int(Permission.WRITE)
_READ_WRITE = int(Permission.READ | Permission.WRITE)


class Registered(NamedTuple):
    """The result of a registration."""

    is_applied: bool
    """False if a newer process holds the place; the answer is success all the same, as Apache's."""
    is_new: bool = False
    """Whether this address was not known before."""
    master: Member | None = None
    """For a slave: its master, if that is registered."""
    displaced: str | None = None
    """The address of another process that was registered with the same name and id, if any."""


class RouteTable:
    """The brokers and their topics, within the limits."""

    def __init__(self, config: NameServerConfig) -> None:
        self.brokers_version = 0
        self.topics_version = 0
        self._config = config
        self._members = BrokerTable()
        self._topics: dict[str, Mapping[str, QueueData]] = {}
        self._topic_broker_count = 0
        self._static = StaticTopics()

    def configure(self, config: NameServerConfig) -> None:
        """Work with other settings from now on."""
        self._config = config
        self.brokers_version += 1

    # For brokers.

    def register(
        self, header: RegisterBroker, table: TopicConfigTable, *, connection_id: int, now_ms: int
    ) -> Registered:
        """Register a broker process and, if it speaks for its broker name, the topics it serves.

        The master speaks for the name or, without one, the process with the lowest id. Raises a
        `RequestError` where Apache refuses (a first registration of a single topic) and where a
        limit would be exceeded; then nothing is applied.
        """
        broker = self._members.brokers.get(header.broker_name)
        held = None if broker is None else broker.members.get(header.broker_id)
        previous = self._members.at(header.cluster_name, header.broker_addr)
        if held is not None and _outranks(held, header.broker_addr, table.data_version):
            if previous is not None and previous.broker_name == header.broker_name:
                self._remove(previous)
            return Registered(is_applied=False)
        if held is None and len(table.topic_config_table) == 1:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "register broker failed")
        is_known = previous is not None and previous.broker_name == header.broker_name
        self._check_limits(header, table, is_more=held is None and not is_known)

        is_changed = held is None or previous is None or previous.data_version != table.data_version
        broker = self._take_in(header, table.data_version, connection_id, now_ms)
        is_acting = header.enable_acting_master is not None and header.broker_id == broker.first_id
        if header.broker_id == MASTER_ID or is_acting:
            self._take_topics(header, broker, table, is_changed)
        master = None if header.broker_id == MASTER_ID else broker.members.get(MASTER_ID)
        displaced = None if held is None or held.address == header.broker_addr else held.address
        return Registered(True, previous is None, master, displaced)

    def unregister(self, broker_name: str, address: str) -> list[Member]:
        """Remove the processes with this name and address."""
        broker = self._members.brokers.get(broker_name)
        gone = [m for m in broker.members.values() if m.address == address] if broker else []
        return self._remove_all(gone)

    def renew(self, cluster: str, address: str, now_ms: int) -> DataVersion | None:
        """Note a sign of life; return the known version of its topics, None if it is unknown."""
        member = self._members.at(cluster, address)
        if member is None:
            return None
        member.seen_ms = now_ms
        return member.data_version

    def expire(self, now_ms: int) -> list[Member]:
        """Remove the processes that have been silent for too long."""
        return self._remove_all(self._members.silent(now_ms))

    def connection_lost(self, connection_id: int) -> list[Member]:
        """Remove the processes that registered over this connection."""
        return self._remove_all(self._members.over(connection_id))

    # For operators.

    def wipe_write_permission(self, broker_name: str) -> int:
        """Clear the write bit of all topics of a broker; return how many it serves."""
        return self._permit(broker_name, lambda perm: perm & ~_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Let all topics of a broker be read and written; return how many it serves."""
        return self._permit(broker_name, lambda _: _READ_WRITE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, everywhere or from the brokers of one cluster."""
        names = None if cluster is None else set(self._members.clusters.get(cluster, ()))
        for name in list(self._topics.get(topic, ())):
            if names is None or name in names:
                self._remove_queues(topic, name)

    def register_topic(self, topic: str, queues: Sequence[QueueData]) -> bool:
        """Set a route by hand; return False, and do nothing, if one of its brokers is unknown."""
        brokers = [self._members.brokers.get(data.broker_name) for data in queues]
        self._check_name("topic", topic)
        self._check_room({topic}, len(queues), "register topic failed")
        if None in brokers:
            return False
        for broker, data in zip(brokers, queues, strict=True):
            assert broker is not None
            self._put_queues(broker, topic, data)
        return True

    # For anybody.

    @property
    def brokers(self) -> Mapping[str, Broker]:
        """The brokers by name."""
        return self._members.brokers

    @property
    def member_count(self) -> int:
        """The number of registered broker processes, masters and slaves."""
        return self._members.member_count

    @property
    def clusters(self) -> Mapping[str, Iterable[str]]:
        """The names of the brokers, by cluster."""
        return self._members.clusters

    @property
    def topics(self) -> Mapping[str, Mapping[str, QueueData]]:
        """The queues of each topic, by broker name; every topic has at least one broker."""
        return self._topics

    def mappings_of(self, topic: str) -> Mapping[str, TopicQueueMappingInfo] | None:
        """Return the queue mappings of a static topic, by broker name."""
        return self._static.of(topic)

    def topics_of_cluster(self, cluster: str) -> set[str]:
        """Return the topics that the brokers of a cluster serve."""
        names = self._members.clusters.get(cluster, ())
        return set[str]().union(*(self._members.brokers[name].topics for name in names))

    def topics_flagged(self, mask: int, flags: int) -> Iterator[str]:
        """Yield the topics whose system flags within the mask are these."""
        for topic, queues in self._topics.items():
            first = next(iter(queues.values()))
            if first.topic_sys_flag & mask == flags:
                yield topic

    # Members.

    def _take_in(
        self, header: RegisterBroker, version: DataVersion, connection_id: int, now_ms: int
    ) -> Broker:
        timeout_ms = header.heartbeat_timeout_millis
        old = self._members.brokers.get(header.broker_name)
        before = None if old is None else _shown(old)
        broker = self._members.put(
            Member(
                cluster=header.cluster_name,
                broker_name=header.broker_name,
                broker_id=header.broker_id,
                address=header.broker_addr,
                ha_address=header.ha_server_addr,
                data_version=version,
                timeout_ms=self._config.broker_silence_ms if timeout_ms is None else timeout_ms,
                connection_id=connection_id,
                seen_ms=now_ms,
            )
        )
        broker.enable_acting_master = bool(header.enable_acting_master)
        broker.zone_name = header.zone_name
        if before != _shown(broker):
            self.brokers_version += 1
        return broker

    def _remove_all(self, members: list[Member]) -> list[Member]:
        for member in members:
            self._remove(member)
        return members

    def _remove(self, member: Member) -> None:
        broker = self._members.remove(member)
        self.brokers_version += 1
        if not broker.members:
            for topic in list(broker.topics):
                self._remove_queues(topic, broker.name, broker)
        elif broker.enable_acting_master and broker.first_id > MASTER_ID:
            self._permit(broker.name, lambda perm: perm & ~_WRITE)

    # Topics.

    def _take_topics(
        self, header: RegisterBroker, broker: Broker, table: TopicConfigTable, is_changed: bool
    ) -> None:
        configs = table.topic_config_table
        mappings = table.topic_queue_mapping_info_map or {}
        if self._config.delete_topic_with_broker_registration and not mappings:
            for topic in broker.topics - configs.keys():
                self._remove_queues(topic, broker.name)
        mask = -1
        if header.broker_id != MASTER_ID and broker.enable_acting_master:
            mask = ~_WRITE  # It only serves reads until a master comes back.
        for config in configs.values():
            if is_changed or config.topic_name not in broker.topics:
                self._put_queues(broker, config.topic_name, _queues(broker.name, config, mask))
        if is_changed:
            for topic, mapping in mappings.items():
                if (
                    mapping.bname == broker.name
                    and topic in broker.topics
                    and self._static.put(topic, broker.name, mapping)
                ):
                    self.brokers_version += 1

    def _put_queues(self, broker: Broker, topic: str, data: QueueData) -> None:
        held = self._topics.get(topic)
        if held is None:
            self._topics[topic] = {broker.name: data}
            self.topics_version += 1
        elif held.get(broker.name) != data:
            self._topics[topic] = {**held, broker.name: data}
        if topic not in broker.topics:
            broker.topics.add(topic)
            self._topic_broker_count += 1

    def _remove_queues(self, topic: str, broker_name: str, gone: Broker | None = None) -> None:
        left = dict(self._topics[topic])
        del left[broker_name]
        if left:
            self._topics[topic] = left
        else:
            del self._topics[topic]
            self.topics_version += 1
        (gone or self._members.brokers[broker_name]).topics.discard(topic)
        self._topic_broker_count -= 1
        self._static.remove(topic, broker_name)

    def _permit(self, broker_name: str, change: Callable[[int], int]) -> int:
        broker = self._members.brokers.get(broker_name)
        if broker is None:
            return 0
        for topic in broker.topics:
            data = self._topics[topic][broker_name]
            self._put_queues(broker, topic, structs.replace(data, perm=change(data.perm)))
        return len(broker.topics)

    # Limits.

    def _check_limits(
        self, header: RegisterBroker, table: TopicConfigTable, *, is_more: bool
    ) -> None:
        self._check_name("brokerName", header.broker_name)
        self._check_name("clusterName", header.cluster_name)
        self._check_name("brokerAddr", header.broker_addr)
        self._check_name("haServerAddr", header.ha_server_addr)
        self._check_name("__ZONE_NAME", header.zone_name or "")
        names = {config.topic_name for config in table.topic_config_table.values()}
        self._check_name("topicName", max(names, key=len, default=""))
        if is_more and self._members.member_count >= self._config.brokers_max:
            raise self._full("register broker failed", "brokers_max")
        broker = self._members.brokers.get(header.broker_name)
        self._check_room(
            names, len(names - broker.topics if broker else names), "register broker failed"
        )
        mappings = table.topic_queue_mapping_info_map or {}
        queues = sum(
            len(mapping.curr_id_map) - self._static.size(topic, header.broker_name)
            for topic, mapping in mappings.items()
            if mapping.bname == header.broker_name  # Others are not taken.
        )
        if queues > 0 and self._static.queue_count + queues > self._config.static_queues_max:
            raise self._full("register broker failed", "static_queues_max")

    def _check_name(self, field: str, name: str) -> None:
        if len(name) > self._config.name_length_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{field} has {len(name)} characters, "
                f"name_length_max is {self._config.name_length_max}",
            )

    def _check_room(self, topics: set[str], more: int, what: str) -> None:
        if (
            len(self._topics) + len(topics) > self._config.topics_max
            and len(self._topics) + len(topics - self._topics.keys()) > self._config.topics_max
        ):
            raise self._full(what, "topics_max")
        if self._topic_broker_count + more > self._config.topic_brokers_max:
            raise self._full(what, "topic_brokers_max")

    def _full(self, what: str, setting: str) -> RequestError:
        limit: int = getattr(self._config, setting)
        return RequestError(
            ResponseCode.SYSTEM_ERROR, f"{what}: this name server's {setting} is {limit}"
        )


def _outranks(held: Member, address: str, version: DataVersion) -> bool:
    """Whether another process holds the place, by a newer decision of the controller."""
    return held.address != address and held.data_version.state_version > version.state_version


def _shown(broker: Broker) -> tuple[object, ...]:
    """Return what answers say of a broker besides its topics."""
    places = {
        broker_id: (member.cluster, member.address) for broker_id, member in broker.members.items()
    }
    return places, broker.enable_acting_master, broker.zone_name


def _queues(broker_name: str, config: TopicConfig, mask: int) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        perm=config.perm & mask,
        read_queue_nums=config.read_queue_nums,
        topic_sys_flag=config.topic_sys_flag,
        write_queue_nums=config.write_queue_nums,
    )
