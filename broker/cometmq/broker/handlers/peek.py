"""Peeking (200052): the messages that a group would get next, without moving or hiding any."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.reading import answered_of_queues
from cometmq.broker.refusals import FAQ, Refusal, no_topic, read_failed, refuse
from cometmq.broker.topic_names import pop_retry_topics
from cometmq.broker.topics import READ
from cometmq.net import LATER
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.pop import PeekMessage, PopMessageResponse
from cometmq.store.errors import CorruptionError
from cometmq.store.messages.reading import ReadStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session, State
    from cometmq.broker.topics import Topic
    from cometmq.net import Later
    from cometmq.proto.buffer import Buffer
    from cometmq.proto.command import Command
    from cometmq.store.messages.reading import ReadResult

log = logging.getLogger(__name__)

_RETRIES_FIRST: Final = 5
"""One peek in this many looks at the group's retries first, so that they are seen at all."""

_ELSEWHERE: Final = frozenset({ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY})


def peek_message(request: Command, session: Session) -> Command | Later:
    """200052: messages of one queue or of all, from the group's offsets on."""
    header = request.read(PeekMessage)
    topic = session.state.topics.find(header.topic)
    if topic is None:
        raise no_topic(header.topic)
    _check(header, topic, session)
    places = [*_places(header, topic, session.state)]
    peek = _Peek(request, header, places, session)
    return answered_of_queues(request, session, places, lambda _: peek.run())


def _check(header: PeekMessage, topic: Topic, session: Session) -> None:
    if not topic.config.perm & READ:
        raise RequestError(
            ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] peeking message is forbidden"
        )
    if header.queue_id >= topic.read_queue_count:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
            f" topicConfig.readQueueNums:[{topic.read_queue_count}]"
            f" consumer:[{session.peer.host}]",
        )
    state = session.state
    group = state.groups.find_or_make(header.consumer_group, state.now_ms())
    if group is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{header.consumer_group}] does not exist, {FAQ}",
        )
    if not group.consume_enable:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"subscription group no permission, {header.consumer_group}",
        )


class _Peek:
    """One peek that has passed its checks. It goes on from queue to queue after a fetch, too."""

    __slots__ = (
        "_count",
        "_header",
        "_places",
        "_request",
        "_rest",
        "_session",
        "_size",
        "_slices",
    )

    def __init__(
        self,
        request: Command,
        header: PeekMessage,
        places: Iterable[tuple[str, int]],
        session: Session,
    ) -> None:
        self._request = request
        self._header = header
        self._session = session
        self._places = iter(places)
        self._slices: list[Buffer] = []
        self._count = 0
        self._size = 0
        self._rest = 0

    def run(self) -> Command | Later:
        """Look at the remaining queues; a damaged one does not keep a peek from the others."""
        for topic, queue_id in self._places:
            span = self._session.state.store.queues.span(topic, queue_id)
            if span is None:
                if self._is_asked_for(topic):
                    raise RequestError(
                        ResponseCode.SYSTEM_ERROR, f"{topic}/{queue_id}: its files are damaged"
                    )
                continue
            offset = self._offset(topic, queue_id)
            self._rest += max(0, span.max_offset - offset)
            result = self._read(topic, queue_id, offset, None)
            if result is not None and result.cold:
                self._fetch(topic, queue_id, offset, result, [])
                return LATER
            self._take(topic, result)
        return self._answer()

    def _is_asked_for(self, topic: str) -> bool:
        """Whether the request names a single queue, and this topic is the one it names."""
        return self._header.queue_id >= 0 and topic == self._header.topic

    def _offset(self, topic: str, queue_id: int) -> int:
        """Return where the group continues; where the queue begins if the group has no offset."""
        state = self._session.state
        found = state.offsets.find(self._header.consumer_group, topic, queue_id)
        return state.store.min_offset(topic, queue_id) if found is None else found

    def _read(
        self, topic: str, queue_id: int, offset: int, fetched: Fetched | None
    ) -> ReadResult | None:
        """Read from one queue; None if enough was found in others, or this one is damaged."""
        state = self._session.state
        limits = state.config.store
        wanted = min(self._header.max_msg_nums, limits.read_count_max) - self._count
        if wanted <= 0 or self._size >= limits.read_size_max:
            return None
        try:
            result = state.store.read(topic, queue_id, offset, wanted, fetched=fetched)
            if result.status in _ELSEWHERE:
                return state.store.read(
                    topic, queue_id, result.next_begin_offset, wanted, fetched=fetched
                )
        except CorruptionError as error:
            log.error("a peek at %r from %s: %s", topic, self._session.peer.host, error)
            if not self._is_asked_for(topic):
                return None
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return result

    def _take(self, topic: str, result: ReadResult | None) -> None:
        if result is None or not result.record_count:
            return
        self._slices += result.slices
        self._count += result.record_count
        self._size += result.size
        flow = self._session.state.traffic.got_flow(topic, self._header.consumer_group)
        flow.take(result.record_count, result.size)

    def _fetch(
        self, topic: str, queue_id: int, offset: int, result: ReadResult, earlier: Fetched
    ) -> None:
        def fetched(found: Fetched) -> None:
            response = self._go_on(topic, queue_id, offset, [*earlier, *found])
            if response is not LATER:
                self._session.peer.answer(self._request, response)

        self._session.state.cold_reads.fetch(result.cold, fetched, self._failed)

    def _go_on(self, topic: str, queue_id: int, offset: int, fetched: Fetched) -> Command | Later:
        try:
            result = self._read(topic, queue_id, offset, fetched)
            if result is not None and result.cold:
                self._fetch(topic, queue_id, offset, result, fetched)
                return LATER
            self._take(topic, result)
            return self.run()
        except Refusal as error:
            return refuse(self._request, self._session, error)

    def _failed(self, error: OSError) -> None:
        log.error("a peek at %r: the disk failed a read: %s", self._header.topic, error)
        self._session.peer.answer(self._request, read_failed(self._request, error))

    def _answer(self) -> Command:
        found = ReadStatus.FOUND if self._slices else ReadStatus.NO_MESSAGE_IN_QUEUE
        return self._request.answer(
            ResponseCode.SUCCESS if self._slices else ResponseCode.PULL_NOT_FOUND,
            PopMessageResponse(0, 0, 0, self._rest),
            remark=found.name,
            parts=self._slices,
        )


def _places(header: PeekMessage, topic: Topic, state: State) -> Iterator[tuple[str, int]]:
    """Yield the queues to look at, from a different one each time, so that none is always last."""
    chance = random.randrange(100)
    retries = _retry_places(header, chance, state)
    if chance % _RETRIES_FIRST == 0:
        yield from retries
    if header.queue_id >= 0:
        yield header.topic, header.queue_id
    else:
        yield from _turned(header.topic, topic.read_queue_count, chance)
    yield from retries


def _retry_places(header: PeekMessage, chance: int, state: State) -> Iterator[tuple[str, int]]:
    for name in pop_retry_topics(header.topic, header.consumer_group):
        topic = state.topics.find(name)
        if topic is not None:
            yield from _turned(name, topic.read_queue_count, chance)


def _turned(topic: str, queues: int, first: int) -> Iterator[tuple[str, int]]:
    for number in range(queues):
        yield topic, (first + number) % queues
