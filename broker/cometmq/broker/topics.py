"""The topics of a broker: their configuration, how they are created, and their file.

Each change increments the data version, so that name servers see it. It is in the file once
`saved_version` has reached `version`; a send that created its topic is answered only then.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.broker.errors import LimitError
from cometmq.broker.saved_table import SavedTable, counted_up
from cometmq.broker.topic_names import (
    CLOSED_TOPICS,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    TEMPLATE,
    topic_problem,
)
from cometmq.broker.transaction_records import half_part
from cometmq.proto.bodies import DataVersion, TopicConfig
from cometmq.store.looking.unlisted import (
    kind_of_those_here,
    queue_count,
    unlisted_text,
    unlisted_topics,
)
from cometmq.store.table_contents import topic_configs
from cometmq.store.tables import TOPICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.traffic import Flow, Traffic
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

INHERIT: Final = 1
WRITE: Final = 2
READ: Final = 4

_SECTION: Final = "topicConfigTable"
_UNIT: Final = 1
BATCH_QUEUES: Final = {"queue.type": "BatchCQ"}
"""The attributes of a topic whose batches stay one record."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, with everything precomputed that each send and pull needs to know."""

    config: TopicConfig
    queue_count: int
    """Queue ids below this can be sent to."""
    plain_queue_count: int
    """Queue ids below this can be sent to without further checks; 0 if any are needed."""
    read_queue_count: int
    """Queue ids below this can be pulled from."""
    is_closed: bool
    """Whether only the broker itself writes there."""
    is_batch: bool
    """Whether each batch stays one record: `queue.type=BatchCQ`."""
    flow: Flow
    """Counts what is put into it."""
    is_retry: bool
    """Whether it holds the messages that a group is to get again."""
    half_part: bytes
    """The part that the properties of its half messages have in common."""


def topic_of(config: TopicConfig, flow: Flow) -> Topic:
    """Make a topic from its configuration."""
    queue_count = max(config.read_queue_nums, config.write_queue_nums)
    is_closed = config.topic_name in CLOSED_TOPICS
    is_batch = config.attributes.get("queue.type") == "BatchCQ"
    is_retry = config.topic_name.startswith(RETRY_PREFIX)
    return Topic(
        config=config,
        queue_count=queue_count,
        plain_queue_count=0 if is_closed or is_batch or is_retry else queue_count,
        read_queue_count=config.read_queue_nums,
        is_closed=is_closed,
        is_batch=is_batch,
        flow=flow,
        is_retry=is_retry,
        half_part=half_part(config.topic_name),
    )


def described(config: TopicConfig) -> str:
    """Describe a topic as Apache's refusals do."""
    perm = "".join(
        letter if config.perm & bit else "-"
        for letter, bit in (("R", READ), ("W", WRITE), ("X", INHERIT))
    )
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums},"
        f" writeQueueNums={config.write_queue_nums}, perm={perm},"
        f" topicFilterType={config.topic_filter_type.value},"
        f" topicSysFlag={config.topic_sys_flag}, order={str(config.order).lower()},"
        f" attributes={{{', '.join(f'{k}={v}' for k, v in config.attributes.items())}}}]"
    )


