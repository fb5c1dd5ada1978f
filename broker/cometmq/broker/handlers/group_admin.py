"""Administration of groups: creating and changing (200, 225), deleting (207), forbidding topics
(353), and reading their configuration (201, 352)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.paging import page_of
from cometmq.broker.topic_attributes import GROUP_ATTRIBUTES, altered
from cometmq.broker.topic_names import group_problem, topic_problem
from cometmq.proto.bodies import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.group import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroupConfig,
    GetAllSubscriptionGroupConfigResponse,
    GetSubscriptionGroupConfig,
    UpdateAndGetGroupForbidden,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.broker.session import Session, State
    from cometmq.net import Later
    from cometmq.proto.command import Command

log = logging.getLogger(__name__)


def update_and_create_group(request: Command, session: Session) -> Command | Later:
    """200: create or change a group."""
    return _put(request, session, [SubscriptionGroupConfig.decode(request.body)])


def update_and_create_group_list(request: Command, session: Session) -> Command | Later:
    """225: create or change several groups, or none if one of them is refused."""
    return _put(request, session, SubscriptionGroupList.decode(request.body).group_config_list)


def _put(
    request: Command, session: Session, wanted: Sequence[SubscriptionGroupConfig]
) -> Command | Later:
    """Check all, create or change all, and answer once they are saved."""
    state = session.state
    groups = state.groups
    made = [_checked(config, state) for config in wanted]
    new = {config.group_name for config in made if groups.find(config.group_name) is None}
    if len(groups) + len(new) > state.config.groups_max:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"this broker's groups_max is {state.config.groups_max}"
        )
    now_ms = state.now_ms()
    for config in made:
        groups.put(config, now_ms)
        log.info("group %s is put by %s", config.group_name, session.peer.host)
    response = request.answer(ResponseCode.SUCCESS)
    return state.changes.answer(session.peer, request, response, groups.file)


def _checked(config: SubscriptionGroupConfig, state: State) -> SubscriptionGroupConfig:
    if (problem := group_problem(config.group_name)) is not None:
        raise RequestError(ResponseCode.INVALID_PARAMETER, problem)
    if config.retry_queue_nums > state.config.topic_queues_max:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"group {config.group_name}: {config.retry_queue_nums} retry queues; this broker's"
            f" topic_queues_max is {state.config.topic_queues_max}",
        )
    group = state.groups.find(config.group_name)
    attributes = altered(
        None if group is None else group.attributes, config.attributes, GROUP_ATTRIBUTES
    )
    return replace(config, attributes=attributes)


def delete_group(request: Command, session: Session) -> Command | Later:
    """207: delete a group, and its offsets if asked to; succeeds if there is no such group."""
    header = request.read(DeleteSubscriptionGroup)
    state = session.state
    state.groups.discard(header.group_name, state.now_ms())
    state.traffic.forget_group(header.group_name)
    if header.clean_offset:
        state.offsets.forget_group(header.group_name)
    log.info("group %s is deleted by %s", header.group_name, session.peer.host)
    response = request.answer(ResponseCode.SUCCESS)
    tables = (state.groups.file, state.offsets.file)
    return state.changes.answer(session.peer, request, response, *tables)


def get_all_group_config(request: Command, session: Session) -> Command:
    """201: all groups, or a page of them."""
    header = request.read(GetAllSubscriptionGroupConfig)
    groups = session.state.groups
    configs = page_of(
        groups.configs(),
        groups.data_version,
        sequence=header.group_seq,
        size=header.max_group_num,
        version=header.data_version,
    )
    is_whole = len(configs) == len(groups)
    forbidden = {
        name: dict(topics)
        for name, topics in groups.forbidden().items()
        if is_whole or name in configs
    }
    table = SubscriptionGroupTable(
        data_version=groups.data_version,
        forbidden_table=forbidden,
        subscription_group_table=configs,
    )
    return request.answer(
        ResponseCode.SUCCESS,
        GetAllSubscriptionGroupConfigResponse(total_group_num=len(groups)),
        body=table.encode(),
    )


def get_group_config(request: Command, session: Session) -> Command:
    """352: one group; like any use, the request creates the group if that is allowed."""
    name = request.read(GetSubscriptionGroupConfig).group
    group = session.state.groups.find_or_make(name, session.state.now_ms())
    if group is None:
        raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return request.answer(ResponseCode.SUCCESS, body=group.encode())


def update_and_get_group_forbidden(request: Command, session: Session) -> Command | Later:
    """353: allow a group to read a topic, forbid it, or only ask."""
    header = request.read(UpdateAndGetGroupForbidden)
    state = session.state
    groups = state.groups
    problem = group_problem(header.group) or topic_problem(header.topic)
    if header.readable is False and problem is not None:
        raise RequestError(ResponseCode.INVALID_PARAMETER, problem)
    if header.readable:
        groups.allow(header.group, header.topic, state.now_ms())
    elif header.readable is False and not groups.forbid(header.group, header.topic, state.now_ms()):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"too much is forbidden: this broker's groups_max is {state.config.groups_max},"
            f" its topics_max {state.config.topics_max}",
        )
    body = GroupForbidden(
        group=header.group,
        topic=header.topic,
        readable=groups.may_read(header.group, header.topic),
    )
    response = request.answer(ResponseCode.SUCCESS, remark="", body=body.encode())
    return state.changes.answer(session.peer, request, response, groups.file)
