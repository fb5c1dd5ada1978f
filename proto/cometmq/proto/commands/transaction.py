"""Transactional messages: ending a half message, and asking how it ends."""

from __future__ import annotations

from enum import IntEnum

from cometmq.proto.header import I32, I64, Header


class TransactionEnd(IntEnum):
    """The outcome of a half message: the values of `EndTransaction.commit_or_rollback`.

    They are equal to the transaction bits of a message's flags.
    """

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class EndTransaction(Header):
    """37 END_TRANSACTION: the producer decides."""

    producer_group: str
    tran_state_table_offset: I64  # In the half queue: `queue_offset` in the answer to the send.
    commit_log_offset: I64  # Physical.
    commit_or_rollback: I32
    msg_id: str  # The unique key.
    from_transaction_check: bool = False  # In answer to 39.
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionState(Header):
    """39 CHECK_TRANSACTION_STATE: the broker asks a producer to decide."""

    tran_state_table_offset: I64
    commit_log_offset: I64
    msg_id: str | None = None  # The unique key.
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None  # Apache names the half topic; the real one is in the body.


class ResumeCheckHalfMessage(Header):
    """323 RESUME_CHECK_HALF_MESSAGE: ask again about a given-up half message."""

    msg_id: str  # An offset message id.
    topic: str | None = None
