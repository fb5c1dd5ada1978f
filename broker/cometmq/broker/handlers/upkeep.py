"""Removing expired files when an operator asks: of queues (306) and of the log (329)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.proto.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.broker.session import Session
    from cometmq.proto.command import Command

log = logging.getLogger(__name__)


def clean_expired_consume_queue(request: Command, session: Session) -> Command:
    """306: remove queue files whose messages have expired, in the background."""
    session.state.store.expiry.ask_queues()
    log.info("expired queue files are removed, asked by %s", session.peer.host)
    return request.answer(ResponseCode.SUCCESS)


def delete_expired_commit_log(request: Command, session: Session) -> Command:
    """329: remove expired segments at any hour of the day, in the background."""
    session.state.store.expiry.ask()
    log.info("expired segments are removed, asked by %s", session.peer.host)
    return request.answer(ResponseCode.SUCCESS)
