"""Administration of topics: creating and changing (17, 18), deleting (215, 316), and reading their
configuration (21, 305, 351)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.paging import page_of
from cometmq.broker.topic_attributes import altered
from cometmq.broker.topic_names import pop_retry_topics, topic_problem
from cometmq.broker.topics import BATCH_QUEUES
from cometmq.proto.bodies import DataVersion, TopicConfig, TopicConfigList, TopicConfigTable
from cometmq.proto.bodies.enums import TopicFilterType
from cometmq.proto.bodies.topics import TopicConfigAndQueueMapping, TopicList
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.topic import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetAllTopicConfigResponse,
    GetTopicConfig,
    UpdateAndCreateTopic,
)
from cometmq.proto.commands.topic_attributes import decode_attributes
from cometmq.proto.errors import FieldError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cometmq.broker.session import Session, State
    from cometmq.net import Later
    from cometmq.proto.command import Command

log = logging.getLogger(__name__)


def update_and_create_topic(request: Command, session: Session) -> Command | Later:
    """17: create or change a topic."""
    header = request.read(UpdateAndCreateTopic)
    config = TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=_filter_type(header.topic_filter_type),
        topic_sys_flag=header.topic_sys_flag,
        order=header.order,
    )
    return _put(request, session, [(config, _changes(header.attributes or ""))])


def update_and_create_topic_list(request: Command, session: Session) -> Command | Later:
    """18: create or change several topics, or none if one of them is refused."""
    configs = TopicConfigList.decode(request.body).topic_config_list
    return _put(request, session, [(config, config.attributes) for config in configs])


def _filter_type(name: str) -> TopicFilterType:
    try:
        return TopicFilterType(name)
    except ValueError:
        names = ", ".join(TopicFilterType)
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"topicFilterType: {name!r} is none of {names}"
        ) from None


def _changes(text: str) -> dict[str, str]:
    try:
        changes = decode_attributes(text)
    except FieldError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, error.problem) from error
    return {
        f"-{key}" if value is None else f"+{key}": value or "" for key, value in changes.items()
    }


def _put(
    request: Command, session: Session, wanted: Iterable[tuple[TopicConfig, Mapping[str, str]]]
) -> Command | Later:
    """Check all, create or change all, and answer once they are saved and registered."""
    state = session.state
    topics = state.topics
    made = [_checked(config, changes, state) for config, changes in wanted]
    new = {config.topic_name for config in made if topics.find(config.topic_name) is None}
    if len(topics) + len(new) > state.config.topics_max:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"this broker's topics_max is {state.config.topics_max}"
        )
    now_ms = state.now_ms()
    for config in made:
        topic = topics.find(config.topic_name)
        if topic is None or topic.config != config:
            topics.put(config, now_ms)
            log.info("topic %s is put by %s", config.topic_name, session.peer.host)
    response = request.answer(ResponseCode.SUCCESS)
    return state.changes.answer(session.peer, request, response, topics.file, is_told=True)


def _checked(config: TopicConfig, changes: Mapping[str, str], state: State) -> TopicConfig:
    name = config.topic_name
    if (problem := topic_problem(name)) is not None:
        raise RequestError(ResponseCode.INVALID_PARAMETER, problem)
    _refuse_system(name, state)
    if changes.get("+message.type") == "MIXED":
        raise RequestError(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
    for count in (config.read_queue_nums, config.write_queue_nums):
        if not 0 <= count <= state.config.topic_queues_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"topic {name}: {count} queues; this broker's topic_queues_max is"
                f" {state.config.topic_queues_max}",
            )
    topic = state.topics.find(name)
    attributes = altered(None if topic is None else topic.config.attributes, changes)
    if topic is None:
        attributes = _as_those_here(name, attributes, state)
    return replace(config, attributes=attributes)


def _as_those_here(name: str, attributes: dict[str, str], state: State) -> dict[str, str]:
    """Return the attributes for a new topic, of the same kind as its queues in the store, if any.

    The table has lost such a topic. As one of the other kind it would assign their offsets again.
    """
    has_batches, said = state.topics.has_batches_here(name), attributes.get("queue.type")
    if has_batches is None or (said is None and not has_batches):
        return attributes
    if said is None:
        return attributes | BATCH_QUEUES
    if (said == BATCH_QUEUES["queue.type"]) is not has_batches:
        kind = f"{'' if has_batches else 'not '}queue.type={BATCH_QUEUES['queue.type']}"
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"topic {name}: has queues with messages here, which are {kind}: create it like"
            " that, or delete it first",
        )
    return attributes


def _refuse_system(name: str, state: State) -> None:
    if state.topics.is_system(name):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic."
        )


def delete_topic(request: Command, session: Session) -> Command | Later:
    """215: delete a topic with its queues, its offsets, and the pop retry topics of its groups.

    Deleting a missing topic succeeds, too. The records stay in the log until they expire.
    """
    name = request.read(DeleteTopicInBroker).topic
    if not name.strip():
        raise RequestError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    state = session.state
    _refuse_system(name, state)
    names = [name]
    for group in state.offsets.groups_of(name):
        names += [each for each in pop_retry_topics(name, group) if state.topics.find(each)]
    now_ms = state.now_ms()
    counts = {each: _queue_count(each, state) for each in names}
    for each, count in counts.items():
        state.topics.discard(each, now_ms)
        groups = set(state.consumers.groups_of(each)) - state.consumers.broadcasting
        state.offsets.topic_deleted(each, count, groups, state.elapsed_ms())
        state.broadcasts.forget_topic(each)
    _delete_queues(names, state)
    for each, count in counts.items():
        for queue_id in range(count):
            state.long_polling.arrived(each, queue_id)  # These pulls wait at places that are gone.
    log.info("topic %s is deleted by %s", name, session.peer.host)
    response = request.answer(ResponseCode.SUCCESS)
    tables = (state.topics.file, state.offsets.file)
    return state.changes.answer(session.peer, request, response, *tables)


def _queue_count(name: str, state: State) -> int:
    topic = state.topics.find(name)
    return 0 if topic is None else max(topic.read_queue_count, topic.config.write_queue_nums)


def _delete_queues(names: list[str], state: State) -> None:
    state.acknowledgements.commit()  # Messages that this turn put to them are deleted, too.
    try:
        state.store.delete_topics(names)
    except OSError as error:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"queues of {', '.join(names)} cannot be deleted: {error}; try again",
        ) from error


def clean_unused_topic(request: Command, session: Session) -> Command:
    """316: remove the queues of topics that do not exist."""
    state = session.state
    known = state.topics.names()
    unused = [name for name in state.store.queues.topics() if name not in known]
    _delete_queues(unused, state)
    for name in unused:
        log.info("the queues of %s, which is not a topic, are removed", name)
    return request.answer(ResponseCode.SUCCESS)


def get_all_topic_config(request: Command, session: Session) -> Command:
    """21: all topics, or a page of them."""
    header = request.read(GetAllTopicConfig)
    topics = session.state.topics
    configs = page_of(
        topics.configs(),
        topics.data_version,
        sequence=header.topic_seq,
        size=header.max_topic_num,
        version=header.data_version,
    )
    table = TopicConfigTable(
        data_version=topics.data_version,
        mapping_data_version=DataVersion(),
        topic_config_table=configs,
        topic_queue_mapping_detail_map={},
        topic_queue_mapping_info_map={},
    )
    return request.answer(
        ResponseCode.SUCCESS,
        GetAllTopicConfigResponse(total_topic_num=len(topics)),
        body=table.encode(),
    )


def get_topic_config(request: Command, session: Session) -> Command:
    """351: one topic."""
    name = request.read(GetTopicConfig).topic
    topic = session.state.topics.find(name)
    if topic is None:
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
    fields = {field: getattr(topic.config, field) for field in TopicConfig.__struct_fields__}
    return request.answer(ResponseCode.SUCCESS, body=TopicConfigAndQueueMapping(**fields).encode())


def get_system_topic_list(request: Command, session: Session) -> Command:
    """305: the topics that are the broker's own."""
    names = tuple(sorted(session.state.topics.system_names))
    return request.answer(ResponseCode.SUCCESS, body=TopicList(topic_list=names).encode())
