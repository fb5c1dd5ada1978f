"""The two forms of a reset."""

from __future__ import annotations

import pytest

from cometmq.proto.bodies import (
    MessageQueue,
    QueueOffset,
    ResetOffsetList,
    ResetOffsets,
    decode_reset_offsets,
)
from cometmq.proto.errors import BodyError

QUEUES = [MessageQueue(broker_name="b", queue_id=i, topic="T") for i in range(2)]
AS_MAP = ResetOffsets(offset_table={QUEUES[0]: 7, QUEUES[1]: 0})
AS_LIST = ResetOffsetList(
    offset_table=tuple(
        QueueOffset(broker_name="b", offset=offset, queue_id=i, topic="T")
        for i, offset in enumerate((7, 0))
    )
)


def test_both_forms_read_as_the_same() -> None:
    assert decode_reset_offsets(AS_MAP.encode()) == AS_MAP
    assert decode_reset_offsets(AS_LIST.encode()) == AS_MAP


def test_the_map_is_written_so_that_go_can_split_it() -> None:
    assert AS_MAP.encode() == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:7,'
        b'{"brokerName":"b","queueId":1,"topic":"T"}:0}}'
    )


def test_the_list_is_written_as_cpp_clients_know_it() -> None:
    assert AS_LIST.encode() == (
        b'{"offsetTable":[{"brokerName":"b","offset":7,"queueId":0,"topic":"T"},'
        b'{"brokerName":"b","offset":0,"queueId":1,"topic":"T"}]}'
    )


def test_no_table_is_an_empty_one() -> None:
    assert decode_reset_offsets(b"{}") == ResetOffsets()


@pytest.mark.parametrize(
    "text",
    [b"[]", b'{"offsetTable":"x"}', b'{"offsetTable":{"T":1}}', b'{"offsetTable":[{"topic":"T"}]}'],
)
def test_what_is_neither_form_is_refused(text: bytes) -> None:
    with pytest.raises(BodyError):
        decode_reset_offsets(text)
