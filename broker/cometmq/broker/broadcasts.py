"""How far each member of a broadcasting group has pulled: Apache's record of broadcast offsets.

Each member gets all messages, so its progress concerns only itself, and clients keep it themselves.
The broker records it, too, for clients that move between a broker and a proxy, which keeps nothing.
A client that comes by the other way than before, or by a proxy without an offset, is told where to
continue. The offset of the slowest member is committed for the group `g@broadcast`; a client that
comes by a proxy for the first time begins there.

The rules are exactly Apache's. A member counts while it is connected, and otherwise for
`broadcast_offset_expiry_ms` after its last pull, when its record is forgotten. The record of a
connected member is forgotten `broadcast_offset_expiry_max_ms` after its last pull. Records do not
survive the process; the committed offsets are saved like those of any group.
`broadcast_offsets_max` limits what peers can make this hold: beyond it, nothing new is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import LimitError
from cometmq.store.messages.reading import ReadStatus

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers import Consumers
    from cometmq.broker.offsets import ConsumerOffsets
    from cometmq.store.message_store import MessageStore

SCAN_INTERVAL_MS: Final = 5_000
SLICE: Final = 1_000
"""Offsets that one tick looks at: some 200 µs of the loop's time."""


@dataclass(slots=True)
class _Record:
    """The progress of one client in one topic."""

    heard_ms: int
    by_proxy: bool
    offsets: dict[int, int] = field(default_factory=dict[int, int])


class Broadcasts:
    """The records of all clients, by topic and group."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        offsets: ConsumerOffsets,
        consumers: Consumers,
    ) -> None:
        self.config = config
        self._store = store
        self._offsets = offsets
        self._consumers = consumers
        self._records: dict[tuple[str, str], dict[str, _Record]] = {}
        self._count = 0
        self._due: list[tuple[str, str]] = []
        self._next_scan_ms = 0

    def __len__(self) -> int:
        return self._count

    def update(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offset: int,
        client_id: str,
        *,
        by_proxy: bool,
        now_ms: int,
    ) -> None:
        """Note the offset that a client pulls from; the noted offset never goes back."""
        record = self._record(topic, group, client_id, by_proxy=by_proxy, now_ms=now_ms)
        if record is None:
            return
        record.heard_ms, record.by_proxy = now_ms, by_proxy
        if queue_id not in record.offsets:
            if self._count >= self.config.broadcast_offsets_max:
                return
            self._count += 1
        record.offsets[queue_id] = max(record.offsets.get(queue_id, offset), offset)

    def first_offset(
        self,
        topic: str,
        group: str,
        queue_id: int,
        client_id: str,
        asked_offset: int,
        *,
        by_proxy: bool,
        now_ms: int,
    ) -> int | None:
        """Return the offset at which a client is told to continue; None for the one it asks for."""
        if (topic, group) not in self._records:
            wants = by_proxy and asked_offset < 0
            return self._begin(None, topic, group, queue_id) if wants else None
        record = self._record(topic, group, client_id, by_proxy=by_proxy, now_ms=now_ms)
        was_by_proxy = by_proxy if record is None else record.by_proxy
        if (was_by_proxy and asked_offset < 0) or was_by_proxy != by_proxy:
            return self._begin(record, topic, group, queue_id)
        return None

    def _record(
        self, topic: str, group: str, client_id: str, *, by_proxy: bool, now_ms: int
    ) -> _Record | None:
        """Return the record of a client, creating it if there is room."""
        clients = self._records.get((topic, group), {})
        record = clients.get(client_id)
        if record is None and self._count < self.config.broadcast_offsets_max:
            self._count += 1
            record = clients[client_id] = _Record(now_ms, by_proxy)
            self._records[topic, group] = clients
        return record

    def _begin(self, record: _Record | None, topic: str, group: str, queue_id: int) -> int:
        if record is not None and record.offsets.get(queue_id, -1) >= 0:
            return record.offsets[queue_id]
        committed = self._offsets.find(committing_group(group), topic, queue_id)
        if committed is not None and committed >= 0:
            return committed
        result = self._store.read(topic, queue_id, 0, 1)
        is_young = result.status is ReadStatus.FOUND and not result.cold
        return 0 if is_young else self._store.max_offset(topic, queue_id)

    def forget_topic(self, topic: str) -> None:
        """Forget the records of a deleted topic."""
        for key in [key for key in self._records if key[0] == topic]:
            for client_id in list(self._records[key]):
                self._forget(key, client_id)
            self._records.pop(key, None)

    def tick(self, now_ms: int) -> None:
        """Every five seconds, in slices, forget old records and commit the slowest offsets."""
        if not self._due and now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + SCAN_INTERVAL_MS
            self._due = list(self._records)
        seen = 0
        while self._due and seen < SLICE:
            seen += self._scan(self._due.pop(), now_ms)

    def scan(self, now_ms: int) -> None:
        """Do the work of `tick` for all records at once."""
        for key in list(self._records):
            self._scan(key, now_ms)

    def _scan(self, key: tuple[str, str], now_ms: int) -> int:
        """Deal with one group in one topic; return how many offsets were looked at."""
        config, (topic, name) = self.config, key
        group = self._consumers.find(name)
        online = set[str]() if group is None else set(group.client_ids())
        least: dict[int, int] = {}
        seen = 1
        for client_id, record in list(self._records.get(key, {}).items()):
            seen += 1 + len(record.offsets)
            silent_ms = now_ms - record.heard_ms
            is_online = client_id in online
            if is_online or silent_ms < config.broadcast_offset_expiry_ms:
                for queue_id, offset in record.offsets.items():
                    least[queue_id] = min(least.get(queue_id, offset), offset)
            expiry_ms = config.broadcast_offset_expiry_ms
            if is_online:
                expiry_ms = config.broadcast_offset_expiry_max_ms
            if silent_ms >= expiry_ms:
                self._forget(key, client_id)
        for queue_id, offset in least.items():
            self._commit(topic, committing_group(name), queue_id, offset)
        if not self._records.get(key, True):
            del self._records[key]
        return seen

    def _commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        if self._offsets.find(group, topic, queue_id) == offset:
            return
        try:
            self._offsets.commit(group, topic, queue_id, offset)
        except LimitError:
            return  # Not logged: that is done for groups that rely on their offsets.

    def _forget(self, key: tuple[str, str], client_id: str) -> None:
        record = self._records[key].pop(client_id)
        self._count -= 1 + len(record.offsets)


def committing_group(group: str) -> str:
    """Return the group name under which the slowest offsets of a broadcasting group are kept."""
    return f"{group}@broadcast"
