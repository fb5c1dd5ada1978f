"""Any bytes are a record or `MessageError`, and a record written from its fields is the same."""

from __future__ import annotations

import contextlib

from cometmq.proto.errors import MessageError
from cometmq.proto.message import read_message
from cometmq.proto.record import encode_record


def check(data: bytes) -> None:
    message = read_message(data)
    assert message.end <= len(data)
    with contextlib.suppress(MessageError):
        assert message.topic.encode() == message.topic_raw
    assert message.properties.get("TAGS") == message.tags
    assert len(message.offset_id) in (32, 56)
    assert message.message_id
    assert str(message.born_address)
    message.is_body_intact()
    message.is_record_intact()
    again = read_message(
        encode_record(
            topic=message.topic_raw,
            body=message.body,
            properties=message.properties_raw,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            physical_offset=message.physical_offset,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=message.store_timestamp,
            store_host=message.store_host,
            sys_flag=message.sys_flag,
            flag=message.flag,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )
    )
    assert again.is_body_intact()
    # The checksum may have been wrong, and a version 2 record may have had a short topic.
    if message.version == again.version:
        assert again.raw[12:] == message.raw[12:]
