"""Delivery of delayed messages: each is put into its real queue when it is due.

How it works. A message with a delay waits in the queue of its level, where `setting_aside` puts it;
the store writes its due time into its entry there. Such a queue is in order of time, or consists of
a few runs that are (`delay_runs`). Only the progress of each run is remembered, so a waiting
message costs no memory. `step` delivers due messages, a slice at a time: it reads them back, puts
them into their real queues, and moves on once these are written.

Never early: the due time in a message's entry counts, not the present delay of its level, which may
have been changed. The one exception is a message whose store time is in the future because the
clock was set back: it does not wait.

Never twice: the file with the levels' offsets is written only now and then, but each delivered
message says in a property where it waited. After an unclean stop the log is read from the place up
to which the file is complete, and `recovered` finds the deliveries since. The file never claims a
delivery that the disk has not confirmed.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.delay_delivery import DELIVERED_FROM, Delivery, delivered, log_undelivered
from cometmq.broker.delay_runs import DelayRuns
from cometmq.broker.intact import intact_messages, messages_from
from cometmq.broker.saved_table import SavedTable
from cometmq.broker.stepping import Step
from cometmq.proto.bodies import DataVersion
from cometmq.proto.properties import property_finder, remove_property
from cometmq.proto.property_names import CRC32
from cometmq.store.errors import PutRefusedError, StoreFilesError
from cometmq.store.messages.dispatch import SCHEDULE_TOPIC
from cometmq.store.messages.reading import ReadStatus
from cometmq.store.queues.consume_queue import ENTRY
from cometmq.store.table_contents import (
    AHEAD,
    LOG_OFFSET,
    SECTION,
    TAIL_OFFSET,
    delay_offsets,
)
from cometmq.store.tables import DELAY_OFFSETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.delay_runs import Run
    from cometmq.proto.message import StoredMessage
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.message_store import MessageStore
    from cometmq.store.messages.reading import Fetched
    from cometmq.store.queues.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)

SLICE: Final = 64
"""Messages of a run that one step delivers: some 500 µs of the loop's time."""
LOOK_EVERY_MS: Final = 100
"""The longest time between two looks at the clock, which may be set."""
STUCK_MS: Final = 60_000
"""How long a run rests if its next message cannot be found."""
SAVE_EVERY_SIZE: Final = 64 << 20
"""Bytes of the log after which the offsets are saved even if nothing was delivered, so that a start
never has much to read."""

_RECORD_CRC: Final = CRC32.encode()
_find_origin: Final = property_finder(DELIVERED_FROM)
_PLACE: Final = re.compile(rb"(\d{1,3}):(\d{1,18})")


class _Delivered(NamedTuple):
    """Deliveries that the disk has not confirmed yet."""

    begin: int
    """The end of the log before them."""
    end: int
    offsets: dict[Run, int]


