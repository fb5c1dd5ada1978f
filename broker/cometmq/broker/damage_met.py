"""Damaged messages that clients come upon: each is logged once, and counted.

A broker hands out records as they are in the log, so it does not notice damage by the disk; clients
do. A client that cannot read an answer pulls the same messages again, or makes no progress. A pull
checks only for that: when a group comes back to messages that it was given before, they are read
one by one, but not so often that a healthy group would suffer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.proto.errors import MessageError
from cometmq.proto.message import read_message
from cometmq.proto.sysflag import SysFlag
from cometmq.store.errors import CorruptionError
from cometmq.store.queues.record_check import LIGHT_QUEUE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.proto.buffer import Buffer
    from cometmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

LOOK_EVERY_MS: Final = 100
MESSAGES_MAX: Final = 64
"""Read by one look, in half a millisecond; the next look at the same place continues after them."""
PLACES_MAX: Final = 1_000
"""Logged at most in one life of the broker."""
_LOG: Final = "commitlog"
_BATCH: Final = int(SysFlag.INNER_BATCH)


class DamageMet:
    """The damaged places in one store that clients have come upon."""

    def __init__(self, store: MessageStore, elapsed_ms: Callable[[], int]) -> None:
        self._store = store
        self._elapsed_ms = elapsed_ms
        self._next_ms = 0
        self._seen: tuple[str, int, int, int] | None = None
        """Of the last look, if it found no damage: topic, queue, where it began, where it ended."""
        self._places: set[tuple[str, int]] = set()
        """Files and positions in them; for the log as a whole, physical offsets."""

    def count(self) -> int:
        """Count the places that have not expired."""
        first = self._store.first_offset
        self._places = {each for each in self._places if each[0] != _LOG or each[1] >= first}
        return len(self._places)

    def look(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Read messages from a queue offset on, and log the first damaged one.

        Returns False if none is damaged. If it is too early for another look, returns True: a
        client that has come again will come once more.
        """
        now_ms = self._elapsed_ms()
        if now_ms < self._next_ms:
            return True
        self._next_ms = now_ms + LOOK_EVERY_MS
        seen, self._seen = self._seen, None
        is_same = seen is not None and seen[:3] == (topic, queue_id, queue_offset)
        offset = seen[3] if seen is not None and is_same else queue_offset
        for _ in range(MESSAGES_MAX):
            what = f"message {offset} of {topic}/{queue_id}"
            try:
                result = self._store.read(topic, queue_id, offset, 1)
            except CorruptionError as error:
                self._tell(what, error.path, error.position, error.problem)
                return True
            if result.cold or not result.slices:
                return False
            number = None if topic.startswith(LIGHT_QUEUE_PREFIX) else offset
            place, problem = result.last_physical_offset, _problem(result.slices[0], number)
            if problem is not None:
                self._tell(what, _LOG, place, problem)
                return True
            offset = result.next_begin_offset
        self._seen = (topic, queue_id, queue_offset, offset)
        return False

    def check(self, physical_offset: int, record: Buffer) -> None:
        """Check a record that was found by its key, and log it if it is damaged."""
        problem = _problem(record)
        if problem is not None:
            self._tell("a message", _LOG, physical_offset, problem)

    def _tell(self, what: str, path: str, position: int, problem: str) -> None:
        place = (path, position)
        if place in self._places or len(self._places) >= PLACES_MAX:
            return
        self._places.add(place)
        log.error(
            "%s is damaged, and a client came upon it: %s: at byte %d: %s; `cometmq store"
            " verify %s`, beside the running broker, shows what else is damaged, and"
            " docs/operations.md what to do",
            *(what, path, position, problem, self._store.root),
        )
        if len(self._places) == PLACES_MAX:
            log.error("further damaged messages that clients come upon are not reported")


def _problem(record: Buffer, number: int | None = None) -> str | None:
    """Return what is wrong with a record, which should hold message `number` of its queue."""
    try:
        message = read_message(bytes(record))
    except MessageError as error:
        return str(error).partition(": ")[2]  # Without the place, which is relative to `record`.
    is_batch = bool(message.sys_flag & _BATCH) and message.queue_offset < (number or 0)
    if number not in (None, message.queue_offset) and not is_batch:
        return f"it says that it is message {message.queue_offset} of its queue"
    if not message.is_body_intact():
        return "the checksum of its body differs from the stored one"
    if message.is_record_intact() is False:
        return "its checksum differs from the stored one"
    return None
