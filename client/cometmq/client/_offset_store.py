"""Where a consumer begins in a queue, and where it stores its progress.

The offsets of a group that shares messages are stored by the brokers. A broadcast consumer, which
gets all messages, has its own file, in the place and format of Apache's Java client.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from cometmq.client._connections import elapsed_ms
from cometmq.client._core.checking import time_ms
from cometmq.client._core.names import RETRY_PREFIX
from cometmq.client._core.queues import from_wire, to_wire
from cometmq.client.errors import ClientError, UsageError
from cometmq.proto.bodies import ResetOffsets
from cometmq.proto.errors import BodyError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cometmq.client._core.options import ConsumeOptions
    from cometmq.client._core.process_queue import ProcessQueue
    from cometmq.client._core.queues import Queue
    from cometmq.client._parts import Parts

_log = logging.getLogger("cometmq.client")

AGAIN_MS: Final = 60_000
"""After how long an unchanged offset is committed again: a broker that went down may have lost it,
and one that was slow may have noted an older one last."""


class GroupOffsets:
    """The offsets of a group, which the brokers keep."""

    def __init__(self, parts: Parts, options: ConsumeOptions) -> None:
        self._parts = parts
        self._options = options

    async def load(self) -> None:
        """Do nothing: `first` asks the brokers for each queue."""

    async def first(self, queue: Queue) -> int:
        """Return where to begin in a queue that this member got.

        If the broker fails to answer, that is an error: a guess would skip messages or repeat all.
        A start time is honoured even where a broker would have a new group begin with the first
        message.
        """
        offset = await self._parts.reading.committed(
            queue,
            self._options.group,
            self._parts.config.timeout,
            is_exact=isinstance(self._options.start, datetime),
        )
        if offset:
            return offset
        if offset is None:
            offset = await start_offset(self._parts, self._options, queue)
        # Who gets the queue next must not begin later, even if nothing is settled until then. That
        # is so after a 0, too: as soon as the first message is gone, brokers have no offset.
        await self._parts.reading.commit(
            queue, self._options.group, offset, self._parts.config.timeout
        )
        return offset

    async def commit(self, process_queue: ProcessQueue) -> None:
        """Commit the group's offset if it changed; after a failure, a later call tries again."""
        offset = process_queue.commit_offset
        asked_ms = elapsed_ms()
        if offset == process_queue.committed and asked_ms - process_queue.committed_ms < AGAIN_MS:
            return
        timeout = self._parts.config.timeout
        try:
            await self._parts.reading.commit(
                process_queue.queue, self._options.group, offset, timeout
            )
        except ClientError as error:
            _log.info("commit of %s: %s", process_queue.queue, error)
        else:
            process_queue.committed = offset
            process_queue.committed_ms = asked_ms

    async def move(self, queue: Queue, offset: int) -> None:
        """Commit where an operator has moved the group; raise a ClientError if that fails."""
        timeout = self._parts.config.timeout
        await self._parts.reading.commit(queue, self._options.group, offset, timeout)

    async def save(self) -> None:
        """Do nothing at the end of a round of commits."""