class Delays:
    """All delayed messages of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        filesystem: FileSystem,
        store: MessageStore,
        end_turn: Callable[[], None],
    ) -> None:
        """`end_turn` writes what others have put into the turn, and answers them."""
        self.file = SavedTable(
            filesystem, f"{config.store_path}/config", DELAY_OFFSETS, on_change=lambda: None
        )
        self._store = store
        self._end_turn = end_turn
        self._deliver = Delivery(store).deliver
        self._runs = DelayRuns(store)
        self.offsets = self._runs.offsets
        self.follow_levels = self._runs.change
        self._stuck: dict[Run, int] = {}
        """Runs whose next message could not be found, and when that was tried."""
        self._unconfirmed: deque[_Delivered] = deque()
        self._log_offset = 0
        self._is_known_later = False
        self.damaged_levels: dict[int, str] = {}
        """Levels that deliver nothing until their queues are rebuilt, and why."""
        self.tail_offset = -1

    def load(self) -> int:
        """Read the file; return up to where in the log it has all deliveries, -1 for none."""
        saved = self.file.load(delay_offsets)
        self.file.set_member("dataVersion", DataVersion())
        self.tail_offset = saved.tail_offset
        self.damaged_levels = self._runs.damaged()
        for each in self.damaged_levels.items():
            log.error("delayed messages of level %d are stuck, and no more are accepted: %s", *each)
        self._runs.load(saved.offsets, saved.ahead)
        self.file.loaded()
        return saved.log_offset

    def keep_tail(self, offset: int) -> None:
        """Keep another offset in this file: where `idempotence` begins to read the log."""
        if offset != self.tail_offset:
            self.tail_offset = offset
            self.file.set_member(TAIL_OFFSET, offset)

    def recovered(self, message: StoredMessage) -> None:
        """Check whether a record of the log's tail is the delivery of a delayed message."""
        origin = _find_origin(message.properties_raw)
        place = None if origin is None else _PLACE.fullmatch(origin)
        if origin is None or place is None:
            return
        queue_id, queue_offset = int(place[1]), int(place[2])
        run = self._runs.at(queue_id, queue_offset)
        if run is None or queue_id + 1 in self.damaged_levels:
            return
        # Any producer can write such a property: it counts only if everything else matches.
        waiting = messages_from(self._store, SCHEDULE_TOPIC, queue_id, queue_offset, 1)
        for waited in waiting:
            expected = remove_property(delivered(waited, origin), _RECORD_CRC)
            if expected == remove_property(message.properties_raw, _RECORD_CRC):
                self._runs.delivered(run, queue_offset)

    def start(self, log_offset: int, *, is_known_later: bool = False) -> None:
        """Begin, with all deliveries known up to `log_offset`.

        With `is_known_later`, the rest cannot be known yet, and the next start begins to look there
        again.
        """
        self._log_offset, self._is_known_later = log_offset, is_known_later
        self.file.set_member(TAIL_OFFSET, self.tail_offset)
        self._save({run: run.next_offset for run in self._runs.all})

    # Delivering

    def step(self, now_ms: int, fetched: Fetched | None = None) -> Step:
        """Deliver due messages, up to a slice of each run.

        `fetched` is the data that the step before asked for.
        """
        done = Step()
        due: list[tuple[Run, StoredMessage]] = []
        for run in self._runs.all:
            if now_ms < run.due_ms <= now_ms + run.delay_ms or self._is_stuck(run, now_ms):
                continue
            try:
                self._collect(run, now_ms, fetched, done, due)
            except StoreFilesError as error:
                self._rest(run, run.next_offset, now_ms, error)
        if not due:
            next_ms = min((run.due_ms for run in self._runs.all), default=now_ms + LOOK_EVERY_MS)
            done.wait_ms = max(0, min(next_ms - now_ms, LOOK_EVERY_MS))
            return done
        # Others answer for whatever else is in this turn.
        self._end_turn()
        begin = self._store.end_offset
        offsets: dict[Run, int] = {}
        try:
            for run, message in due:
                if run not in self._stuck:
                    self._try(run, message, now_ms, offsets)
        except PutRefusedError:
            done.refused = True
        try:
            end = self._store.commit()
        except PutRefusedError:
            done.refused = True
            return done
        for run, offset in offsets.items():
            done.done += offset - run.next_offset
            run.next_offset = offset
        self._unconfirmed.append(_Delivered(begin, end, offsets))
        return done

    def _try(self, run: Run, message: StoredMessage, now_ms: int, offsets: dict[Run, int]) -> None:
        """Deliver a message; if its queue is damaged it waits, but messages after it do not."""
        try:
            self._deliver(run.queue_id, message, now_ms)
        except StoreFilesError as error:
            self._rest(run, message.queue_offset, now_ms, error)
            self._runs.divide(run, message.queue_offset + 1)
        else:
            offsets[run] = message.queue_offset + 1

    def _rest(self, run: Run, offset: int, now_ms: int, error: StoreFilesError) -> None:
        self._stuck[run] = now_ms
        text = "level %d delivers nothing from message %d on, retried in %d s: %s"
        log.error(text, run.queue_id + 1, offset, STUCK_MS // 1000, error)

    def _is_stuck(self, run: Run, now_ms: int) -> bool:
        """Whether the next message of a run could not be found a short time ago."""
        since_ms = self._stuck.get(run)
        if since_ms is None:
            return False
        if since_ms <= now_ms < since_ms + STUCK_MS:
            return True
        del self._stuck[run]
        return False

    def _collect(
        self,
        run: Run,
        now_ms: int,
        fetched: Fetched | None,
        done: Step,
        due: list[tuple[Run, StoredMessage]],
    ) -> None:
        """Collect the due messages of a run."""
        queue = self._runs.queue(run.queue_id)
        if queue is None:
            run.due_ms = now_ms + run.delay_ms
            return
        if fetched is None and queue.min_cached < 0:
            result = self._store.read(SCHEDULE_TOPIC, run.queue_id, run.next_offset, SLICE)
            done.cold.extend(result.cold)
            return
        end = queue.max_offset if run.end is None else min(run.end, queue.max_offset)
        offset = run.next_offset = min(max(run.next_offset, queue.min_offset), end)
        if offset >= end:
            if queue.next_offset == queue.max_offset:  # Nor is anything on its way to the disk.
                run.due_ms = now_ms + run.delay_ms
            return
        times = self._due_times(run, queue, min(end - offset, SLICE), now_ms, fetched, done)
        if times:
            self._read_due(run, times, now_ms, fetched, done, due)

    def _read_due(
        self,
        run: Run,
        times: list[int],
        now_ms: int,
        fetched: Fetched | None,
        done: Step,
        due: list[tuple[Run, StoredMessage]],
    ) -> None:
        """Read the next messages of a run, whose due times are `times`."""
        offset = run.next_offset
        end = offset + len(times)
        while offset < end:  # Like a client's, one read returns half a slice.
            result = self._store.read(
                SCHEDULE_TOPIC, run.queue_id, offset, end - offset, fetched=fetched
            )
            if result.status is ReadStatus.FOUND and not result.cold:
                messages, damage = intact_messages(result, offset)
                come = list(_come(run, messages, times, now_ms))
                due += [(run, each) for each in come]
                offset = result.next_begin_offset
                if damage is None and messages and len(come) == len(messages):
                    continue
                if damage is not None and damage.queue_offset == run.next_offset:
                    log_undelivered(run.queue_id, damage.queue_offset, damage.reason)
                    run.next_offset += 1
                    done.done += 1
            elif offset > run.next_offset:  # The next step begins with this.
                pass
            elif result.cold:
                done.cold.extend(result.cold)
            else:  # Expired, or the end of a file of the queue.
                run.next_offset = result.next_begin_offset
            return

    def _due_times(
        self,
        run: Run,
        queue: ConsumeQueue,
        count: int,
        now_ms: int,
        fetched: Fetched | None,
        done: Step,
    ) -> list[int]:
        """Return the due times of a run's next messages, up to the first that surely waits."""
        offset = run.next_offset
        entries = queue.read_cached(offset, count) if fetched is None else queue.read(offset, count)
        if entries is None:
            result = self._store.read(SCHEDULE_TOPIC, run.queue_id, offset, count)
            done.cold.extend(result.cold)
            return []
        if not entries:
            queue.check_files()
        times: list[int] = []
        for _, _, due_ms in ENTRY.iter_unpack(entries):
            if now_ms < due_ms <= now_ms + run.delay_ms:
                if not times:
                    run.due_ms = due_ms
                break
            times.append(due_ms)
        return times

    # Saving

    def flush(self, *, is_last: bool = False) -> None:
        """Put the deliveries confirmed by the disk into the table; with `is_last` in any case."""
        synced = self._store.advance()
        confirmed: dict[Run, int] = {}
        while self._unconfirmed and self._unconfirmed[0].end <= synced:
            confirmed.update(self._unconfirmed.popleft().offsets)
        known = min(synced, self._unconfirmed[0].begin) if self._unconfirmed else synced
        known = self._log_offset if self._is_known_later else known
        if confirmed or is_last or known - self._log_offset >= SAVE_EVERY_SIZE:
            self._log_offset = known
            self._save(confirmed)

    def _save(self, confirmed: dict[Run, int]) -> None:
        for run, offset in confirmed.items():
            run.saved_offset = offset
        self._runs.forget_done()
        offsets, ahead = self._runs.saved()
        for level, offset in offsets.items():
            self.file.put(SECTION, level, offset)
        self.file.set_member(AHEAD, ahead)
        self.file.set_member(LOG_OFFSET, self._log_offset)


def _come(
    run: Run, messages: list[StoredMessage], times: list[int], now_ms: int
) -> Iterator[StoredMessage]:
    """Yield a run's next messages as far as they are due."""
    for message in messages:
        due_ms = times[message.queue_offset - run.next_offset]
        if due_ms > now_ms >= message.store_timestamp:
            run.due_ms, run.delay_ms = due_ms, due_ms - message.store_timestamp
            return
        yield message
