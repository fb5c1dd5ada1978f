"""Outgoing messages: a caller's arguments, checked and turned into what is sent.

All checks that need no server are here, so that they happen before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import msgspec

from cometmq.client._core.checking import check_seconds, check_whole
from cometmq.client._core.queues import Queue, check_queue
from cometmq.client.errors import UsageError
from cometmq.proto import property_names as names
from cometmq.proto.buffer import Buffer  # msgspec needs it at runtime.
from cometmq.proto.compression import Compression, compress
from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.properties import encode_properties

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.proto.batch import BatchItem

LEVEL_SECONDS: Final = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""The delays of levels 1 to 18, which every broker has unless configured otherwise."""

LEVEL_MAX: Final = len(LEVEL_SECONDS)
ITEM_OVERHEAD: Final = 22
"""The size in bytes of a message in a batch, without its body and properties."""


def check_retry_level(level: object) -> None:
    """Refuse an invalid delay level of a retry; 0 means the broker's own choice."""
    check_whole("delay_level", level, 0, LEVEL_MAX)


# A msgspec struct takes a tenth of the time of a frozen dataclass to make, and each send makes one.
class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message to send, for `send_batch`; `send` takes the same as keyword arguments.

    ::

        await mq.send_batch("orders", [NewMessage(body=b"...", key="o-17"), b"just a body"])

    `key` and `keys` let you find it later, consumers filter by `tag`, and `properties` are
    whatever else travels with it.
    """

    body: Buffer
    key: str | None = None
    keys: Sequence[str] = ()
    tag: str | None = None
    properties: Mapping[str, str] | None = None
    flag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a message is to be delivered, if not at once. At most one of the three is set."""

    delay: float | None = None
    deliver_at_ms: int | None = None
    delay_level: int | None = None


AT_ONCE: Final = Timing()


def check_body(body: object, size_max: int) -> bytes:
    """Return a body as bytes, or say what is wrong with it."""
    if type(body) is not bytes:
        if isinstance(body, str):
            raise UsageError('body: must be bytes, not str; encode it first: "…".encode()')
        if not isinstance(body, bytes | bytearray | memoryview):
            raise UsageError(f"body: must be bytes, not {type(body).__name__}")
        body = bytes(cast("Buffer", body))
    if not body:
        raise UsageError("body: must not be empty; brokers refuse that")
    if len(body) > size_max:
        raise UsageError(
            f"body: {len(body)} bytes, more than body_size_max {size_max}: send it in parts, or a"
            " reference to it; a larger setting helps if the brokers' maxMessageSize is as large"
        )
    return body


def shrink(body: bytes, compress_from: int) -> tuple[bytes, int]:
    """Return a body as it is sent, compressed or not, and the flags that say which."""
    if not compress_from or len(body) < compress_from:
        return body, 0
    return compress(body, Compression.ZLIB)


def bare_properties(unique_id: str) -> str:
    """Encode the properties of a message that has only a body."""
    return f"{names.UNIQ_KEY}\x01{unique_id}\x02{names.WAIT}\x01true\x02"


def properties_text(
    message: NewMessage, unique_id: str, more: Mapping[str, str] | None = None
) -> str:
    """Encode all properties of a message; a `UsageError` says what is wrong with one."""
    has_more = more or message.keys or message.properties or message.flag != 0
    if has_more or message.key is not None or message.tag is not None:
        return encoded(_properties_of(message, unique_id, more)).decode()
    return bare_properties(unique_id)


def _properties_of(
    message: NewMessage, unique_id: str, more: Mapping[str, str] | None
) -> dict[str, str]:
    """Return all properties of a message: the user's, and those that its arguments set."""
    # Put first, so that brokers can parse what follows once if messages are alike.
    found = {names.UNIQ_KEY: unique_id}
    if message.flag != 0:
        check_whole("flag", message.flag, -1 << 31, (1 << 31) - 1)
    if message.properties:
        _check_dict(message.properties)
        for name, value in message.properties.items():
            _check_property(name, value)
        found.update(message.properties)
    if message.key is not None or message.keys:
        found[names.KEYS] = _joined_keys(message.key, message.keys)
    if message.tag is not None:
        found[names.TAGS] = _checked_tag(message.tag)
    if more:
        found.update(more)
    found[names.WAIT] = "true"
    return found


def encoded(properties: Mapping[str, str]) -> bytes:
    """Encode properties, or say what is wrong with them."""
    try:
        return encode_properties(properties)
    except LocalProtocolError as error:
        raise UsageError(str(error)) from None


