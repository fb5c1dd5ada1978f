"""Routes of topics (105), lists of brokers (106, 901), and tables of texts (28, 103, 219)."""

from __future__ import annotations

import msgspec

from cometmq.proto.bodies.topics import TopicQueueMappingInfo
from cometmq.proto.body import Body, empty_table, preset
from cometmq.proto.fastjson import escape_beyond_bmp
from cometmq.proto.header import I32, I64

_ENCODER = msgspec.json.Encoder()


class BrokerData(Body):
    """The addresses of one broker name; the master has id 0."""

    broker_addrs: dict[I64, str] = empty_table()
    broker_name: str
    cluster: str | None = None
    enable_acting_master: bool = preset(False)
    zone_name: str | None = None


class QueueData(Body):
    """The number of queues of a topic on one broker."""

    broker_name: str
    perm: I32 = preset(0)
    """2 is write, 4 is read."""

    read_queue_nums: I32 = preset(0)
    topic_sys_flag: I32 = preset(0)
    write_queue_nums: I32 = preset(0)


class TopicRouteData(Body):
    """The answer to 105."""

    broker_datas: tuple[BrokerData, ...] = preset(())
    filter_server_table: dict[str, tuple[str, ...]] = empty_table()
    order_topic_conf: str | None = None
    """`broker:queues;…` for an ordered topic."""

    queue_datas: tuple[QueueData, ...] = preset(())
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None
    """Only for a static topic."""

    def encode_standard(self) -> bytes:
        """Write standard JSON: broker ids are in quotes, and BMP characters are not escaped.

        For clients from version 401 (4.9.4) on, and others that ask for it; `encode` is for the
        rest.
        """
        return escape_beyond_bmp(_ENCODER.encode(self))


class ClusterInfo(Body):
    """The answer to 106."""

    broker_addr_table: dict[str, BrokerData] = empty_table()
    cluster_addr_table: dict[str, tuple[str, ...]] = empty_table()


class BrokerMembers(Body):
    """The addresses of one broker name, by broker id."""

    broker_addrs: dict[I64, str] = empty_table()
    broker_name: str | None = None
    cluster: str | None = None


class BrokerMemberGroup(Body):
    """The answer to 901."""

    broker_member_group: BrokerMembers | None = None


class KVTable(Body):
    """Texts by name: the answers to 28, 103 and 219."""

    table: dict[str, str] = empty_table()
