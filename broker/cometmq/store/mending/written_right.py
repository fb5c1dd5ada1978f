"""What a repair writes over sound bytes: the heads of records, and the checksums of sealed blocks.

If only a block's checksum is wrong, while every record in it is sound by itself, a bit may have
changed in what only the block's checksum covers (a property, a time), or the checksum itself may be
damaged. Nobody can tell, so a start refuses the block. An operator who has looked at it may accept
it, and then the checksum is rebuilt from what is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.message import read_message
from cometmq.proto.record import QUEUE_OFFSET_AT
from cometmq.store.looking.right_heads import QUEUE_ID_AT, placed
from cometmq.store.upkeep.integrity import Integrity
from cometmq.store.upkeep.sealing import INTEGRITY_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cometmq.store.log.segments import Segments
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.looking.log_check import Damage
    from cometmq.store.upkeep.integrity import Block

_NUMBER_END: Final = QUEUE_OFFSET_AT + 8


def write_places(segments: Segments, heads: Iterable[Damage]) -> None:
    """Write the right heads of records into the log, and sync that.

    Nothing else is written, so that such a record never looks damaged: if this is interrupted, the
    entries still show which messages these records are.
    """
    pieces: list[tuple[int, bytes]] = []
    for head in heads:
        assert head.truth is not None, head
        record = read_message(segments.read(head.start, head.end - head.start))
        message = placed(record, head.truth)
        assert message is not None, head
        pieces.append((head.start + QUEUE_ID_AT, message.raw[QUEUE_ID_AT:_NUMBER_END]))
        pieces.append((head.start + message.topic_start, message.topic_raw))
    segments.overwrite(pieces)


def accept_blocks(store: Inspected, blocks: Sequence[Block]) -> None:
    """Rebuild the checksums of blocks from what is there, and sync them."""
    integrity = Integrity(store.filesystem, f"{store.root}/{INTEGRITY_FOLDER}", store.segments.size)
    for block in blocks:
        integrity.reseal(block.physical_offset, store.segments.read)
