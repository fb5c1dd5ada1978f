"""Offsets of groups: resetting (220, 222), querying (221, 223, 308), copying by slaves (43, 45)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cometmq.proto.bodies.data_version import DataVersion
from cometmq.proto.bodies.message_queue import MessageQueue
from cometmq.proto.body import Body, empty_table, preset
from cometmq.proto.errors import BodyError
from cometmq.proto.fastjson import loads
from cometmq.proto.header import I32, I64

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer


class ResetOffsets(Body):
    """220 and the answer to 222: the offset at which the group restarts in each queue."""

    offset_table: dict[MessageQueue, I64] = empty_table()


class QueueOffset(Body):
    """One queue and its offset in `ResetOffsetList`."""

    broker_name: str
    offset: I64
    queue_id: I32
    topic: str


class ResetOffsetList(Body):
    """220 for clients in C++: the form that the broker sends if 222 came with language CPP."""

    offset_table: tuple[QueueOffset, ...] = preset(())

    def by_queue(self) -> ResetOffsets:
        """Return the same as a map."""
        return ResetOffsets(
            offset_table={
                MessageQueue(
                    broker_name=e.broker_name, queue_id=e.queue_id, topic=e.topic
                ): e.offset
                for e in self.offset_table
            }
        )


def decode_reset_offsets(data: Buffer | None) -> ResetOffsets:
    """Read the body of 220 in either of its forms."""
    tree: Any = loads(data)
    if not isinstance(tree, dict):
        raise BodyError("ResetOffsets: expected an object")
    if isinstance(tree.get("offsetTable"), list):  # pyright: ignore[reportUnknownMemberType]  # A tree.
        return ResetOffsetList.from_tree(tree).by_queue()
    return ResetOffsets.from_tree(tree)


class ConsumerStatus(Body):
    """The answers to 221 (a client's `message_queue_table`) and 223 (by client id, all of them)."""

    consumer_table: dict[str, dict[MessageQueue, I64]] = empty_table()
    message_queue_table: dict[MessageQueue, I64] = empty_table()


class CorrectionOffsets(Body):
    """The answer to 308: by queue id, the least offset of the compared groups."""

    correction_offsets: dict[I32, I64] = empty_table()


class ConsumerOffsets(Body):
    """The answer to 43: by `topic@group` and queue id, as a slave copies it from its master.

    A master of 5.5.0 also writes `pull_offset_table`, which no slave of 5.5.0 can read: its class
    does not have the member, and fastjson 2 cannot skip integer keys. Leave it out for Java slaves.
    """

    data_version: DataVersion | None = None
    group_topic_map: dict[str, tuple[str, ...]] | None = None
    offset_table: dict[str, dict[I32, I64]] = empty_table()
    pull_offset_table: dict[str, dict[I32, I64]] | None = None


class DelayOffsets(Body):
    """The answer to 45: the progress of deliveries by delay level."""

    data_version: DataVersion | None = None
    offset_table: dict[I32, I64] = empty_table()
