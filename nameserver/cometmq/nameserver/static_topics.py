"""The brokers and physical queues behind the logical queues of static topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.proto.bodies import TopicQueueMappingInfo


class StaticTopics:
    """The mappings that brokers registered, by topic and broker name.

    `queue_count` counts their logical queues, for which there is a limit.
    """

    def __init__(self) -> None:
        self.queue_count = 0
        self._mappings: dict[str, Mapping[str, TopicQueueMappingInfo]] = {}

    def put(self, topic: str, broker_name: str, mapping: TopicQueueMappingInfo) -> bool:
        """Set a broker's mapping of a topic; return whether it has changed."""
        held = self._mappings.get(topic, {}).get(broker_name)
        if held == mapping:
            return False
        self.queue_count += len(mapping.curr_id_map) - self.size(topic, broker_name)
        self._mappings[topic] = {**self._mappings.get(topic, {}), broker_name: mapping}
        return True

    def size(self, topic: str, broker_name: str) -> int:
        """Return the number of logical queues in a broker's mapping of a topic."""
        held = self._mappings.get(topic, {}).get(broker_name)
        return 0 if held is None else len(held.curr_id_map)

    def remove(self, topic: str, broker_name: str) -> None:
        """Forget a broker's mapping of a topic, if there is one."""
        self.queue_count -= self.size(topic, broker_name)
        held = self._mappings.get(topic, {})
        if broker_name in held:
            left = {name: mapping for name, mapping in held.items() if name != broker_name}
            if left:
                self._mappings[topic] = left
            else:
                del self._mappings[topic]

    def of(self, topic: str) -> Mapping[str, TopicQueueMappingInfo] | None:
        """Return the mappings of a topic by broker name; None for a topic that is not static."""
        return self._mappings.get(topic)
