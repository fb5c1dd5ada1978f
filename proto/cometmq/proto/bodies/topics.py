"""Topics: their configuration (18, 21, 351), lists of their names, and static topics (513)."""

from __future__ import annotations

from cometmq.proto.bodies.data_version import DataVersion
from cometmq.proto.bodies.enums import TopicFilterType
from cometmq.proto.body import Body, empty_table, preset
from cometmq.proto.header import I32, I64


class TopicConfig(Body):
    """The configuration of one topic on one broker."""

    attributes: dict[str, str] = empty_table()
    order: bool = preset(False)
    perm: I32 = preset(6)
    """2 is write, 4 is read."""

    read_queue_nums: I32 = preset(16)
    topic_filter_type: TopicFilterType = preset(TopicFilterType.SINGLE_TAG)
    topic_name: str
    topic_sys_flag: I32 = preset(0)
    write_queue_nums: I32 = preset(16)


class LogicQueueMappingItem(Body):
    """A part of a static topic's logical queue, with the broker and the queue where it is."""

    bname: str | None = None
    end_offset: I64 = preset(-1)
    gen: I32 = preset(0)
    logic_offset: I64 = preset(0)
    queue_id: I32 = preset(0)
    start_offset: I64 = preset(0)
    time_of_end: I64 = preset(-1)
    time_of_start: I64 = preset(-1)


class TopicQueueMappingInfo(Body):
    """A static topic as a broker reports it to name servers: logical to physical queue ids."""

    bname: str | None = None
    curr_id_map: dict[I32, I32] = empty_table()
    dirty: bool = preset(False)
    epoch: I64 = preset(0)
    scope: str | None = None
    topic: str | None = None
    total_queues: I32 = preset(0)


class TopicQueueMappingDetail(Body):
    """513: a static topic's mapping on one broker."""

    bname: str | None = None
    curr_id_map: dict[I32, I32] = empty_table()
    dirty: bool = preset(False)
    epoch: I64 = preset(0)
    hosted_queues: dict[I32, tuple[LogicQueueMappingItem, ...]] = empty_table()
    scope: str | None = None
    topic: str | None = None
    total_queues: I32 = preset(0)


class TopicConfigAndQueueMapping(TopicConfig):
    """The answer to 351: a topic's configuration and, if it is static, its mapping."""

    mapping_detail: TopicQueueMappingDetail | None = None


class TopicConfigTable(Body):
    """The answer to 21 and the core of a registration (103): all topics of a broker.

    4.9 does not know the mappings and leaves their members out.
    """

    data_version: DataVersion = preset(DataVersion())
    mapping_data_version: DataVersion | None = None
    topic_config_table: dict[str, TopicConfig] = empty_table()
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] | None = None
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] | None = None


class TopicConfigList(Body):
    """18: topics to create or change."""

    topic_config_list: tuple[TopicConfig, ...] = preset(())


class TopicList(Body):
    """Names of topics; with 304 and 343 also the address of a broker."""

    broker_addr: str | None = None
    topic_list: tuple[str, ...] = preset(())
