"""The header codecs by the type byte of a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_rocketmq import ROCKETMQ

if TYPE_CHECKING:
    from cometmq.proto.command import HeaderCodec

HEADER_CODECS: dict[int, HeaderCodec] = {
    codec.serialize_type: codec for codec in (JSON, ROCKETMQ, MESSAGEPACK)
}
