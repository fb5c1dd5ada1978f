"""Dead letters: the filter that selects them, their counts, and the result of a redrive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cometmq.client._core.queues import Queue
from cometmq.client.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from cometmq.client._core.filters import Sql
    from cometmq.client.messages import ReceivedMessage


@dataclass(frozen=True, slots=True)
class DeadLettersListed:
    """The dead letters of a group on one broker; `last_at` is when the last one was stored.

    ::

        for listed in await mq.admin.dead_letters.groups():
            print(listed.group, listed.broker, listed.count)
    """

    group: str
    broker: str
    count: int
    last_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """A filter for dead letters; a letter must match everything that is given.

    ::

        wanted = DeadLetterFilter(filter="paid", topic="orders", since=yesterday)
        await mq.admin.dead_letters.redrive("billing", wanted)

    `filter` is as in `Client.consume`: tags, or `Sql`. `topic` is the one that they were sent to,
    `key` one of their keys, `ids` their `ReceivedMessage.id`, `places` their `queue` and `offset`
    (two letters can share an id, but never a place). `since` and `until` limit when they became
    dead letters.
    """

    filter: str | Sql = "*"
    topic: str | None = None
    key: str | None = None
    ids: frozenset[str] = frozenset()
    places: frozenset[tuple[Queue, int]] = frozenset()
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse times that cannot be compared."""
        for time in (self.since, self.until):
            if time is not None and time.tzinfo is None:
                raise UsageError(
                    "since, until: must be a datetime with a time zone, such as datetime.now(UTC)"
                )

    def fits(self, message: ReceivedMessage) -> bool:
        """Whether a dead letter matches; `filter` is not checked, as its broker has done that.

        ::

            mine = [letter for letter in letters if wanted.fits(letter)]
        """
        return (
            (self.topic is None or message.topic == self.topic)
            and (self.key is None or self.key in message.keys)
            and (not self.ids or message.id in self.ids)
            and (not self.places or (message.queue, message.offset) in self.places)
            and (self.since is None or message.stored_at >= self.since)
            and (self.until is None or message.stored_at < self.until)
        )


ALL_OF_THEM: Final = DeadLetterFilter()


@dataclass(slots=True)
class Redriven:
    """The progress of a redrive, or its result.

    ::

        redriven = await mq.admin.dead_letters.redrive("billing")
        print(redriven.sent, redriven.earlier, [id for id, why in redriven.failed])

    `sent` counts the letters sent now (or, with `dry_run`, that would have been), `earlier` those
    sent by a redrive before. `failed` has the ids that brokers refused, with the reasons.
    `sent_ids` are the ids of the letters that were sent, and `sent_places` their queues and
    offsets, in the same order. `earlier_places` has the places of the letters that were sent
    earlier to the same topic; those sent the other way are not in it.
    """

    sent: int = 0
    earlier: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    sent_ids: list[str] = field(default_factory=list[str])
    sent_places: list[tuple[Queue, int]] = field(default_factory=list[tuple[Queue, int]])
    earlier_places: list[tuple[Queue, int]] = field(default_factory=list[tuple[Queue, int]])

    @property
    def count(self) -> int:
        """The number of dead letters that were handled."""
        return self.sent + self.earlier + len(self.failed)
