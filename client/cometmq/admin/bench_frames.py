"""Requests of the load generator: frame templates with holes, so that making a frame costs 0.3 µs.

The codec writes one specimen of each request, including the body, with marks where requests of one
kind differ: the topic of a send; the request number, by which the answer is matched; and for each
message a number that makes its unique id unique, and its time of sending. A mark has the same
length as the value that replaces it, so the sizes in a frame stay right.

Topics with names of the same length share a form. With a form of 1.3 KiB for each of 80,000 queues,
the generator would evict a broker's data from the caches that both share on one machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command
from cometmq.proto.commands.pull import PullMessage, PullSysFlag
from cometmq.proto.commands.send import SendMessageV2
from cometmq.proto.connection import Connection
from cometmq.proto.frame import HEAD_SIZE, frame_head
from cometmq.proto.header_json import JSON

if TYPE_CHECKING:
    from cometmq.proto.header import Header

GROUP: Final = "cometmq-bench"
OPAQUE_MIN: Final = 1_000_000
OPAQUE_MAX: Final = 9_999_999
"""Request numbers have seven digits."""

TIME_SIZE: Final = 19
"""The number of digits of a time in nanoseconds; each body begins with one."""

_OPAQUE_MARK: Final = 1_234_567
_OFFSET_MARK: Final = 9_876_543_210
_MESSAGE_MARK: Final = "_MESSAGE_NO_"
_TIME_MARK: Final = b"_NANOSECONDS_SENT__"
_TOPIC_MARK: Final = "_"
assert len(_MESSAGE_MARK) == 12
assert len(_TIME_MARK) == TIME_SIZE
_PROPERTIES: Final = f"UNIQ_KEY\x017F0000014D2C18B4AAC2{_MESSAGE_MARK}\x02WAIT\x01true\x02"

_SUSPEND_MS: Final = 15_000
_SUSPEND: Final = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)


def body_of(size: int) -> bytes:
    """Make a body: the mark of a time, then letters."""
    letters = b"abcdefghijklmnopqrstuvwxyz" * (size // 26 + 1)
    return (_TIME_MARK + letters)[: max(size, TIME_SIZE)]


def topic_part(topic: str) -> bytes:
    """Return a topic's name as it is written in a frame."""
    return msgspec.json.encode(topic)[1:-1]


class SendForm:
    """Sends of one message each, to one queue of topics whose names have the same length."""

    count = 1

    def __init__(self, topic: str, queue_id: int, queues: int, size: int) -> None:
        self._topic = topic_part(topic)
        header = _send_header(len(self._topic), queue_id, queues, _PROPERTIES, batch=False)
        form = _form(RequestCode.SEND_MESSAGE_V2, header, body_of(size))
        self._form = _with_topic_hole(form, len(self._topic))
        marks = (b'"%b"', b"%012X", b"%07d", b"%019d")
        assert sorted(marks, key=self._form.index) == list(marks)

    def frame(self, opaque: int, message: int, now_ns: int) -> bytes:
        """Make a send of the message with this number."""
        return self._form % (self._topic, message, opaque, now_ns)

    def frame_to(self, topic: bytes, opaque: int, message: int, now_ns: int) -> bytes:
        """Make one to another topic, with a name of the same length: see `topic_part`."""
        return self._form % (topic, message, opaque, now_ns)


class BatchForm:
    """Sends of several messages in a batch, to one queue of topics with names of one length."""

    def __init__(self, topic: str, queue_id: int, queues: int, size: int, count: int) -> None:
        self.count = count
        self._topic = topic_part(topic)
        header = _send_header(len(self._topic), queue_id, queues, "", batch=True)
        item = BatchItem(body_of(size), _PROPERTIES.encode())
        form = _form(RequestCode.SEND_BATCH_MESSAGE, header, encode_batch(topic, [item] * count))
        self._form = _with_topic_hole(form, len(self._topic))

    def frame(self, opaque: int, message: int, now_ns: int) -> bytes:
        """Make a batch of messages numbered from this number on."""
        return self.frame_to(self._topic, opaque, message, now_ns)

    def frame_to(self, topic: bytes, opaque: int, message: int, now_ns: int) -> bytes:
        """Make one to another topic, with a name of the same length: see `topic_part`."""
        values: list[object] = [topic, opaque]
        for number in range(message, message + self.count):
            values += (now_ns, number)
        return self._form % tuple(values)


def pull_header(
    topic: str, queue_id: int, queue_offset: int, count: int, *, waits: bool
) -> PullMessage:
    """Make the header of a pull; the broker holds one that waits until there is a message."""
    return PullMessage(
        consumer_group=GROUP,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=count,
        sys_flag=_SUBSCRIPTION | (_SUSPEND if waits else 0),
        commit_offset=0,
        suspend_timeout_millis=_SUSPEND_MS,
        sub_version=0,
        subscription="*",
    )


def pull_frame(topic: str, queue_id: int, queue_offset: int, count: int, opaque: int) -> bytes:
    """Make a pull that does not wait."""
    header = pull_header(topic, queue_id, queue_offset, count, waits=False)
    return _frame(RequestCode.PULL_MESSAGE, header, None, opaque)


class PullForm:
    """Pulls from one queue that do not wait; their lengths differ with the offsets."""

    def __init__(self, topic: str, queue_id: int, count: int) -> None:
        form = pull_frame(topic, queue_id, _OFFSET_MARK, count, _OPAQUE_MARK)[HEAD_SIZE:]
        form = form.replace(b"%", b"%%")
        for mark in (b"%d" % _OFFSET_MARK, b"%d" % _OPAQUE_MARK):
            assert form.count(mark) == 1, mark
            form = form.replace(mark, b"%d")
        self._form = form

    def frame(self, queue_offset: int, opaque: int) -> bytes:
        """Make a pull."""
        header = self._form % (queue_offset, opaque)
        return frame_head(JSON.serialize_type, len(header), 0) + header


def _send_header(
    topic_size: int, queue_id: int, queues: int, properties: str, *, batch: bool
) -> SendMessageV2:
    return SendMessageV2(
        producer_group=GROUP,
        topic=_TOPIC_MARK * topic_size,
        default_topic="TBW102",
        default_topic_queue_nums=queues,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
        properties=properties,
        batch=batch,
    )


def _frame(code: int, header: Header, body: bytes | None, opaque: int) -> bytes:
    request = Command.request(code, header, body=body, opaque=opaque)
    return b"".join(Connection().send(request))


def _form(code: int, header: Header, body: bytes) -> bytes:
    frame = _frame(code, header, body, _OPAQUE_MARK).replace(b"%", b"%%")
    for mark, how in (
        (b"%d" % _OPAQUE_MARK, b"%07d"),
        (_MESSAGE_MARK.encode(), b"%012X"),
        (_TIME_MARK, b"%019d"),
    ):
        assert mark in frame, mark
        frame = frame.replace(mark, how)
    return frame


def _with_topic_hole(form: bytes, topic_size: int) -> bytes:
    mark = b'"%b"' % (_TOPIC_MARK * topic_size).encode()
    assert form.count(mark) == 1, mark
    return form.replace(mark, b'"%b"')
