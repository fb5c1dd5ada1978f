"""The body of a broker's registration at a name server (103): JSON, or the old compressed form.

The compressed form is one zlib stream of::

    i32 length + JSON               the DataVersion
    i32 count
      i32 length + text             a topic: name, read queues, write queues, perm, filter type
                                    and, from 5.0.0 on, its attributes as JSON, blank separated
    i32 length + JSON               the list of filter servers
    i32 count                       from 5.0.0 on
      i32 length + JSON             a static topic's mapping

It does not carry a topic's `order` and `topic_sys_flag`. Only old brokers send it.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Final, Never

import msgspec

from cometmq.proto.bodies.data_version import DataVersion
from cometmq.proto.bodies.enums import TopicFilterType
from cometmq.proto.bodies.topics import (
    TopicConfig,
    TopicConfigTable,
    TopicQueueMappingInfo,
)
from cometmq.proto.body import BY_HAND_SIZE_MAX, Body, preset
from cometmq.proto.errors import BodyError
from cometmq.proto.fastjson import SIZE_MAX, dumps, loads
from cometmq.proto.version import COMPRESSED_QUEUE_MAPPING_VERSION, REGISTER_BROKER_BODY_VERSION

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer

TOPICS_MAX: Final = 100_000
"""Topics in a compressed registration: as many as a broker creates automatically."""

MAPPINGS_MAX: Final = 10_000
"""Static topics in a compressed registration."""

_I32 = struct.Struct(">i")
assert _I32.size == 4
_I32_END: Final = 1 << 31
_DIGITS_MAX: Final = 11
NAME_SHOWN_MAX: Final = 64
"""Characters of a peer's text that an error repeats."""
_ATTRIBUTES: Final = msgspec.json.Decoder(dict[str, str])
_FILTER_TYPES: Final = {
    word: kind for number, kind in enumerate(TopicFilterType) for word in (kind.value, str(number))
}
"""Filter types by name and by ordinal."""


class RegisterBrokerBody(Body):
    """103: the topics of a broker, and its filter servers, which no longer exist."""

    filter_server_list: tuple[str, ...] = preset(())
    topic_config_serialize_wrapper: TopicConfigTable = preset(TopicConfigTable())


def decode_registration(
    data: Buffer | None, *, version: int, compressed: bool = False, size_max: int = SIZE_MAX
) -> RegisterBrokerBody:
    """Read the body of 103, according to the sender's version and the header field `compressed`.

    No body is an empty table. `size_max` limits the inflated size, and `TOPICS_MAX` the topics that
    a few compressed bytes may stand for, so that a compressed body takes less than a second. For an
    uncompressed body the times of `Body.decode` apply: a caller that must not be held up for so
    long limits its size first.
    """
    if data is None or len(data) == 0:
        return RegisterBrokerBody()
    if version < REGISTER_BROKER_BODY_VERSION:
        return RegisterBrokerBody(topic_config_serialize_wrapper=TopicConfigTable.decode(data))
    if compressed:
        return _Inflated(_inflate(data, size_max)).registration(
            version >= COMPRESSED_QUEUE_MAPPING_VERSION
        )
    return RegisterBrokerBody.decode(data)


def encode_compressed(registration: RegisterBrokerBody, *, version: int) -> bytes:
    """Write the compressed form, as a broker of this version does."""
    table = registration.topic_config_serialize_wrapper
    mappings = version >= COMPRESSED_QUEUE_MAPPING_VERSION
    parts = [_block(table.data_version.encode()), _I32.pack(len(table.topic_config_table))]
    parts += [_block(_topic_text(t, mappings)) for t in table.topic_config_table.values()]
    parts.append(_block(dumps(registration.filter_server_list)))
    if mappings:
        infos = table.topic_queue_mapping_info_map or {}
        parts.append(_I32.pack(len(infos)))
        parts += [_block(info.encode()) for info in infos.values()]
    return zlib.compress(b"".join(parts))


