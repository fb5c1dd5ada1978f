"""What a sender is told of a message that is stored: where it went.

Nearly all sends are answered with the same fields, in JSON, or in MessagePack as CometMQ's own
client speaks it, so that answer is a form that is filled in: `frame` and `messagepack_frame`. What
has no place in it (a batch, another codec, an odd id) is encoded as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.answer_form import JsonAnswerForm, messagepack_answers
from cometmq.proto.codes import ResponseCode
from cometmq.proto.command import ONEWAY_FLAG, Command
from cometmq.proto.commands.send import SendMessageResponse
from cometmq.proto.message_id import encode_offset_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.broker.config import BrokerConfig

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_OFFSET, _QUEUE, _QUEUE_OFFSET, _UNIQUE_ID = "<offset>", 135797531, 246808642086, "<id>"
"""The marks in the specimen of the form."""


class SendAnswers:
    """Answers to the sends of one broker."""

    def __init__(self, config: BrokerConfig, store_host: bytes) -> None:
        """`store_host` is the packed address that offset ids name."""
        self._config = config
        self._store_host = store_host
        specimen = SendMessageResponse(
            store_host.hex().upper() + _OFFSET,
            _QUEUE,
            _QUEUE_OFFSET,
            _UNIQUE_ID,
            region_id=config.region_id,
            trace_on=config.trace_on,
        )
        form = JsonAnswerForm(
            Command.request(0).answer(_SUCCESS, specimen),
            [
                (_OFFSET, b"%016X"),
                (str(_QUEUE), b"%d"),
                (str(_QUEUE_OFFSET), b"%d"),
                (_UNIQUE_ID, b"%s"),
            ],
        )
        self.frame = form.frame
        """Make the whole frame of an answer in JSON, of a physical offset, a queue id, a queue
        offset, a unique id of letters and digits, and the number of the request."""

        self._messagepack = messagepack_answers(Command.request(0).answer(_SUCCESS))
        self._host_text = store_host.hex().upper()
        self._last_values = (None, None, config.region_id, config.trace_on)

        self.done = JsonAnswerForm(Command.request(0).answer(_SUCCESS), []).frame
        """Make the frame of an answer that says only that all is well, of the request's number."""

    def messagepack_frame(
        self,
        physical_offset: int,
        queue_id: int,
        queue_offset: int,
        unique_id: bytes,
        opaque: int,
    ) -> bytes:
        """Make the whole frame of an answer in MessagePack, of what `frame` takes."""
        offset_id = f"{self._host_text}{physical_offset:016X}"
        values = (offset_id, queue_id, queue_offset, unique_id.decode(), *self._last_values)
        return self._messagepack(opaque, values)

    def answer(
        self,
        request: Command,
        physical_offsets: Sequence[int],
        queue_id: int,
        queue_offset: int,
        unique_id: bytes | None,
        batch_id: bytes | None = None,
    ) -> Command | None:
        """Answer the send of a message or a batch; None to who wants no answer."""
        if request.flag & ONEWAY_FLAG:
            return None
        response = SendMessageResponse(
            encode_offset_ids(self._store_host, physical_offsets),
            queue_id,
            queue_offset,
            None if unique_id is None else unique_id.decode(),
            None if batch_id is None else batch_id.decode(),
            region_id=self._config.region_id,
            trace_on=self._config.trace_on,
        )
        return request.answer(_SUCCESS, response)
