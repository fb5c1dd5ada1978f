"""What Apache's brokers say when they refuse, word for word: clients and people search for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.send import SendMessageRefusal

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.store.errors import PutRefusedError

FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def send_refusal(config: BrokerConfig, code: ResponseCode, remark: str) -> RequestError:
    """Refuse a send; its answer says what the others say of region and traces."""
    fields = SendMessageRefusal(region_id=config.region_id, trace_on=config.trace_on)
    return RequestError(code, remark, fields)


def put_refusal(error: PutRefusedError, config: BrokerConfig) -> RequestError:
    """Refuse a send that the store does not take."""
    if error.code is ResponseCode.MESSAGE_ILLEGAL:
        remark = (
            "the message is illegal, maybe msg body or properties length not matched. msg body"
            f" length limit {config.store.message_size_max}B, msg properties length limit 32KB."
        )
    elif error.code is ResponseCode.SYSTEM_BUSY:
        remark = f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {error}"
    else:
        remark = f"service not available now. {error}"
    return send_refusal(config, error.code, remark)


def no_topic(name: str) -> RequestError:
    """Refuse a pull from a topic that does not exist."""
    # With a blank that the refusal of a send has not.
    return RequestError(
        ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {FAQ}"
    )
