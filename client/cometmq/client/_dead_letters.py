"""Which dead letters are wanted, how many there are, and what a redrive did with them."""

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
    """What a group has given up on one broker; `last_at` is when the last came.

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
    """Which dead letters; of what is given, all must fit.

    ::

        wanted = DeadLetterFilter(filter="paid", topic="orders", since=yesterday)
        await mq.admin.dead_letters.redrive("billing", wanted)

    `filter` is as of `Client.consume`: tags, or `Sql`. `topic` is the one that they were sent to,
    `key` one of their keys, `ids` are `ReceivedMessage.id`, `places` their `queue` and `offset`
    (two can have one id, and none have one place), `since` and `until` when they became dead
    letters.
    """

    filter: str | Sql = "*"
    topic: str | None = None
    key: str | None = None
    ids: frozenset[str] = frozenset()
    places: frozenset[tuple[Queue, int]] = frozenset()
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be compared."""
        for time in (self.since, self.until):
            if time is not None and time.tzinfo is None:
                raise UsageError("since, until: a datetime with a zone, such as datetime.now(UTC)")

    def fits(self, message: ReceivedMessage) -> bool:
        """Whether a dead letter is one of them, as far as its broker has not looked.

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
    """How far a redrive is, or was in the end.

    ::

        redriven = await mq.admin.dead_letters.redrive("billing")
        print(redriven.sent, redriven.earlier, [id for id, why in redriven.failed])

    `sent` went out now (with `dry_run`: would have), `earlier` by a redrive before; what brokers
    refused is in `failed`, by id, with the reason. `sent_ids` are the dead letters' ids, and
    `sent_places` their queues and offsets, in the same order. `earlier_places` are those of the
    ones that went to the same topic before, and not by the other way.
    """

    sent: int = 0
    earlier: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    sent_ids: list[str] = field(default_factory=list[str])
    sent_places: list[tuple[Queue, int]] = field(default_factory=list[tuple[Queue, int]])
    earlier_places: list[tuple[Queue, int]] = field(default_factory=list[tuple[Queue, int]])

    @property
    def count(self) -> int:
        """How many dead letters were looked at."""
        return self.sent + self.earlier + len(self.failed)
