"""The subscription groups of a broker: configuration, topics they may not read, and their file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import LimitError
from cometmq.broker.saved_table import SavedTable, counted_up
from cometmq.broker.topic_names import group_problem
from cometmq.proto.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable
from cometmq.store.tables import SUBSCRIPTION_GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.broker.config import BrokerConfig
    from cometmq.store.disk.filesystem import FileSystem

_SECTION: Final = "subscriptionGroupTable"
_FORBIDDEN: Final = "forbiddenTable"
_READ: Final = 1 << 2
"""The bit of a forbidden topic that forbids reading."""

SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"
"""Groups with this prefix are created whatever the settings say."""

OWN_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
"""The groups that every broker has."""


class Groups:
    """All subscription groups of one broker, by name."""

    def __init__(
        self, config: BrokerConfig, filesystem: FileSystem, *, on_unsaved: Callable[[], None]
    ) -> None:
        folder = f"{config.store_path}/config"
        self.file = SavedTable(filesystem, folder, SUBSCRIPTION_GROUPS, on_change=on_unsaved)
        self.data_version = DataVersion()
        self.config = config
        """The settings in force: `Broker.configure` replaces them."""
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self.find = self._groups.get

    def load(self, now_ms: int) -> None:
        """Read the file, and add those of the broker's own groups that are missing.

        Raises a `StoreFormatError` if the file is damaged.
        """
        table = self.file.load(SubscriptionGroupTable.from_tree)
        self.data_version = table.data_version
        self.file.set_member("dataVersion", table.data_version)
        for group, topics in table.forbidden_table.items():
            self._forbidden[group] = dict(topics)
            self.file.put(_FORBIDDEN, group, topics)
        for config in table.subscription_group_table.values():
            self._groups[config.group_name] = config
            self.file.put(_SECTION, config.group_name, config)
        self.file.loaded()
        for name in OWN_GROUPS:
            if name not in self._groups:
                self.put(SubscriptionGroupConfig(group_name=name), now_ms)

    def configs(self) -> Mapping[str, SubscriptionGroupConfig]:
        """Return all configurations by name."""
        return self._groups

    def __len__(self) -> int:
        return len(self._groups)

    def find_or_make(self, name: str, now_ms: int) -> SubscriptionGroupConfig | None:
        """Find a group, or create it if that is allowed; return None otherwise.

        Raises a `LimitError` beyond `groups_max`.
        """
        group = self._groups.get(name)
        if group is not None:
            return group
        config = self.config
        is_allowed = config.auto_create_subscription_group or name.startswith(SYSTEM_PREFIX)
        if not is_allowed or group_problem(name) is not None:
            return None
        if len(self._groups) >= config.groups_max:
            raise LimitError("groups_max", config.groups_max, "subscription groups")
        return self.put(SubscriptionGroupConfig(group_name=name), now_ms)

    def put(self, group: SubscriptionGroupConfig, now_ms: int) -> SubscriptionGroupConfig:
        """Create or change a group."""
        self._groups[group.group_name] = group
        self._count(now_ms)
        self.file.put(_SECTION, group.group_name, group)
        return group

    def discard(self, name: str, now_ms: int) -> None:
        """Remove a group, if there is one, with the list of what it may not read."""
        self._forbidden.pop(name, None)
        self.file.discard(_FORBIDDEN, name)
        if self._groups.pop(name, None) is not None:
            self._count(now_ms)
            self.file.discard(_SECTION, name)

    # Topics that a group may not read.

    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """Return what is forbidden, as a set of bits by group and topic."""
        return self._forbidden

    def may_read(self, group: str, topic: str) -> bool:
        """Whether a group may read a topic: it may unless that was forbidden."""
        topics = self._forbidden.get(group)
        return topics is None or not topics.get(topic, 0) & _READ

    def allow(self, group: str, topic: str, now_ms: int) -> None:
        """Let a group read a topic again."""
        topics = self._forbidden.get(group)
        if topics is not None and topics.pop(topic, None) is not None:
            self._save_forbidden(group, now_ms)

    def forbid(self, group: str, topic: str, now_ms: int) -> bool:
        """Forbid a group from reading a topic; return False if too much is forbidden already.

        The limits are `groups_max` groups, and `topics_max` topics for each.
        """
        topics = self._forbidden.get(group)
        if topics is None:
            if len(self._forbidden) >= self.config.groups_max:
                return False
            topics = self._forbidden[group] = {}
        elif topic not in topics and len(topics) >= self.config.topics_max:
            return False
        topics[topic] = topics.get(topic, 0) | _READ
        self._save_forbidden(group, now_ms)
        return True

    def _save_forbidden(self, group: str, now_ms: int) -> None:
        self._count(now_ms)
        if self._forbidden[group]:
            self.file.put(_FORBIDDEN, group, dict(self._forbidden[group]))
        else:
            del self._forbidden[group]
            self.file.discard(_FORBIDDEN, group)

    def _count(self, now_ms: int) -> None:
        self.data_version = counted_up(self.data_version, now_ms)
        self.file.set_member("dataVersion", self.data_version)
