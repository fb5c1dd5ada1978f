"""How refusals are answered, in Apache's words, because people search for these."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.send import SendMessageRefusal
from cometmq.proto.errors import RemoteProtocolError
from cometmq.store.errors import PutRefusedError, StoreFilesError, disk_error_text

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.session import Session
    from cometmq.proto.command import Command

log = logging.getLogger(__name__)

FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
REMARK_LENGTH_MAX: Final = 4096
"""Remarks repeat what a peer sent, which may be long."""

Refusal = (RequestError, PutRefusedError, RemoteProtocolError, StoreFilesError, OSError)
"""The exceptions by which a handler refuses: its own, the store's, the protocol's, and those for
trouble in the store's folder."""


def refuse(
    request: Command,
    session: Session,
    error: RequestError | PutRefusedError | RemoteProtocolError | StoreFilesError | OSError,
) -> Command:
    """Turn a refusal into an answer, and count it."""
    state = session.state
    if isinstance(error, PutRefusedError):
        error = put_refusal(error, state.config)
    elif isinstance(error, RemoteProtocolError):
        error = RequestError(ResponseCode.SYSTEM_ERROR, str(error))
    elif isinstance(error, StoreFilesError | OSError):
        error = _files_refusal(error)
    state.traffic.refused[request.code, error.code] += 1
    return request.answer(error.code, error.fields, remark=error.remark[:REMARK_LENGTH_MAX])


def send_refusal(
    config: BrokerConfig, code: ResponseCode, remark: str, *, may_be_stored: bool = False
) -> RequestError:
    """Refuse a send; like any answer to a send, it carries the region and the trace switch."""
    fields = SendMessageRefusal(
        region_id=config.region_id,
        trace_on=config.trace_on,
        may_be_stored=may_be_stored or None,
    )
    return RequestError(code, remark, fields)


def _files_refusal(error: StoreFilesError | OSError) -> RequestError:
    """Log trouble in the store's folder that a request has come upon, and refuse with it."""
    text = disk_error_text(error) if isinstance(error, OSError) else str(error)
    log.error("%s", text)
    return RequestError(ResponseCode.SYSTEM_ERROR, text)


def put_refusal(
    error: PutRefusedError, config: BrokerConfig, *, may_be_stored: bool = False
) -> RequestError:
    """Refuse a send that the store has refused, or that it has written and cannot sync."""
    if error.code is ResponseCode.MESSAGE_ILLEGAL:
        remark = (
            "the message is illegal, maybe msg body or properties length not matched. msg body"
            f" length limit {config.store.message_size_max}B, msg properties length limit 32KB."
        )
    elif error.code is ResponseCode.SYSTEM_BUSY:
        remark = f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {error}"
    else:
        remark = f"service not available now. {error}"
    return send_refusal(config, error.code, remark, may_be_stored=may_be_stored)


def read_failed(request: Command, error: OSError) -> Command:
    """Answer a request whose messages cannot be read from the disk."""
    return request.answer(ResponseCode.SYSTEM_ERROR, remark=f"a read failed: {error}")


def no_topic(name: str) -> RequestError:
    """Refuse a pull from a topic that does not exist."""
    # With a blank before `FAQ`, unlike the refusal of a send.
    return RequestError(
        ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {FAQ}"
    )
