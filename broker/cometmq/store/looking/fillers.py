"""The records that a repair has put in the place of damaged bytes, see `placeholders`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.sysflag import TransactionType

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage

FILLER_TOPIC: Final = b"COMETMQ_DAMAGED"
NOBODY: Final = b"\x7f\0\0\x01\0\0\0\0"
"""What these records have as hosts: port 0, which no broker listens on."""


def is_filler(message: StoredMessage) -> bool:
    """Whether it fills the rest of a range, without a name; no queue and no index have it."""
    return (
        message.sys_flag == TransactionType.ROLLED_BACK.value
        and FILLER_TOPIC.startswith(message.topic_raw)
        and not message.properties_raw
    )


def is_of_repair(message: StoredMessage) -> bool:
    """Whether a repair has put a record there: for a message that was lost, or as a filler."""
    is_nobody = message.store_host == NOBODY == message.born_host
    return is_nobody and not any(message.body)
