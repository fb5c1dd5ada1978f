"""Administration of offsets: listing all (43, 45), comparing (308) and copying them (314), and
resetting those of a group (222)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.client_admin import refuse_old_clients
from cometmq.broker.handlers.reading import answered_of_queues
from cometmq.proto.bodies import (
    ConsumerOffsets,
    CorrectionOffsets,
    DataVersion,
    DelayOffsets,
    MessageQueue,
    QueueOffset,
    ResetOffsetList,
    ResetOffsets,
)
from cometmq.proto.codes import Language, RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.consumer import ResetOffset
from cometmq.proto.commands.group import CloneGroupOffset, QueryCorrectionOffset
from cometmq.store.disk.cold import Cold
from cometmq.store.queues.consume_queue import Boundary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session, State
    from cometmq.net import Later

log = logging.getLogger(__name__)

_I64_MAX = (1 << 63) - 1


def get_all_consumer_offset(request: Command, session: Session) -> Command:
    """43: the offsets of all groups, as a slave copies them."""
    offsets = session.state.offsets
    topics: dict[str, list[str]] = {}
    table: dict[str, dict[int, int]] = {}
    for group, topic, queues in offsets:
        table[f"{topic}@{group}"] = dict(queues)
        if "@" not in group:
            topics.setdefault(group, []).append(topic)
    body = ConsumerOffsets(
        data_version=DataVersion(),
        group_topic_map={group: tuple(names) for group, names in topics.items()},
        offset_table=table,
    )
    return request.answer(ResponseCode.SUCCESS, body=body.encode())


def get_all_delay_offset(request: Command, session: Session) -> Command:
    """45: how far delayed messages have come, as a slave copies it."""
    body = DelayOffsets(data_version=DataVersion(), offset_table=session.state.delays.offsets())
    return request.answer(ResponseCode.SUCCESS, body=body.encode())


def query_correction_offset(request: Command, session: Session) -> Command | Later:
    """308: by queue, the least offset of all groups but the filtered ones, or the greatest number
    if the compared group is behind that. Damaged queues are left out."""
    header = request.read(QueryCorrectionOffset)
    state = session.state
    topic, offsets = header.topic, state.offsets
    queues = {
        (topic, each) for group in offsets.groups_of(topic) for each in offsets.of(group, topic)
    }
    return answered_of_queues(
        request, session, queues, lambda _: _corrections(request, header, state)
    )


def _corrections(request: Command, header: QueryCorrectionOffset, state: State) -> Command:
    topic = header.topic
    left_out = set((header.filter_groups or "").split(","))
    least: dict[int, int] = {}
    for group in state.offsets.groups_of(topic):
        if group in left_out:
            continue
        for queue_id, offset in state.offsets.of(group, topic).items():
            span = state.store.queues.span(topic, queue_id)
            if span is not None and offset >= span.min_offset:
                least[queue_id] = min(offset, least.get(queue_id, offset))
    for queue_id, offset in state.offsets.of(header.compare_group, topic).items():
        if least.get(queue_id, offset) > offset:
            least[queue_id] = _I64_MAX
    body = CorrectionOffsets(correction_offsets=least)
    return request.answer(ResponseCode.SUCCESS, body=body.encode())


def clone_group_offset(request: Command, session: Session) -> Command:
    """314: have one group continue where another does, in one topic or in all."""
    header = request.read(CloneGroupOffset)
    state = session.state
    source = state.consumers.find(header.src_group)
    wanted = None if source is None or header.offline else source.subscriptions
    is_given = header.topic is not None and bool(header.topic.strip())
    topics = (header.topic or "",) if is_given else state.offsets.topics_of(header.src_group)
    for topic in topics:
        if state.topics.find(topic) is not None and (not wanted or topic in wanted):
            state.offsets.copy(header.src_group, header.dest_group, topic)
    return request.answer(ResponseCode.SUCCESS)


def reset_offset(request: Command, session: Session) -> Command | Later:
    """222: have a group continue at the offsets for a store time, or at an offset.

    The broker tells each member in the answer to its next pull. If `server_side_reset_enable` is
    off, it tells all members at once (220), and they reset their offsets.
    """
    header = request.read(ResetOffset)
    if session.state.config.server_side_reset_enable:
        return _reset_here(request, header, session)
    return _reset_at_clients(request, header, session)


def _reset_here(request: Command, header: ResetOffset, session: Session) -> Command | Later:
    state = session.state
    topic = state.topics.find(header.topic)
    if topic is None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
    if state.groups.find(header.group) is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
        )
    if header.queue_id >= topic.read_queue_count:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"queueId {header.queue_id}: topic {header.topic} has {topic.read_queue_count} queues",
        )
    if header.queue_id >= 0 and header.offset not in (None, -1):
        queue_id = header.queue_id

        def assign(_: Fetched) -> Command | Later:
            offset = _checked(header.topic, queue_id, header.offset or 0, state)
            return _assign(request, header, {queue_id: offset}, session)

        return answered_of_queues(request, session, [(header.topic, queue_id)], assign)
    queue_ids = [header.queue_id] if header.queue_id >= 0 else range(topic.read_queue_count)
    if not queue_ids:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
    return _search(
        request,
        session,
        header,
        queue_ids,
        lambda offsets: _assign(request, header, offsets, session),
    )


def _checked(topic: str, queue_id: int, offset: int, state: State) -> int:
    low = state.store.min_offset(topic, queue_id)
    high = state.store.max_offset(topic, queue_id)
    if not low <= offset <= high + 1:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"Target offset {offset} not in consume queue range [{low}-{high}]",
        )
    return offset


def _assign(
    request: Command, header: ResetOffset, offsets: Mapping[int, int], session: Session
) -> Command | Later:
    state = session.state
    for queue_id, offset in offsets.items():
        state.offsets.reset(header.group, header.topic, queue_id, offset)
        state.long_polling.arrived(header.topic, queue_id)  # A held pull is told at once.
    log.info(
        "group %s goes on in %s at %s, by %s",
        header.group,
        header.topic,
        dict(offsets),
        session.peer.host,
    )
    body = ResetOffsets(offset_table=_table(header, offsets, state)).encode()
    response = request.answer(ResponseCode.SUCCESS, body=body)
    return state.changes.answer(session.peer, request, response, state.offsets.file)


def _reset_at_clients(request: Command, header: ResetOffset, session: Session) -> Command | Later:
    state = session.state
    topic = state.topics.find(header.topic)
    if topic is None:
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
        )
    queue_ids = range(topic.config.write_queue_nums)
    current = {
        queue_id: offset
        for queue_id in queue_ids
        if (offset := state.offsets.find(header.group, header.topic, queue_id)) is not None
    }
    if len(current) < len(queue_ids):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
        )
    group = state.consumers.find(header.group)
    if group is None:
        raise RequestError(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group}"
            f" Topic: {header.topic} Timestamp: {header.timestamp}",
        )
    refuse_old_clients(group)

    def tell(found: Mapping[int, int]) -> Command:
        offsets = {
            queue_id: offset if header.is_force else min(offset, current[queue_id])
            for queue_id, offset in found.items()
        }
        return _tell_members(request, header, offsets, session)

    return _search(request, session, header, queue_ids, tell)


def _tell_members(
    request: Command, header: ResetOffset, offsets: Mapping[int, int], session: Session
) -> Command:
    state = session.state
    table = _table(header, offsets, state)
    body = ResetOffsets(offset_table=table).encode()
    word = Command.request(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        ResetOffset(header.topic, header.group, header.timestamp, is_force=False),
        body=_list_of(table) if request.language == Language.CPP else body,
        oneway=True,
    )
    group = state.consumers.find(header.group)
    for peer in () if group is None else group.members:
        peer.tell(word)
    return request.answer(ResponseCode.SUCCESS, body=body)


def _list_of(table: Mapping[MessageQueue, int]) -> bytes:
    """Return the form for clients in C++."""
    return ResetOffsetList(
        offset_table=tuple(
            QueueOffset(
                broker_name=queue.broker_name,
                offset=offset,
                queue_id=queue.queue_id,
                topic=queue.topic,
            )
            for queue, offset in table.items()
        )
    ).encode()


def _table(
    header: ResetOffset, offsets: Mapping[int, int], state: State
) -> dict[MessageQueue, int]:
    name = state.config.broker_name
    return {
        MessageQueue(broker_name=name, queue_id=queue_id, topic=header.topic): offset
        for queue_id, offset in offsets.items()
    }


def _search(
    request: Command,
    session: Session,
    header: ResetOffset,
    queue_ids: Iterable[int],
    then: Callable[[Mapping[int, int]], Command | Later],
) -> Command | Later:
    """Find the offsets for a time in these queues, and answer with what `then` makes of them.

    If these are all queues of the topic, damaged ones are left out.
    """
    store = session.state.store
    topic, timestamp = header.topic, header.timestamp
    is_all = header.queue_id < 0

    def look(fetched: Fetched) -> Command | Sequence[Cold] | Later:
        found: dict[int, int] = {}
        cold: list[Cold] = []
        for queue_id in queue_ids:
            if is_all and store.queues.span(topic, queue_id) is None:
                log.warning("%s/%d is damaged: %s is not reset", topic, queue_id, header.group)
                continue
            if timestamp < 0:
                found[queue_id] = store.max_offset(topic, queue_id)
                continue
            offset = store.offset_by_time(topic, queue_id, timestamp, Boundary.LOWER, fetched)
            if isinstance(offset, Cold):
                cold.append(offset)
            else:
                found[queue_id] = offset
        return cold or then(found)

    return answered_of_queues(request, session, [(topic, each) for each in queue_ids], look)
