"""Dead letters: listing, resending and deleting the messages that groups have given up.

How a redrive sends each one once. The id of the new message is made from the place of the dead
letter, so sending it a second time uses the same id. A CometMQ broker stores an id once while it
remembers the producer. In addition, a redrive first asks the broker's index for each id; Apache's
brokers have that index, too. It asks for the ids of both ways, so that a letter that was sent to
the group is not sent to its topic as well. The pipeline's job `dlq` uses the same ids, so all
redrives share one record: the broker's index. A redrive's progress is not stored: it may be
interrupted anywhere, run with another filter, and run again.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import anyio

from cometmq.client._admin_asking import AdminAsking
from cometmq.client._core.names import DLQ_PREFIX, check_group, dead_letter_topic
from cometmq.client._core.outgoing import encoded, shrink
from cometmq.client._core.queues import Queue
from cometmq.client._core.redriving import (
    came_back,
    letter_of,
    properties_of_letter,
    ways_of_letter,
)
from cometmq.client._core.selection import queue_of_key
from cometmq.client._dead_letters import (
    ALL_OF_THEM,
    DeadLetterFilter,
    DeadLettersListed,
    Redriven,
)
from cometmq.client._pace import Pace
from cometmq.client._parcels import Parcel
from cometmq.client.errors import (
    ClientError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from cometmq.proto import property_names as names
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import QueryMessage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from cometmq.client._core.redriving import Letter, RedriveTo
    from cometmq.client._parts import Parts
    from cometmq.client.admin import Admin, QueueStatus
    from cometmq.client.messages import ReceivedMessage

SHOW_COUNT: Final = 100
LOOKED_AT_ONCE: Final = 32
"""How many dead letters are checked at a time for having been sent before."""
_FAR_MS: Final = (1 << 63) - 1


class DeadLetters(AdminAsking):
    """The calls about dead letters: `Admin.dead_letters`.

    ::

        await mq.admin.dead_letters.redrive("billing")
    """

    def __init__(self, parts: Callable[[], Parts], admin: Admin) -> None:
        super().__init__(parts)
        self._admin = admin

    async def groups(self) -> list[DeadLettersListed]:
        """Return which groups have dead letters, and on which brokers.

        ::

            given_up = sum(each.count for each in await mq.admin.dead_letters.groups())
        """
        found: list[DeadLettersListed] = []
        for topic in await self._admin.topics():
            if topic.kind == "dead letters":
                group = topic.name.removeprefix(DLQ_PREFIX)
                brokers: dict[str, list[QueueStatus]] = {}
                for queue in await self._queues(group):
                    brokers.setdefault(queue.queue.broker, []).append(queue)
                found += [
                    DeadLettersListed(
                        group,
                        broker,
                        sum(each.message_count for each in queues),
                        max((each.stored_at for each in queues if each.stored_at), default=None),
                    )
                    for broker, queues in brokers.items()
                    if any(each.message_count for each in queues)
                ]
        return found

    async def show(
        self, group: str, wanted: DeadLetterFilter = ALL_OF_THEM, *, count: int = SHOW_COUNT
    ) -> list[ReceivedMessage]:
        """Return up to `count` dead letters of a group, the oldest of each broker first.

        ::

            for letter in await mq.admin.dead_letters.show("billing", count=10):
                print(letter.id, letter.topic, letter.attempt, letter.body)

        It raises `NotFoundError` for a group that has no dead letters and that no broker knows, as
        do `redrive` and `purge`.
        """
        if count < 1:
            raise UsageError(f"count={count}: must be at least 1")
        found: list[ReceivedMessage] = []
        async with aclosing(self._each(check_group(group), wanted)) as letters:
            async for letter in letters:
                found.append(letter)
                if len(found) == count:
                    break
        return found

    async def redrive(
        self,
        group: str,
        wanted: DeadLetterFilter = ALL_OF_THEM,
        *,
        to: RedriveTo = "group",
        rate: float | None = None,
        dry_run: bool = False,
        watch: Callable[[Redriven], None] | None = None,
    ) -> Redriven:
        """Send dead letters again, each once, however often this is called or interrupted.

        ::

            await mq.admin.dead_letters.redrive("billing", rate=100)

        `to="group"` sends them to the group that gave them up, through its retry topic, so that no
        other group gets them again; `to="topic"` sends them to their topic, for all groups. A group
        that consumes in order gets nothing through a retry topic, so "group" is refused for it. At
        most `rate` are sent per second. They stay among the dead letters until these are purged or
        expire; a message that is given up again becomes another dead letter. `watch` is called
        after each one. `dry_run` sends nothing.
        """
        if rate is not None and not rate > 0:
            raise UsageError(f"rate={rate}: must be more than 0 messages per second")
        if to not in ("group", "topic"):
            raise UsageError(f"to={to!r}: must be 'group' or 'topic'")
        redriven = Redriven()
        pace = Pace(rate)
        kept: set[str] = set()  # Brokers that do not return them to the dead letters.
        async with aclosing(self._letters(check_group(group), wanted, to)) as letters:
            async for letter, sent_to in letters:
                broker = letter.message.queue.broker
                if sent_to:
                    _note_earlier(redriven, letter, sent_to)
                elif dry_run:
                    _note_sent(redriven, letter.message)
                else:
                    await pace.wait()
                    if await self._send(letter, redriven) and broker not in kept:
                        kept.add(broker)
                        await self._check_kept(letter, group)
                if watch is not None:
                    watch(redriven)
        return redriven

    async def purge(self, group: str) -> int:
        """Delete all dead letters of a group; return how many there were.

        ::

            await mq.admin.dead_letters.purge("billing")

        Their topic is deleted; the next dead letter recreates it.
        """
        queues = await self._known_queues(check_group(group))
        if queues:
            await self._admin.delete_topic(dead_letter_topic(group))
        return sum(each.message_count for each in queues)

    async def _queues(self, group: str) -> list[QueueStatus]:
        """Return the queues of a group's dead letters; empty if it never had any."""
        try:
            return await self._admin.topic_status(dead_letter_topic(group))
        except NotFoundError:
            return []

    async def _known_queues(self, group: str) -> list[QueueStatus]:
        """Return the same; raise `NotFoundError` if it is empty and no broker knows the group."""
        queues = await self._queues(group)
        if not queues:
            await self._admin.check_group_exists(group)
        return queues

    async def _each(
        self, group: str, wanted: DeadLetterFilter
    ) -> AsyncGenerator[ReceivedMessage, None]:
        """Yield the dead letters that exist now."""
        for status in await self._known_queues(group):
            async for each in self._messages(
                status.queue, status.first_offset, status.end_offset, wanted.filter
            ):
                if not came_back(each) and wanted.fits(each):
                    yield each

    async def _letters(
        self, group: str, wanted: DeadLetterFilter, to: RedriveTo
    ) -> AsyncGenerator[tuple[Letter, str], None]:
        """Yield the letters to send, each with the topic that it was sent to before, or ''."""
        page: list[Letter] = []
        async for message in self._each(group, wanted):
            page.append(letter_of(message, group, to))
            if len(page) == LOOKED_AT_ONCE:
                earlier = await self._earlier(page, group)
                for letter in page:
                    yield letter, earlier.get(letter.id, "")
                page = []
        earlier = await self._earlier(page, group)
        for letter in page:
            yield letter, earlier.get(letter.id, "")

    async def _earlier(self, letters: list[Letter], group: str) -> dict[str, str]:
        """Return the ids of letters that the indexes have as sent, either way, with the topics."""
        found: dict[str, str] = {}
        failed: list[ClientError] = []
        masters = await self._masters(None)

        async def look(letter: Letter) -> None:
            try:
                for way in ways_of_letter(letter.message, group):
                    if await self._is_found(way, masters.get(way.message.queue.broker)):
                        found[letter.id] = way.topic
                        break
            except ClientError as error:
                failed.append(error)

        async with anyio.create_task_group() as tasks:
            for letter in letters:
                tasks.start_soon(look, letter)
        if failed:
            raise failed[0]
        return found

    async def _is_found(self, letter: Letter, address: str | None) -> bool:
        if address is None:
            raise UnreachableError(
                f"broker {letter.message.queue.broker!r} has no master at the moment"
            )
        header = QueryMessage(letter.topic, letter.id, LOOKED_AT_ONCE, 0, _FAR_MS)
        try:
            response = await self._ask(address, RequestCode.QUERY_MESSAGE, header)
        except NotFoundError:
            return False
        records = self._read_messages(address, response)
        return any(each.unique_id == letter.id for each in records)  # The index knows hashes only.

    async def _send(self, letter: Letter, redriven: Redriven) -> bool:
        """Send one letter; if its broker refuses it, note that: it may accept others."""
        parts = self._get_parts()
        message = letter.message
        body, sys_flag = shrink(message.body, parts.config.compress_from)
        parcel = Parcel(
            body,
            encoded(properties_of_letter(letter)).decode(),
            letter.id,
            sys_flag=sys_flag,
            flag=message.flag,
        )
        try:
            queue = await self._target(letter)
            for parcel.may_repeat in (False, True):
                try:
                    await parts.producer.send(
                        letter.topic,
                        parcel,
                        queue=queue,
                        sharding_key=None,
                        timeout=parts.config.timeout,
                    )
                    break
                except RefusedError as error:
                    # Its producer has already sent later ones. The index knows better: not sent.
                    if parcel.may_repeat or error.code != ResponseCode.ILLEGAL_OPERATION:
                        raise
        except RefusedError as error:
            redriven.failed.append((message.id, str(error)))
            return False
        _note_sent(redriven, message)
        return True

    async def _target(self, letter: Letter) -> Queue:
        """Return the queue it is sent to: always the same, on the broker of the dead letter."""
        broker = letter.message.queue.broker
        if letter.topic != letter.message.topic:
            return Queue(letter.topic, broker, 0)
        parts = self._get_parts()
        route = await parts.routes.get(letter.topic, timeout=parts.config.timeout)
        queues = [each for each in route.to_send if each.broker == broker]
        if not queues:
            raise NotFoundError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {letter.topic!r} is not on it", broker
            )
        key = letter.message.properties.get(names.SHARDING_KEY, letter.id)
        return queue_of_key(queues, key)

    async def _check_kept(self, letter: Letter, group: str) -> None:
        """Raise if the broker has put the letter that was sent back among the dead letters."""
        message = letter.message
        for status in await self._queues(group):
            if status.queue != message.queue:
                continue
            begin = max(status.first_offset, message.offset + 1)
            begin = max(begin, status.end_offset - LOOKED_AT_ONCE)
            came_back = [
                each
                async for each in self._messages(status.queue, begin, status.end_offset)
                if each.id == letter.id
            ]
            if came_back:
                raise UsageError(
                    f"group {group!r} consumes in order, so its broker keeps no retries for it:"
                    " redrive to its topic (to='topic')"
                )


def _note_earlier(redriven: Redriven, letter: Letter, sent_to: str) -> None:
    redriven.earlier += 1
    if sent_to == letter.topic:
        redriven.earlier_places.append((letter.message.queue, letter.message.offset))


def _note_sent(redriven: Redriven, message: ReceivedMessage) -> None:
    redriven.sent += 1
    redriven.sent_ids.append(message.id)
    redriven.sent_places.append((message.queue, message.offset))
