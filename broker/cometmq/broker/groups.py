"""The subscription groups of a broker: their configuration, and their file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.broker.saved_table import SavedTable
from cometmq.broker.topic_names import group_problem
from cometmq.proto.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable
from cometmq.store.tables import SUBSCRIPTION_GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.config import BrokerConfig
    from cometmq.store.filesystem import FileSystem

_SECTION: Final = "subscriptionGroupTable"


class Groups:
    """All subscription groups of one broker, by name."""

    def __init__(
        self, config: BrokerConfig, filesystem: FileSystem, *, on_unsaved: Callable[[], None]
    ) -> None:
        folder = f"{config.store_path}/config"
        self.file = SavedTable(filesystem, folder, SUBSCRIPTION_GROUPS, on_change=on_unsaved)
        self.data_version = DataVersion()
        self._config = config
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self.find = self._groups.get

    def load(self) -> None:
        """Read the file; `StoreFormatError` when it is damaged."""
        table = SubscriptionGroupTable.from_tree(self.file.load())
        self.data_version = table.data_version
        self.file.set_member("dataVersion", table.data_version)
        for topic, forbidden in table.forbidden_table.items():
            self.file.put("forbiddenTable", topic, forbidden)
        for config in table.subscription_group_table.values():
            self._groups[config.group_name] = config
            self.file.put(_SECTION, config.group_name, config)
        self.file.loaded()

    def find_or_make(self, name: str, now_ms: int) -> SubscriptionGroupConfig | None:
        """Find a group, or make it where that is allowed; None otherwise."""
        group = self._groups.get(name)
        if group is not None:
            return group
        config = self._config
        if not config.auto_create_subscription_group or len(self._groups) >= config.groups_max:
            return None
        if group_problem(name) is not None:
            return None
        return self.put(SubscriptionGroupConfig(group_name=name), now_ms)

    def put(self, group: SubscriptionGroupConfig, now_ms: int) -> SubscriptionGroupConfig:
        """Make a group, or change it."""
        self._groups[group.group_name] = group
        version = self.data_version
        self.data_version = msgspec.structs.replace(
            version, counter=version.counter + 1, timestamp=now_ms
        )
        self.file.set_member("dataVersion", self.data_version)
        self.file.put(_SECTION, group.group_name, group)
        return group
