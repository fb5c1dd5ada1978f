"""Locking queues for consumption in order (41), and giving them back (42)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.consumer import notify_members
from cometmq.broker.topic_names import group_problem
from cometmq.proto.bodies import LockBatch, LockedQueues
from cometmq.proto.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.broker.session import Session
    from cometmq.proto.command import Command


def lock_batch(request: Command, session: Session) -> Command:
    """41: lock queues for a client, or renew its locks; queues that do not exist are left out."""
    body = LockBatch.decode(request.body)
    state = session.state
    if (problem := group_problem(body.consumer_group)) is not None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, problem)
    queues = [
        queue
        for queue in body.mq_set
        if (topic := state.topics.find(queue.topic)) is not None
        and 0 <= queue.queue_id < topic.queue_count
    ]
    held = state.locks.lock(
        body.consumer_group, queues, body.client_id, session.peer, state.alive_ms()
    )
    answer = LockedQueues(lock_ok_mq_set=tuple(held))
    return request.answer(ResponseCode.SUCCESS, body=answer.encode())


def unlock_batch(request: Command, session: Session) -> Command:
    """42: give queues back."""
    body = LockBatch.decode(request.body)
    state = session.state
    if state.locks.unlock(body.consumer_group, body.mq_set, body.client_id):
        notify_members(state.consumers.find(body.consumer_group), state)
    return request.answer(ResponseCode.SUCCESS)