class BroadcastOffsets:
    """The offsets of a broadcast consumer, in a file."""

    def __init__(self, parts: Parts, options: ConsumeOptions) -> None:
        self._parts = parts
        self._options = options
        folder = parts.config.broadcast_folder or Path.home() / ".rocketmq_offsets"
        self._path = Path(folder, parts.identity.broadcast_id, options.group, "offsets.json")
        self._backup = self._path.with_suffix(".json.bak")
        self._offsets: dict[Queue, int] = {}
        self._is_changed = False
        self._writing = threading.Lock()

    async def load(self) -> None:
        """Read the file, if any; an unreadable one is an error: see `GroupOffsets.first`."""
        try:
            self._offsets = await anyio.to_thread.run_sync(self._read)
        except OSError as error:
            raise UsageError(
                f"the offsets of broadcast group {self._options.group!r} cannot be read: {error};"
                " fix that, or set ClientConfig(broadcast_folder=...)"
            ) from error

    async def first(self, queue: Queue) -> int:
        """Return where to begin in a queue.

        That is saved before a message of it is handed out, as who comes back after a crash must not
        begin later.
        """
        offset = self._offsets.get(queue)
        if offset is None:
            offset = await start_offset(self._parts, self._options, queue)
            await self.move(queue, offset)
        return offset

    async def commit(self, process_queue: ProcessQueue) -> None:
        """Note this consumer's offset in a queue."""
        self._note(process_queue.queue, process_queue.commit_offset)

    async def move(self, queue: Queue, offset: int) -> None:
        """Save another offset of a queue."""
        self._note(queue, offset)
        await self.save()

    async def save(self) -> None:
        """Write the file if anything changed."""
        if self._is_changed:
            self._is_changed = False
            try:
                await anyio.to_thread.run_sync(self._write)
            except OSError as error:
                self._is_changed = True
                _log.warning(
                    "%s: the offsets cannot be written: %s; trying again", self._path, error
                )
            except BaseException:  # It may not have begun.
                self._is_changed = True
                raise

    def _note(self, queue: Queue, offset: int) -> None:
        if self._offsets.get(queue) != offset:
            self._offsets[queue] = offset
            self._is_changed = True

    def _read(self) -> dict[Queue, int]:
        for path in (self._path, self._backup):
            try:
                table = ResetOffsets.decode(path.read_bytes()).offset_table
            except FileNotFoundError:
                continue
            except BodyError as error:
                _log.warning("%s: %s; the file is ignored", path, error)
                continue
            return {from_wire(queue): offset for queue, offset in table.items()}
        return {}

    def _write(self) -> None:
        with self._writing:  # A write whose task was cancelled goes on beside the next one.
            table = {to_wire(queue): offset for queue, offset in dict(self._offsets).items()}
            self._replace(ResetOffsets(offset_table=table).encode())

    def _replace(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".json.tmp")
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):  # Java also keeps the previous file: see `_read`.
            self._path.replace(self._backup)
        new.replace(self._path)


class Places:
    """Where a member begins in its queues: where its group is, or where an operator wants it."""

    def __init__(self, offsets: GroupOffsets | BroadcastOffsets) -> None:
        self._offsets = offsets
        self.wanted: dict[Queue, int] = {}
        """Where an operator wants it, until the member begins there or another gets the queue."""

        self._ours: dict[Queue, range] = {}  # what the member may have committed there before that
        self._beginning: Queue | None = None

    async def first(self, queue: Queue) -> int:
        """Return where to begin in a queue."""
        self._beginning = queue
        try:
            offset = await self._offsets.first(queue)
            if offset not in self._ours.get(queue, (offset,)):
                self.wanted.pop(queue, None)  # It is there, or another member went on meanwhile.
            while (wanted := self.wanted.get(queue)) is not None:
                await self._offsets.move(queue, wanted)
                offset = wanted
                if self.wanted.get(queue) == wanted:
                    del self.wanted[queue]
            self._ours.pop(queue, None)
        finally:
            self._beginning = None
        return offset

    async def move(self, offsets: Mapping[Queue, int], had: Mapping[Queue, ProcessQueue]) -> None:
        """Have these queues, of those that the member had or just begins with, begin elsewhere."""
        for queue, process_queue in had.items():
            self._ours[queue] = range(process_queue.committed, process_queue.commit_offset + 1)
        ours = [queue for queue in offsets if queue in had or queue == self._beginning]
        for queue in ours:
            self.wanted[queue] = offsets[queue]
        for queue in ours:
            try:  # At once, as another member may get the queue.
                await self._offsets.move(queue, offsets[queue])
            except ClientError as error:
                _log.info("reset of %s: %s; trying again", queue, error)

    def keep(self, topic: str, mine: Collection[Queue]) -> None:
        """Forget the queues of a topic that belong to other members now."""
        for queue in [each for each in self.wanted if each.topic == topic and each not in mine]:
            del self.wanted[queue]


async def start_offset(parts: Parts, options: ConsumeOptions, queue: Queue) -> int:
    """Return where to begin in a queue without a stored offset."""
    timeout = parts.config.timeout
    if isinstance(options.start, datetime) and not queue.topic.startswith(RETRY_PREFIX):
        return await parts.reading.offset_at(queue, time_ms(options.start), timeout)
    if options.start == "first" or queue.topic.startswith(RETRY_PREFIX):
        # The messages of a retry topic were sent back by this group, so it needs all of them.
        return await parts.reading.first_offset(queue, timeout)
    return await parts.reading.end_offset(queue, timeout)
