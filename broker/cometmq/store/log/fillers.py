"""The records that a repair put in the place of damaged bytes, see `placeholders`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.sysflag import TransactionType

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage

FILLER_TOPIC: Final = b"COMETMQ_DAMAGED"
NOBODY: Final = b"\x7f\0\0\x01\0\0\0\0"
"""The hosts in these records: with port 0, on which no broker listens."""


def is_filler(message: StoredMessage) -> bool:
    """Whether a record fills the rest of a range, for no message; no queue or index has it."""
    return (
        message.sys_flag == TransactionType.ROLLED_BACK.value
        and FILLER_TOPIC.startswith(message.topic_raw)
        and not message.properties_raw
    )


def is_of_repair(message: StoredMessage) -> bool:
    """Whether a repair put the record there: for a lost message, or as a filler."""
    is_nobody = message.store_host == NOBODY == message.born_host
    return is_nobody and not any(message.body)
