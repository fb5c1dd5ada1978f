"""Questions of an administrator to a client, through the broker: what it is doing (307), to consume
a message now (309), how far it has come (223).

Only the broker has a connection to the client. It passes the question on and the answer back, or
says why there is none.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.reading import answered
from cometmq.net import LATER, AnswerTimeoutError, NetError
from cometmq.proto.bodies import ConsumerStatus
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.consumer import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatus,
)
from cometmq.proto.errors import LocalProtocolError, MessageError, RemoteProtocolError
from cometmq.proto.message_id import decode_offset_id
from cometmq.proto.version import version_name
from cometmq.store.disk.cold import Cold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.consumers import ConsumerGroup, Member
    from cometmq.broker.session import Session, State
    from cometmq.net import Later, Peer

log = logging.getLogger(__name__)

RELAY_TIMEOUT_MS: Final = 10_000
STATUS_TIMEOUT_MS: Final = 5_000
VERSION_RELAY_MIN: Final = 62
"""V3_1_8_SNAPSHOT: older clients do not know 307 and 309."""
VERSION_STATUS_MIN: Final = 28
"""V3_0_7_SNAPSHOT: older clients do not know 220 and 221."""


def get_consumer_running_info(request: Command, session: Session) -> Later:
    """307: the running info of a consumer."""
    header = request.read(GetConsumerRunningInfo)
    question = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    return _relay(request, session, header.consumer_group, header.client_id, question)


def consume_message_directly(request: Command, session: Session) -> Command | Later:
    """309: have a consumer consume a message once, now."""
    header = request.read(ConsumeMessageDirectly)
    state = session.state
    try:
        offset = decode_offset_id(header.msg_id or "").physical_offset
    except MessageError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"msgId: {error}") from error
    fields = _fields_of_direct(request, header, state)

    def pass_on(fetched: Fetched) -> Sequence[Cold] | Later:
        record = state.store.find_record(offset, fetched)
        if isinstance(record, Cold):
            return [record]
        if record is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
            )
        question = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, body=bytes(record))
        return _relay(request, session, header.consumer_group, header.client_id or "", question)

    return answered(request, session, pass_on)


def _fields_of_direct(
    request: Command, header: ConsumeMessageDirectly, state: State
) -> dict[str, str]:
    """Return the fields of 309, with those that the broker adds for the client."""
    fields = request.ext_fields_as(ConsumeMessageDirectly)
    fields["brokerName"] = state.config.broker_name
    topic = state.topics.find(header.topic or "")
    if topic is not None:
        fields["topicSysFlag"] = str(topic.config.topic_sys_flag)
    group = state.groups.find(header.consumer_group)
    if group is not None:
        fields["groupSysFlag"] = str(group.group_sys_flag)
    return fields


def _relay(
    request: Command, session: Session, group_name: str, client_id: str, question: Command
) -> Later:
    """Pass a question to a client, and its answer back."""
    group = session.state.consumers.find(group_name)
    found = None if group is None else group.find(client_id)
    if found is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"The Consumer <{group_name}> <{client_id}> not online"
        )
    peer, member = found
    if member.version < VERSION_RELAY_MIN:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer <{client_id}> Version <{version_name(member.version)}> too low to"
            " finish, please upgrade it to V3_1_8_SNAPSHOT",
        )

    def said(answer: Command | NetError) -> None:
        if isinstance(answer, Command):
            fields, remark, body = answer.ext_fields, answer.remark, answer.body
            response = request.answer(answer.code, fields, remark=remark, body=body)
        else:
            response = _unanswered(request, group_name, client_id, answer)
        session.peer.answer(request, response)

    try:
        peer.ask(question, said, timeout_ms=RELAY_TIMEOUT_MS)
    except (NetError, LocalProtocolError) as error:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"invoke consumer <{group_name}> <{client_id}> Exception: {error}",
        ) from error
    return LATER


def _unanswered(request: Command, group: str, client_id: str, error: NetError) -> Command:
    if isinstance(error, AnswerTimeoutError):
        return request.answer(
            ResponseCode.CONSUME_MSG_TIMEOUT,
            remark=f"consumer <{group}> <{client_id}> Timeout: {error}",
        )
    return request.answer(
        ResponseCode.SYSTEM_ERROR,
        remark=f"invoke consumer <{group}> <{client_id}> Exception: {error}",
    )


def get_consumer_status(request: Command, session: Session) -> Command | Later:
    """223: the progress of each member of a group, or of one of them."""
    header = request.read(GetConsumerStatus)
    group = session.state.consumers.find(header.group)
    if group is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"No Any Consumer online in the consumer group: [{header.group}]",
        )
    refuse_old_clients(group)
    wanted = header.client_addr or ""
    asked = [
        (peer, member)
        for peer, member in group.members.items()
        if not wanted.strip() or member.client_id == wanted
    ]
    return _Survey(request, session, header).ask(asked)


def refuse_old_clients(group: ConsumerGroup) -> None:
    """Refuse a request if any member of a group is too old to understand it."""
    for member in group.members.values():
        if member.version < VERSION_STATUS_MIN:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={version_name(member.version)}",
            )


class _Survey:
    """One question to many clients, answered once each has answered or failed to."""

    def __init__(self, request: Command, session: Session, header: GetConsumerStatus) -> None:
        self._request = request
        self._session = session
        self._question = Command.request(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            GetConsumerStatus(topic=header.topic, group=header.group),
        )
        self._waiting = 0
        self._is_asking = True
        self._found = ConsumerStatus()

    def ask(self, members: Sequence[tuple[Peer, Member]]) -> Command | Later:
        for peer, member in members:
            self._waiting += 1
            try:
                peer.ask(self._question, self._listener(member), timeout_ms=STATUS_TIMEOUT_MS)
            except (NetError, LocalProtocolError) as error:
                self._waiting -= 1
                log.info("%s cannot be asked how far it is: %s", member.client_id, error)
        self._is_asking = False
        return LATER if self._waiting else self._answer()

    def _listener(self, member: Member) -> Callable[[Command | NetError], None]:
        def said(answer: Command | NetError) -> None:
            self._waiting -= 1
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                self._take(member.client_id, answer)
            if not self._waiting and not self._is_asking:
                self._session.peer.answer(self._request, self._answer())

        return said

    def _take(self, client_id: str, answer: Command) -> None:
        if answer.body is None:
            return
        try:
            status = ConsumerStatus.decode(answer.body)
        except RemoteProtocolError as error:
            log.info("%s does not say how far it is: %s", client_id, error)
        else:
            self._found.consumer_table[client_id] = status.message_queue_table

    def _answer(self) -> Command:
        return self._request.answer(ResponseCode.SUCCESS, body=self._found.encode())
