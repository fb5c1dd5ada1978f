"""The store as the crash model drives it: one thread, and the disk's work done step by step."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tests.crash.oracle import BATCH_TOPIC, ROOT
from tests.store.records import messages_in

from cometmq.proto.sysflag import SysFlag
from cometmq.store.errors import StoreFilesError
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.cold import Cold
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.log.turn import Appended

HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"


class Subject:
    """One open store."""

    def __init__(
        self, disk: FileSystem, config: StoreConfig, now_ms: int, root: str = ROOT
    ) -> None:
        self._config = config
        self._store = MessageStore.open(
            root,
            config,
            now_ms=now_ms,
            filesystem=disk,
            is_batch_topic=lambda topic: topic == BATCH_TOPIC,
            threads=False,
        )

    @property
    def end_offset(self) -> int:
        """The end of the log."""
        return self._store.end_offset

    @property
    def first_offset(self) -> int:
        """Where the log begins: everything before it was removed."""
        return self._store.first_offset

    @property
    def kept_size(self) -> int:
        """Bytes of the segments that the log holds."""
        return self._store.segments.end_offset - self._store.first_offset

    @property
    def synced_offset(self) -> int:
        """How far the store says that the log is synced."""
        return self._store.advance()

    @property
    def has_failed(self) -> bool:
        """Whether the store says that this process must end."""
        return self._store.failure is not None

    def put(
        self, topic: str, queue_id: int, body: bytes, properties: dict[str, str], now_ms: int
    ) -> Appended:
        """Put one message."""
        text = "".join(f"{name}\1{value}\2" for name, value in properties.items())
        flag = int(SysFlag.INNER_BATCH) if "INNER_NUM" in properties else 0
        origin = Origin(now_ms, now_ms, HOST, flag)
        return self._store.put(topic, queue_id, body, text.encode(), origin)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._store.delete_topics([topic])

    def commit(self) -> None:
        """Commit the turn."""
        self._store.commit()

    def sync(self) -> None:
        """Do the work that waits for the threads."""
        self._store.run_jobs()

    def upkeep(self, now_ms: int) -> None:
        """Do a slice of the background work."""
        self._store.tick(now_ms)

    def checkpoint(self, now_ms: int) -> None:
        """Let enough time pass for a checkpoint, and do all that it needs."""
        for passed in range(4):
            self._store.tick(now_ms + self._config.checkpoint_interval_ms * passed)
            self._store.run_jobs()

    def range_of(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The queue offsets that can be read."""
        return self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)

    def read_all(self, topic: str, queue_id: int) -> list[bytes]:
        """The bodies of all messages of a queue, as a consumer gets them."""
        bodies: list[bytes] = []
        offset, end = self.range_of(topic, queue_id)
        fetched: list[tuple[Cold, bytes]] = []
        while offset < end:
            result = self._store.read(topic, queue_id, offset, 7, fetched=fetched)
            if result.cold:
                fetched = [self._store.fetch(cold) for cold in result.cold]
                continue
            bodies += [bytes(message.body) for message in messages_in(result.slices)]
            if result.next_begin_offset <= offset:
                break
            offset = result.next_begin_offset
        return bodies

    def read_sound(self, topic: str, queue_id: int) -> dict[int, bytes]:
        """The bodies of a queue's messages that are not refused, by queue offset."""
        bodies: dict[int, bytes] = {}
        with suppress(StoreFilesError):
            offset, end = self.range_of(topic, queue_id)
            fetched: list[tuple[Cold, bytes]] = []
            while offset < end:
                try:
                    result = self._store.read(topic, queue_id, offset, 7, fetched=fetched)
                except StoreFilesError:
                    offset += 1
                    continue
                if result.cold:
                    fetched = [self._store.fetch(cold) for cold in result.cold]
                    continue
                found = messages_in(result.slices)
                bodies |= {message.queue_offset: bytes(message.body) for message in found}
                offset = max(offset + 1, result.next_begin_offset)
        return bodies

    def close(self, now_ms: int) -> bool:
        """Shut down; return whether the store calls it a clean shutdown."""
        return self._store.close(now_ms)
