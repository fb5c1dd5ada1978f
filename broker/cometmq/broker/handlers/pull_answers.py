"""The answer to a pull that found messages: where it stands, and the messages.

Most pulls ask in JSON, so their answer is a form to be filled in. Others are encoded as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.answer_form import JsonAnswerForm
from cometmq.proto.codes import ResponseCode
from cometmq.proto.command import ONEWAY_FLAG, Command
from cometmq.proto.commands.pull import PullMessageResponse
from cometmq.proto.header_json import JSON
from cometmq.store.messages.reading import ReadStatus

if TYPE_CHECKING:
    from cometmq.broker.topics import Topic
    from cometmq.net import Frame, Peer
    from cometmq.proto.bodies import SubscriptionGroupConfig
    from cometmq.store.messages.reading import ReadResult

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_REMARK: Final = ReadStatus.FOUND.name
_MARKS: Final = (13579111, 24681012, 35791113, 46810214, None, 57911135, 68102146)
"""The fields of the specimen; none of them is a part of another."""


def _form() -> JsonAnswerForm:
    specimen = Command.request(0).answer(_SUCCESS, PullMessageResponse(*_MARKS), remark=_REMARK)
    return JsonAnswerForm(specimen, [(str(mark), b"%d") for mark in _MARKS if mark is not None])


_before: Final = _form().before


def answer_fields(
    result: ReadResult, topic: Topic, group: SubscriptionGroupConfig
) -> PullMessageResponse:
    """Return where a pull stands, whether it found messages or not."""
    return PullMessageResponse(
        group.broker_id,
        result.next_begin_offset,
        result.min_offset,
        result.max_offset,
        None,
        topic.config.topic_sys_flag,
        group.group_sys_flag,
    )


def found_answer(
    request: Command, peer: Peer, result: ReadResult, topic: Topic, group: SubscriptionGroupConfig
) -> Command | Frame:
    """Answer with the messages that a read found."""
    if request.codec is JSON and peer.connection.takes_frames and not request.flag & ONEWAY_FLAG:
        head = _before(
            result.size,
            group.broker_id,
            result.next_begin_offset,
            result.min_offset,
            result.max_offset,
            topic.config.topic_sys_flag,
            group.group_sys_flag,
            request.opaque,
        )
        return [head, *result.slices]
    fields = answer_fields(result, topic, group)
    return request.answer(_SUCCESS, fields, remark=_REMARK, parts=result.slices)