class Topics:
    """All topics of one broker, by name."""

    def __init__(
        self,
        config: BrokerConfig,
        filesystem: FileSystem,
        traffic: Traffic,
        *,
        on_change: Callable[[str], None],
        on_unsaved: Callable[[], None],
    ) -> None:
        """Call `on_change` with each topic that changes, `on_unsaved` when the file is due."""
        folder = f"{config.store_path}/config"
        self.file = SavedTable(filesystem, folder, TOPICS, on_change=on_unsaved)
        self.data_version = DataVersion()
        self.config = config
        """The settings in force: `Broker.configure` replaces them."""
        self._traffic = traffic
        self._on_change = on_change
        self._topics: dict[str, Topic] = {}
        self._store: MessageStore | None = None
        self.find = self._topics.get
        self.system_names: Final = SYSTEM_TOPICS | {each.topic_name for each in self._own()}
        """The topics that users can neither change nor delete."""

    def load(self, now_ms: int) -> None:
        """Read the file, and add those of the broker's own topics that are missing.

        Raises a `StoreFormatError` if the file is damaged.
        """
        table = self.file.load(topic_configs)
        self.data_version = table.data_version
        for config in table.topic_config_table.values():
            self._topics[config.topic_name] = self._topic_of(config)
            self.file.put(_SECTION, config.topic_name, config)
        self.file.loaded()
        for config in self._own():
            if config.topic_name not in self._topics:
                self.put(config, now_ms)

    def is_system(self, name: str) -> bool:
        """Whether a topic is the broker's own: users can neither change nor delete it."""
        return name in self.system_names or name.startswith(SYSTEM_PREFIX)

    def _own(self) -> Iterator[TopicConfig]:
        config = self.config
        cluster, name = config.cluster_name, config.broker_name
        yield _topic("SELF_TEST_TOPIC", 1)
        if config.auto_create_topic_enable:
            yield _topic(TEMPLATE, config.default_topic_queue_nums, INHERIT | READ | WRITE)
        yield _topic("BenchmarkTest", 1024)
        yield _topic(cluster, 16, INHERIT | READ | WRITE)
        yield _topic(name, 1, INHERIT | READ | WRITE)
        yield _topic("OFFSET_MOVED_EVENT", 1)
        yield _topic("SCHEDULE_TOPIC_XXXX", 18)
        yield _topic("RMQ_SYS_TRACE_TOPIC", 1)
        yield _topic(f"{cluster}_REPLY_TOPIC", 1)
        yield _topic(f"rmq_sys_REVIVE_LOG_{cluster}", 8)
        yield _topic(f"rmq_sys_SYNC_BROKER_MEMBER_{name}", 1)
        yield _topic("RMQ_SYS_TRANS_HALF_TOPIC", 1)
        yield _topic("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1)
        yield _topic("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", 1)
        yield _topic("RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", 1)
        yield _topic("rmq_sys_wheel_timer", 1)

    def __len__(self) -> int:
        return len(self._topics)

    def configs(self) -> dict[str, TopicConfig]:
        """Return all configurations by name."""
        return {name: topic.config for name, topic in self._topics.items()}

    def names(self) -> Iterable[str]:
        """Return all names."""
        return self._topics.keys()

    def is_batch(self, name: str) -> bool | None:
        """Whether the batches of a topic stay one record; None if there is no such topic."""
        topic = self._topics.get(name)
        return None if topic is None else topic.is_batch

    def put(self, config: TopicConfig, now_ms: int) -> Topic:
        """Create or change a topic."""
        topic = self._topics[config.topic_name] = self._topic_of(config)
        self._count(now_ms)
        self.file.put(_SECTION, config.topic_name, config)
        self._on_change(config.topic_name)
        return topic

    def discard(self, name: str, now_ms: int) -> None:
        """Remove a topic, if it is there."""
        if self._topics.pop(name, None) is not None:
            self._traffic.forget_topic(name)
            self._count(now_ms)
            self.file.discard(_SECTION, name)
            self._on_change(name)

    def _topic_of(self, config: TopicConfig) -> Topic:
        return topic_of(config, self._traffic.put_flow(config.topic_name))

    def _count(self, now_ms: int) -> None:
        self.data_version = counted_up(self.data_version, now_ms)
        self.file.set_member("dataVersion", self.data_version)

    def store_opened(self, store: MessageStore) -> None:
        """Take the store, and warn of topics that have queues there but no entry in the file.

        Their file was lost. If such a topic is recreated, it gets at least the existing queues.
        """
        self._store = store
        found = unlisted_topics(
            store.queues, self._topics, store.deletions, self.config.topic_queues_max
        )
        if found:
            log.warning("%s: %s", self.config.store_path, unlisted_text(found))

    def has_batches_here(self, name: str) -> bool | None:
        """Whether a topic's queues in the store are batch queues; None if it has none at all."""
        if self._store is None:
            return None
        return kind_of_those_here(self._store.queues, name, self._store.deletions)

    def _count_with_those_here(self, name: str, wanted: int) -> int:
        here, count_max = self._store, self.config.topic_queues_max
        return wanted if here is None else max(wanted, queue_count(here.queues, name, count_max))

    def make_like(
        self, template_name: str, name: str, queue_nums: int, *, is_unit: bool, now_ms: int
    ) -> Topic | None:
        """Create the topic of a send from a template; return None if the template forbids it.

        If the store already has queues of the topic, it is created of their kind. Raises a
        `LimitError` beyond `topics_max`.
        """
        template = self._topics.get(template_name)
        # The template may be left from a time when the setting was on.
        if template_name == TEMPLATE and not self.config.auto_create_topic_enable:
            return None
        if template is None or not template.config.perm & INHERIT or topic_problem(name):
            return None
        self._check_room()
        like = template.config
        count = self._count_with_those_here(name, max(0, min(queue_nums, like.write_queue_nums)))
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=like.perm & ~INHERIT,
            topic_filter_type=like.topic_filter_type,
            topic_sys_flag=_UNIT if is_unit else 0,
            attributes=dict(BATCH_QUEUES) if self.has_batches_here(name) else {},
        )
        return self.put(config, now_ms)

    def make_derived(
        self,
        name: str,
        queue_nums: int,
        now_ms: int,
        *,
        is_order: bool | None = None,
        topic_sys_flag: int = 0,
    ) -> Topic | None:
        """Find or create the retry or dead-letter topic of a group; None if its name is illegal.

        Unless it is None, `is_order` is also set on an existing topic. Raises a `LimitError` beyond
        `topics_max`.
        """
        topic = self._topics.get(name)
        if topic is not None:
            if is_order is None or topic.config.order == is_order:
                return topic
            return self.put(msgspec.structs.replace(topic.config, order=is_order), now_ms)
        if topic_problem(name) is not None:
            return None
        self._check_room()
        config = msgspec.structs.replace(
            _topic(name, self._count_with_those_here(name, queue_nums)),
            order=bool(is_order),
            topic_sys_flag=topic_sys_flag,
        )
        return self.put(config, now_ms)

    @property
    def has_room(self) -> bool:
        """Whether one more topic can be created."""
        return len(self._topics) < self.config.topics_max

    def _check_room(self) -> None:
        if not self.has_room:
            raise LimitError("topics_max", self.config.topics_max, "topics")


def _topic(name: str, queues: int, perm: int = READ | WRITE) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
