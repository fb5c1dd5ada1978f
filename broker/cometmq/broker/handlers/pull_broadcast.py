"""Pulls for broadcasting groups: recording their offsets, and answering from that record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.broker.session import Session
    from cometmq.proto.commands.pull import PullMessage

BY_PROXY: Final = 1
"""The `request_source` of a proxy that pulls for a broadcast."""


def first_offset(header: PullMessage, session: Session) -> int | None:
    """Note the offset that a member pulls from; return the one to continue at instead, if any."""
    state = session.state
    reset = state.offsets.resets.get((header.consumer_group, header.topic, header.queue_id))
    if reset is not None:  # The answer tells the member of the reset.
        note_pull(header, session, reset)
        return None
    client_id = _client_id(header, session)
    if client_id is None or not state.config.broadcast_offsets_enable:
        return None
    by_proxy = header.request_source == BY_PROXY
    first = state.broadcasts.first_offset(
        header.topic,
        header.consumer_group,
        header.queue_id,
        client_id,
        header.queue_offset,
        by_proxy=by_proxy,
        now_ms=state.elapsed_ms(),
    )
    note_pull(header, session, header.queue_offset if first is None else first)
    return first


def note_pull(header: PullMessage, session: Session, offset: int) -> None:
    """Note the offset that a member pulls from, or is told to."""
    state = session.state
    client_id = _client_id(header, session)
    if client_id is None or offset < 0 or not state.config.broadcast_offsets_enable:
        return
    state.broadcasts.update(
        header.topic,
        header.consumer_group,
        header.queue_id,
        offset,
        client_id,
        by_proxy=header.request_source == BY_PROXY,
        now_ms=state.elapsed_ms(),
    )


def _client_id(header: PullMessage, session: Session) -> str | None:
    """Return the id of the client that pulls; None if it is not a member."""
    if header.request_source == BY_PROXY:
        return header.proxy_forward_client_id
    group = session.state.consumers.find(header.consumer_group)
    member = None if group is None else group.members.get(session.peer)
    return None if member is None else member.client_id
