"""What the broker adds to sends of all kinds: where and when they come from, and an id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.proto.properties import set_property
from cometmq.store.log.turn import Origin

if TYPE_CHECKING:
    from cometmq.broker.session import Session, State
    from cometmq.proto.commands.send import SendMessage


def origin_of(header: SendMessage, session: Session, sys_flag: int) -> Origin:
    """Return the origin of a message of this turn."""
    acknowledgements = session.state.acknowledgements
    return Origin(
        acknowledgements.turn_ms or acknowledgements.begin(),
        header.born_timestamp,
        session.born_host,
        sys_flag,
        header.reconsume_times,
    )


def identified(properties: bytes, unique_id: bytes | None, state: State) -> tuple[bytes, bytes]:
    """Return properties with a unique id, and the id: the message's own, or a new one."""
    if unique_id is not None:
        return properties, unique_id
    unique_id = state.unique_ids.make(state.now_ms()).encode()
    return set_property(properties, b"UNIQ_KEY", unique_id), unique_id
