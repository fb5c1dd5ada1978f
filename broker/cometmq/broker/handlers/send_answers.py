"""The answer to a send: where the message is stored.

Nearly all sends are answered with the same fields, so for each codec their answer is a form to be
filled in: `frames`. Anything that does not fit the form (a batch, an odd id) is encoded as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.answer_form import JsonAnswerForm, messagepack_answers, rocketmq_answers
from cometmq.proto.codes import ResponseCode
from cometmq.proto.command import ONEWAY_FLAG, Command
from cometmq.proto.commands.send import SendMessageResponse
from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_rocketmq import ROCKETMQ
from cometmq.proto.message_id import encode_offset_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.broker.config import BrokerConfig
    from cometmq.proto.command import HeaderCodec

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_OFFSET, _QUEUE, _QUEUE_OFFSET, _UNIQUE_ID = "<offset>", 135797531, 246808642086, "<id>"
"""The values in the specimen that mark the places to fill in."""


class SendAnswers:
    """Answers to the sends of one broker."""

    def __init__(self, config: BrokerConfig, store_host: bytes) -> None:
        """`store_host` is the packed address in offset ids."""
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
        host = store_host.hex().upper()
        holes = [(str(_QUEUE), b"%d"), (str(_QUEUE_OFFSET), b"%d"), (_UNIQUE_ID, b"%s")]
        stored, done = (Command.request(0).answer(_SUCCESS, said) for said in (specimen, None))
        self.frames: dict[HeaderCodec | None, Callable[[int, int, int, bytes, int], bytes]] = {
            JSON: JsonAnswerForm(stored, [(_OFFSET, b"%016X"), *holes]).frame,
            MESSAGEPACK: self._messagepack_frame,
            ROCKETMQ: rocketmq_answers(
                stored, [(host + _OFFSET, host.encode() + b"%016X"), *holes]
            ),
        }
        """By codec: makes the whole frame of an answer from a physical offset, a queue id, a queue
        offset, a unique id of letters and digits, and the number of the request."""

        self._messagepack = messagepack_answers(done)
        self._host_text = host
        self._last_values = (None, None, config.region_id, config.trace_on)

        write_done = self._messagepack
        self.done: dict[HeaderCodec | None, Callable[[int], bytes]] = {
            JSON: JsonAnswerForm(done, []).frame,
            MESSAGEPACK: lambda opaque: write_done(opaque, None),
            ROCKETMQ: rocketmq_answers(done, []),
        }
        """By codec: makes the frame of an answer that only says success, from the number of the
        request."""

    def _messagepack_frame(
        self,
        physical_offset: int,
        queue_id: int,
        queue_offset: int,
        unique_id: bytes,
        opaque: int,
    ) -> bytes:
        """Make the whole frame of an answer in MessagePack: see `frames`."""
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
        """Answer the send of a message or a batch; None if the request is one-way."""
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
