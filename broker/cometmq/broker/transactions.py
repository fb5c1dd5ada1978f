"""Transactions: messages that are kept aside until their producer commits or rolls back.

How it works. A half message is stored in the half queue, and remembered in memory as an `Open`. A
commit puts two records into one turn: the message in its real queue, with the place of its half
message, and an op message, which says that the half message is over. A rollback puts only the
latter. If a producer says nothing, it is asked: the half message is put again at the end of the
half queue, with a count, and a question about it goes to a member of its group. So the open
transactions stay near the end of the half queue, and the progress of that queue, kept as a group's
offsets as in Apache's stores, moves on. If the group has no member, the half message stays in its
place until there is one, or until so much follows it that it must be moved, for the next start or
because its segment is about to expire. So nothing is written while nothing happens.

Once: a repeated end finds the outcome of the first, while that is remembered. A crash between the
two records of an end leaves the first in the tail of the log, where the next start looks (see
`transaction_recovery`). A start reads both queues from their progress on, which is never ahead of
what the disk has confirmed.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.errors import LimitError, RequestError
from cometmq.broker.intact import read_intact
from cometmq.broker.stepping import Step
from cometmq.broker.transaction_records import (
    GIVEN_UP_TOPIC,
    GROUP,
    HALF_TOPIC,
    OP_TOPIC,
    Outcome,
    copy_properties,
    find_unique_id,
    op_messages,
    question,
)
from cometmq.broker.transaction_table import Open, Place, Progress, TransactionTable
from cometmq.proto.codes import ResponseCode
from cometmq.proto.errors import MessageError
from cometmq.store.disk.cold import Cold
from cometmq.store.errors import MessageIllegalError, PutRefusedError, StoreFilesError
from cometmq.store.log.turn import Origin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.broker.acknowledgements import Acknowledgements
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.consumers import Producers
    from cometmq.broker.offsets import ConsumerOffsets
    from cometmq.broker.topics import Topics
    from cometmq.net import Peer
    from cometmq.proto.command import Command
    from cometmq.proto.message import StoredMessage
    from cometmq.store.log.turn import Appended
    from cometmq.store.message_store import MessageStore
    from cometmq.store.messages.reading import Fetched

log = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000


class _Move(NamedTuple):
    """What a step does with one transaction."""

    opened: Open
    half: StoredMessage
    put: Appended | None
    """The new place of the half message; None if it could not be put again."""
    outcome: Outcome
    peer: Peer | None
    checks: int


class _Ask(NamedTuple):
    end: int
    """The end of the log after the half message in question, which can be read from then on."""
    peer: Peer
    question: Command


class Transactions:
    """All transactions of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        acknowledgements: Acknowledgements,
        producers: Producers,
        offsets: ConsumerOffsets,
        topics: Topics,
        store_host: bytes,
    ) -> None:
        self.config = config
        """The settings in force: `Broker.configure` replaces them."""
        self._store = store
        self._acknowledgements = acknowledgements
        self._producers = producers
        self._offsets = offsets
        self._store_host = store_host
        self._topics = topics
        self.table = TransactionTable()
        self._begun: list[Open] = []
        self._ending: list[Open] = []
        self._put_ops: list[tuple[int, int]] = []
        self._asks: deque[_Ask] = deque()
        self._claim_end, self._claim = 0, Progress(0, 0)
        """Progress that may be saved once the log is synced up to the first of these."""
        self.unwritten: list[Open] = []
        """Ends that an earlier process left half written; the next turn completes them."""
        self.damage: str | None = None
        """Why all transactions stand still; None if they do not."""

    def recovered(self, now_ms: int) -> None:
        """Finish the recovery, once a start has read everything."""
        given_up = self._store.queues.span(GIVEN_UP_TOPIC, 0)
        if given_up is None or given_up.max_offset:
            self._show_given_up(now_ms)  # A crash may have come before the topic was saved.

    def stand_still(self, error: StoreFilesError) -> None:
        """Stop all transactions: their queues cannot be read until they are rebuilt."""
        self.damage = f"transactions are stuck, and no new ones are accepted: {error}"
        log.error("%s", self.damage)
        self.table, self.unwritten = TransactionTable(), []
        for topic in (HALF_TOPIC, OP_TOPIC):
            self._store.queues.span(topic, 0)  # So that damaged ones are counted.

    def _show_given_up(self, now_ms: int) -> None:
        with suppress(LimitError):  # The store takes the messages without the topic.
            self._topics.make_derived(GIVEN_UP_TOPIC, 1, now_ms)

    # Called by handlers.

    def check_works(self) -> None:
        """Refuse a request about transactions while they stand still."""
        if self.damage is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, self.damage)

    def check_room(self) -> None:
        """Refuse a new transaction if too many are open, or all stand still."""
        self.check_works()
        if self.table.count >= self.config.open_transactions_max:
            raise LimitError(
                "open_transactions_max", self.config.open_transactions_max, "open transactions"
            )

    def begin(
        self,
        place: tuple[int, int],
        since_ms: int,
        born_timestamp: int,
        group: str,
        immune_ms: int,
        resumed_from: int = -1,
    ) -> None:
        """Note a half message of this turn; `resumed_from` is where it was given up, if it was."""
        offset, physical_offset = place
        opened = Open(offset, physical_offset, since_ms, group=group, resumed_from=resumed_from)
        self.table.add(opened, born_timestamp, immune_ms)
        if not self._begun:
            self._acknowledgements.join(self)
        self._begun.append(opened)

    def begin_kept(self, opened: Open) -> None:
        """Note a half message of this turn, with the message that it becomes in `kept`."""
        self.table.add_kept(opened)
        if not self._begun:
            self._acknowledgements.join(self)
        self._begun.append(opened)

    def end(self, opened: Open, outcome: Outcome) -> None:
        """End a transaction with this turn."""
        opened.end = outcome
        if not self._ending:
            self._acknowledgements.join(self)
        self._ending.append(opened)

    # The turn: see `acknowledgements.TurnPart`.

    def complete(self, now_ms: int) -> None:
        """Add the op messages for the ends of this turn."""
        ends = [(opened.offset, opened.end) for opened in (*self.unwritten, *self._ending)]
        self._put_op_messages(ends, now_ms)

    def written(self) -> None:
        """Take note that the turn is written."""
        self.table.remove_ended((*self.unwritten, *self._ending))
        self.unwritten = []
        for op_offset, highest in self._put_ops:
            self.table.note_op(op_offset, highest)
        self._forget_turn()

    def refused(self) -> None:
        """Undo everything: the turn is not written."""
        for opened in self._ending:
            opened.end = Outcome.OPEN
        for opened in self._begun:
            self.table.take_back(opened)
        self._forget_turn()

    def _forget_turn(self) -> None:
        self._begun, self._ending, self._put_ops = [], [], []

    def _put_op_messages(self, ends: Iterable[tuple[int, Outcome]], now_ms: int) -> None:
        origin = Origin(now_ms, now_ms, self._store_host)
        for body, properties, highest in op_messages(ends):
            put = self._store.put(OP_TOPIC, 0, body, properties, origin)
            self._put_ops.append((put.queue_offset, highest))

    # Asking.

    def step(self, now_ms: int, fetched: Fetched | None = None) -> Step:
        """Ask about due transactions, up to a slice of them."""
        done = Step()
        if self.unwritten:
            self._acknowledgements.join(self)
            self._acknowledgements.commit()
        halves = self._collect(now_ms, fetched, done)
        if not halves:
            return done
        # Others answer for whatever else is in this turn, and it may end a due transaction.
        self._acknowledgements.commit()
        halves = [each for each in halves if self.table.find(each[0].offset) is each[0]]
        moves: list[_Move] = []
        try:
            for opened, half in halves:
                moves.append(self._move(opened, half, now_ms))
        except PutRefusedError:  # What has been moved so far may still be written.
            done.refused = True
        try:
            self._put_op_messages([(m.opened.offset, m.outcome) for m in moves], now_ms)
            end = self._store.commit()
        except PutRefusedError:
            self._store.take_back()
            self._forget_turn()
            done.refused = True
            return done
        for op_offset, highest in self._put_ops:
            self.table.note_op(op_offset, highest)
        self._forget_turn()
        for move in moves:
            self._follow(move, end)
        done.done = len(moves)
        self.release()
        return done

    def _collect(
        self, now_ms: int, fetched: Fetched | None, done: Step
    ) -> list[tuple[Open, StoredMessage]]:
        """Read the half messages that are due, as many as fit into half a turn."""
        store, settings = self._store, self.config.store
        room = min(settings.turn_size_max, settings.unsynced_size_max) // 2
        halves: list[tuple[Open, StoredMessage]] = []
        for opened in self.table.due(self.config, now_ms):
            if self._waits_for_somebody(opened, now_ms):
                self.table.wait_unheard(opened, now_ms)
                done.done += 1
                continue
            record = store.find_record(opened.physical_offset, fetched)
            if record is None:
                if opened.physical_offset < store.first_offset:
                    self._lose(opened, "it has expired")
                elif opened.physical_offset < store.readable_offset:
                    self._lose(opened, "it is damaged: no message begins there")
                continue
            size = record.size if isinstance(record, Cold) else len(record)
            if size > room and (halves or done.cold):
                break
            room -= size
            if isinstance(record, Cold):
                done.cold.append(record)
                continue
            try:
                halves.append((opened, read_intact(record)))
            except MessageError as error:
                self._lose(opened, str(error))
        return halves

    def _lose(self, opened: Open, why: str) -> None:
        log.error("the half message at %d is given up undecided: %s", opened.physical_offset, why)
        self.table.remove(opened, Outcome.GIVEN_UP)

    def _waits_for_somebody(self, opened: Open, now_ms: int) -> bool:
        """Whether a due transaction has to wait until its group has a member."""
        store = self._store
        segment_size = self.config.store.segment_size
        is_next_to_go = (
            opened.physical_offset < store.first_offset + segment_size
            and store.end_offset - opened.physical_offset > segment_size
        )
        return not (
            opened.due_ms > now_ms  # Nobody is asked yet; it is only put again.
            or self._producers.members(opened.group)
            or self._is_given_up(opened, now_ms)
            or self.table.is_far_behind(opened)
            or is_next_to_go
        )

    def _is_given_up(self, opened: Open, now_ms: int) -> bool:
        too_old_ms = self.config.store.retention_hours * _HOUR_MS
        return (
            opened.checks >= self.config.transaction_checks_max
            or now_ms - opened.born_ms > too_old_ms
        )

    def _move(self, opened: Open, half: StoredMessage, now_ms: int) -> _Move:
        """Put a half message again at the end of its queue, or into the topic of given-up ones."""
        members = [] if opened.due_ms > now_ms else list(self._producers.members(opened.group))
        origin = Origin(
            now_ms, half.born_timestamp, half.born_host, half.sys_flag, half.reconsume_times
        )
        if self._is_given_up(opened, now_ms):
            return self._give_up(opened, half, origin)
        # A question that reaches nobody does not count.
        peer = members[opened.checks % len(members)] if members else None
        checks = opened.checks + (peer is not None)
        copied = copy_properties(half.properties_raw, opened.root, checks)
        try:
            put = self._store.put(HALF_TOPIC, 0, half.body, copied, origin, half.flag)
        except MessageIllegalError as error:  # From another broker: ours leave room for a copy.
            log.error("half message %d cannot be asked about: %s", opened.offset, error)
            return self._give_up(opened, half, origin)
        return _Move(opened, half, put, Outcome.MOVED, peer, checks)

    def _give_up(self, opened: Open, half: StoredMessage, origin: Origin) -> _Move:
        self._show_given_up(origin.now_ms)
        put = None
        try:
            put = self._store.put(
                GIVEN_UP_TOPIC, 0, half.body, half.properties_raw, origin, half.flag
            )
        except (MessageIllegalError, StoreFilesError) as error:
            log.error("half message %d is only where it was: %s", opened.offset, error)
        return _Move(opened, half, put, Outcome.GIVEN_UP, None, opened.checks)

    def _follow(self, move: _Move, end: int) -> None:
        """Repeat in memory what was done in the log."""
        opened, put = move.opened, move.put
        if put is None or move.outcome is Outcome.GIVEN_UP:
            key = (find_unique_id(move.half.properties_raw) or b"").decode("utf-8", "replace")
            log.warning(
                "transaction %s of producer group %s is given up after %d questions: it is in %s",
                key,
                opened.group,
                move.checks,
                HALF_TOPIC if put is None else GIVEN_UP_TOPIC,
            )
            self.table.remove(opened, Outcome.GIVEN_UP)
            return
        table = self.table
        table.move(opened, Place(put.queue_offset, put.physical_offset))
        opened.since_ms = put.store_timestamp
        if move.peer is not None:
            opened.checks, opened.is_asked = move.checks, True
            asked = question(move.half, put, move.checks, self._store_host, self.config)
            self._asks.append(_Ask(end, move.peer, asked))
        elif opened.due_ms > put.store_timestamp:
            table.immune_until(opened)
        else:
            opened.due_ms = 0
        table.stand(opened)

    def release(self) -> None:
        """Ask about the half messages that can be read by now; also called after a sync."""
        readable = self._store.readable_offset
        while self._asks and self._asks[0].end <= readable:
            ask = self._asks.popleft()
            ask.peer.tell(ask.question)

    # Saving.

    def flush(self) -> None:
        """Put the progress that the disk has confirmed into the table of offsets."""
        if self.unwritten:
            return
        synced = self._store.advance()
        if synced >= self._claim_end:
            self._save()
            self._claim_end, self._claim = self._store.end_offset, self.table.progress()
            if synced >= self._claim_end:
                self._save()

    def _save(self) -> None:
        if not self.table.next_offset:
            return
        with suppress(LimitError):  # Then a start reads more.
            for topic, offset in zip((HALF_TOPIC, OP_TOPIC), self._claim, strict=True):
                # Even if memory were wrong, messages yet to come must not be passed over.
                reached = min(offset, self._store.max_offset(topic, 0))
                if self._offsets.find(GROUP, topic, 0) != reached:
                    self._offsets.commit(GROUP, topic, 0, reached)
