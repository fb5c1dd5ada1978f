"""The record that fills what a repair has no name for: of bytes that were damaged, or too few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.sysflag import TransactionType

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage

FILLER_TOPIC: Final = b"COMETMQ_DAMAGED"


def is_filler(message: StoredMessage) -> bool:
    """Whether a record is what fills the rest of a range; no queue and no index have it."""
    return (
        message.sys_flag == TransactionType.ROLLED_BACK.value
        and FILLER_TOPIC.startswith(message.topic_raw)
        and not message.properties_raw
    )