def timing_properties(timing: Timing) -> dict[str, str]:
    """Return the properties that say when a message is to be delivered."""
    if timing is AT_ONCE:
        return {}
    given = {
        "delay": timing.delay,
        "deliver_at": timing.deliver_at_ms,
        "delay_level": timing.delay_level,
    }
    said = [name for name, value in given.items() if value is not None]
    if len(said) > 1:
        raise UsageError(f"{' and '.join(said)}: give only one of them")
    if (level := timing.delay_level) is not None:
        return {names.DELAY: str(check_whole("delay_level", level, 1, LEVEL_MAX))}
    if timing.deliver_at_ms is not None:
        return {names.TIMER_DELIVER_MS: str(timing.deliver_at_ms)}
    if timing.delay is None:
        return {}
    check_seconds("delay", timing.delay)
    if timing.delay in LEVEL_SECONDS:  # Brokers of any version know the levels.
        return {names.DELAY: str(LEVEL_SECONDS.index(int(timing.delay)) + 1)}
    return {names.TIMER_DELAY_MS: str(round(timing.delay * 1000))} if timing.delay else {}


def needs_timers(timing: Timing) -> bool:
    """Whether only a broker of 5.0 or later can deliver at that time."""
    if timing.deliver_at_ms is not None:
        return True
    return bool(timing.delay) and timing.delay not in LEVEL_SECONDS


def split(items: Iterable[BatchItem], size_max: int) -> list[list[BatchItem]]:
    """Divide a batch into parts within the size limit, in order."""
    parts: list[list[BatchItem]] = []
    room = 0
    for item in items:
        size = ITEM_OVERHEAD + len(item.body) + len(item.properties)
        if size > size_max:
            raise UsageError(
                f"a message of {size} bytes with its properties is more than"
                f" body_size_max {size_max}"
            )
        if size > room:
            parts.append([])
            room = size_max
        parts[-1].append(item)
        room -= size
    return parts


def check_sharding_key(key: object) -> str:
    """Return a sharding key, or say what is wrong with it."""
    if not isinstance(key, str):
        raise UsageError(f"sharding_key={key!r}: must be a str, such as {str(key)!r}")
    if not key:
        raise UsageError("sharding_key: must not be empty")
    return key


def check_queue_of(topic: str, queue: object) -> Queue:
    """Return a queue of this topic, or say what is wrong with it."""
    found = check_queue(queue)
    if found.topic != topic:
        raise UsageError(f"queue {found}: is not a queue of topic {topic!r}")
    return found


def _check_dict(properties: object) -> None:
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise UsageError(f"properties={properties!r}: must be a dict of str")


def _check_property(name: object, value: object) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise UsageError(
            f"properties: {name!r}: {value!r} is not a pair of str; convert with str()"
        )
    if name in names.RESERVED:
        raise UsageError(f"properties: {name!r} is reserved{_INSTEAD.get(name, '')}")
    if not value:
        raise UsageError(f"properties: {name!r} must not be empty; readers take that as absent")


_INSTEAD: Final = {
    names.KEYS: "; use the argument key or keys",
    names.TAGS: "; use the argument tag",
    names.DELAY: "; use the argument delay_level",
    names.TIMER_DELAY_SEC: "; use the argument delay",
    names.TIMER_DELAY_MS: "; use the argument delay",
    names.TIMER_DELIVER_MS: "; use the argument deliver_at",
}


def _joined_keys(key: str | None, keys: Sequence[str]) -> str:
    _check_list(keys)
    found = [*([] if key is None else [key]), *keys]
    for each in found:
        if not _is_word(each):
            raise UsageError(
                f"key {each!r}: must be a str without blanks that is not empty; for several, use"
                " keys="
            )
    return " ".join(found)


def _check_list(keys: object) -> None:
    if isinstance(keys, str) or not isinstance(keys, Sequence):
        raise UsageError("keys: must be a list of str; for a single one, use key=")


def _is_word(text: object) -> bool:
    return isinstance(text, str) and text != "" and " " not in text


def _checked_tag(tag: object) -> str:
    if not isinstance(tag, str) or not tag or tag != tag.strip() or "||" in tag or tag == "*":
        raise UsageError(
            f"tag {tag!r}: must be a str other than * that is not empty and has neither || in it"
            " nor a blank at an end"
        )
    return tag