def _block(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _topic_text(topic: TopicConfig, attributes: bool) -> bytes:
    words = [
        topic.topic_name,
        str(topic.read_queue_nums),
        str(topic.write_queue_nums),
        str(topic.perm),
        topic.topic_filter_type.value,
    ]
    if attributes:
        words.append(dumps(topic.attributes).decode())
    return " ".join(words).encode()


def _inflate(data: Buffer, size_max: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(data, size_max)
    except zlib.error as error:
        raise BodyError(f"RegisterBrokerBody: not a zlib stream: {error}") from None
    if stream.unconsumed_tail:
        raise BodyError(f"RegisterBrokerBody: inflates to more than {size_max} bytes")
    if not stream.eof:
        raise BodyError("RegisterBrokerBody: the zlib stream is cut off")
    return inflated


class _Inflated:
    """Reads the blocks of the inflated stream one by one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def registration(self, mappings: bool) -> RegisterBrokerBody:
        data_version = DataVersion.decode(self._block("data version"))
        count = self._count("topics")
        if count > TOPICS_MAX:
            self._fail(f"{count} topics, the limit is {TOPICS_MAX}", self._at - _I32.size)
        topics = [self._topic(mappings) for _ in range(count)]
        servers = self._block("filter servers")
        filter_servers = _strings(loads(servers, by_hand_size_max=BY_HAND_SIZE_MAX))
        infos = self._infos() if mappings else []
        return RegisterBrokerBody(
            filter_server_list=filter_servers,
            topic_config_serialize_wrapper=TopicConfigTable(
                data_version=data_version,
                topic_config_table={topic.topic_name: topic for topic in topics},
                topic_queue_mapping_info_map={info.topic or "": info for info in infos} or None,
            ),
        )

    def _infos(self) -> list[TopicQueueMappingInfo]:
        count = self._count("queue mappings")
        if count > MAPPINGS_MAX:
            self._fail(f"{count} queue mappings, the limit is {MAPPINGS_MAX}", self._at - _I32.size)
        return [TopicQueueMappingInfo.decode(self._block("queue mapping")) for _ in range(count)]

    def _topic(self, attributes: bool) -> TopicConfig:
        """Read one topic; words missing at the end take Apache's defaults."""
        start = self._at
        name, *words = self._text("topic").split(" ", 5)
        if not name:
            self._fail("a topic without a name", start)
        known: dict[str, Any] = {}
        try:
            for key, word in zip(
                ("read_queue_nums", "write_queue_nums", "perm"), words, strict=False
            ):
                known[key] = _i32(word)
            if len(words) > 3:
                known["topic_filter_type"] = _FILTER_TYPES[words[3]]
            if attributes and len(words) > 4:
                known["attributes"] = _ATTRIBUTES.decode(words[4])
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            self._fail(f"topic {name[:NAME_SHOWN_MAX]!r}: {error}", start)
        return TopicConfig(topic_name=name, **known)

    def _text(self, what: str) -> str:
        start = self._at
        try:
            return self._block(what).decode()
        except UnicodeDecodeError:
            self._fail(f"the text of a {what} is not UTF-8", start)

    def _count(self, what: str) -> int:
        count = self._number(what)
        # Each takes at least the four bytes of its length.
        if count * _I32.size > len(self._data) - self._at:
            self._fail(f"{count} {what}, more than the rest can hold", self._at - _I32.size)
        return count

    def _block(self, what: str) -> bytes:
        size = self._number(what)
        if size > len(self._data) - self._at:
            self._fail(f"the {what} has {size} bytes, more than are left", self._at - _I32.size)
        self._at += size
        return self._data[self._at - size : self._at]

    def _number(self, what: str) -> int:
        if len(self._data) - self._at < _I32.size:
            self._fail(f"cut off before the {what}", self._at)
        (number,) = _I32.unpack_from(self._data, self._at)
        if number < 0:
            self._fail(f"negative length of {what}", self._at)
        self._at += _I32.size
        return int(number)

    def _fail(self, problem: str, at: int) -> Never:
        raise BodyError(f"RegisterBrokerBody: {problem}, at byte {at} of the inflated stream")


def _i32(word: str) -> int:
    number = int(word) if len(word) <= _DIGITS_MAX else _I32_END
    if not -_I32_END <= number < _I32_END:
        raise ValueError(f"{word[:NAME_SHOWN_MAX]!r} is not a 32-bit number")
    return number


def _strings(tree: Any) -> tuple[str, ...]:
    try:
        return msgspec.convert(tree, tuple[str, ...] | None) or ()
    except msgspec.ValidationError as error:
        raise BodyError(f"RegisterBrokerBody: filter servers: {error}") from None
