"""The checksums of sealed data in an open store: checked at a start, built after the syncs.

What is sealed was synced, so for a start it is a promise, too: the log reaches as far as the last
sealed block, and each block that the start reads must match. A block may differ only if another
program has written since: what that program cut and rewrote is no longer ours, and is dropped.

Blocks are sealed on the store's own thread, in slices, from memory: they were written recently. A
block that is no longer in memory is read ahead in a thread. The sidecars are synced there, too;
until then a power cut only leaves less covered. A disk that refuses a sidecar is no reason to
refuse puts: sealing pauses until the disk takes it again.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.cold import Cold, fetch
from cometmq.store.disk.sync import Errand
from cometmq.store.errors import CorruptionError, disk_error_text
from cometmq.store.upkeep.integrity import BLOCK_SIZE, Integrity

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer
    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.disk.sync import Jobs, Syncer
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.log.segments import Segments
    from cometmq.store.starting.recovery import Start

logger = logging.getLogger(__name__)

INTEGRITY_FOLDER: Final = "integrity"
_AHEAD_SIZE: Final = 16 * BLOCK_SIZE


class _NotInMemoryError(Exception):
    """A block has to be read from the disk first."""

    def __init__(self, cold: Cold) -> None:
        super().__init__(cold)
        self.cold = cold


class SealedTail:
    """The sealed blocks of a log that nobody has open, as a start judges them."""

    def __init__(self, integrity: Integrity, segments: Segments, *, is_ours: bool) -> None:
        """`is_ours` says that no other program has written since, as far as anybody knows."""
        self._integrity = integrity
        self._segments = segments
        self._is_ours = is_ours
        self.end = 0
        """Nothing after this offset may stay sealed; known once `check` has been called."""

    @property
    def promised_to(self) -> int:
        """How far the log reached when it was sealed; 0 if another program has written since."""
        return self._integrity.sealed_end() if self._is_ours else 0

    def check(self, start: Start, end: int, *, verify: bool) -> None:
        """Check the blocks that a start reads; raise `CorruptionError` at the first damaged one."""
        first = self._segments.first_offset
        if self._is_ours:
            self.end = end
        else:
            self.end = self._integrity.last_untouched(first, end, self._segments.read)
        if not verify:
            return
        read = self._segments.read
        for block in self._integrity.blocks(self._first_block(start), self.end, read):
            if block.is_sound is False:
                raise CorruptionError(
                    *self._segments.place_of(block.physical_offset),
                    f"the {block.size} bytes from here on are not what was sealed; restore them"
                    " from a copy, or look at them with `cometmq store verify` and accept them"
                    " with `cometmq store repair --accept-blocks`",
                )

    def resume(self, start: Start) -> None:
        """Let sealing continue after the sealed part of the log that was checked."""
        first = self._first_block(start)
        self._integrity.resume(first, self.end)
        if self._integrity.next_offset == first:
            self._integrity.begin(start.scan_from)

    def _first_block(self, start: Start) -> int:
        """The block in which the start begins to read; all of it is read for its checksum."""
        offset = start.scan_from
        return offset - offset % self._segments.size % BLOCK_SIZE


class Sealing:
    """Seals what was synced, in the ticks of an open store."""

    def __init__(
        self,
        filesystem: FileSystem,
        integrity: Integrity,
        log: CommitLog,
        syncer: Syncer,
        jobs: Jobs,
        config: StoreConfig,
    ) -> None:
        self._filesystem = filesystem
        self._integrity = integrity
        self._log = log
        self._syncer = syncer
        self._config = config
        self._errand = Errand(jobs)
        self._is_refused = False  # And that was logged.
        self._synced_to = integrity.next_offset
        self._synced_ms: int | None = None

    def tick(self, now_ms: int) -> bool:
        """Seal a slice, some 100 µs; return whether there is more to seal at once."""
        if not self._config.integrity:
            return False
        integrity = self._integrity
        if integrity.next_offset < self._log.first_offset:
            integrity.begin(self._log.first_offset)
        more = False
        try:
            more = integrity.advance(self._syncer.synced_offset, self._read)
        except _NotInMemoryError as needs:
            self._read_ahead(needs.cold)
        except OSError as error:
            self._refused(error)
        else:
            self._taken()
        self._sync(now_ms)
        return more

    def _refused(self, error: OSError) -> None:
        """Log once why nothing can be sealed now; each tick tries again."""
        if not self._is_refused:
            self._is_refused = True
            logger.error(
                "no checksums could be written for sealed data, to be retried: %s",
                disk_error_text(error),
            )

    def _taken(self) -> None:
        if self._is_refused:
            self._is_refused = False
            logger.warning("sealed data gets checksums again")

    def finish(self) -> None:
        """Seal everything that is synced, and sync the checksums. Waits for the disk."""
        if not self._config.integrity:
            return
        integrity = self._integrity
        if integrity.next_offset < self._log.first_offset:
            integrity.begin(self._log.first_offset)
        with suppress(OSError):  # In that case less is covered.
            while integrity.advance(self._syncer.synced_offset, self._read_waiting):
                pass
            integrity.prepare_sync()()

    def expire(self, min_offset: int) -> None:
        """Remove the sidecars of segments that are gone."""
        with suppress(OSError):  # The next removal tries again.
            self._integrity.expire(min_offset)

    def close(self) -> None:
        """Close the sidecars; no thread may be at work any more."""
        self._integrity.close()

    def _sync(self, now_ms: int) -> None:
        if self._synced_ms is None or now_ms < self._synced_ms:
            self._synced_ms = now_ms
        sealed = self._integrity.next_offset - self._synced_to
        waited = now_ms - self._synced_ms >= self._config.checkpoint_interval_ms
        # Half of what the next start checks, so that it leaves no gap after the sealed part.
        is_due = sealed >= self._config.verify_size // 2 or (sealed > 0 and waited)
        if self._errand.is_under_way or not is_due:
            return
        self._synced_to, self._synced_ms = self._integrity.next_offset, now_ms
        sync = self._integrity.prepare_sync()

        def job() -> None:
            try:
                sync()
            except OSError as error:  # In that case less is covered.
                text = disk_error_text(error)
                logger.error("checksums of sealed data may not be on the disk: %s", text)

        self._errand.begin(job)

    def _read(self, physical_offset: int, size: int) -> Buffer:
        piece = self._log.find(physical_offset, size)
        if isinstance(piece, Cold):
            raise _NotInMemoryError(piece)
        assert piece is not None, physical_offset
        return piece

    def _read_waiting(self, physical_offset: int, size: int) -> Buffer:
        piece = self._log.find(physical_offset, size)
        if isinstance(piece, Cold):
            return fetch(self._filesystem, piece)
        assert piece is not None, physical_offset
        return piece

    def _read_ahead(self, cold: Cold) -> None:
        if self._errand.is_under_way:
            return

        def job() -> None:
            with suppress(OSError):
                fetch(self._filesystem, cold._replace(size=_AHEAD_SIZE))

        self._errand.begin(job)
