"""Held pulls: each looks when it should, and leaves nothing in memory."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from cometmq.broker.long_polling import HeldPull, LongPolling
from cometmq.net import LATER
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command

if TYPE_CHECKING:
    from cometmq.net import Later


@dataclass(eq=False)
class Waiter:
    """Looks for messages, and notes of each look whether it was to be the last."""

    finds: bool = True
    looks: list[bool] = field(default_factory=list[bool])

    def look(self, is_last: bool) -> Later | None:
        self.looks.append(is_last)
        return LATER if self.finds or is_last else None


def held(waiter: Waiter, deadline_ms: int, queue_id: int = 0, peer: object = "peer") -> HeldPull:
    request = Command.request(RequestCode.PULL_MESSAGE)
    return HeldPull(cast("Any", peer), request, "T", queue_id, deadline_ms, waiter.look)


def test_the_last_look_is_at_the_deadline_and_not_before() -> None:
    polling, early, late = LongPolling(10), Waiter(finds=False), Waiter(finds=False)
    assert polling.hold(held(late, 1_001))
    assert polling.hold(held(early, 1_000))
    polling.tick(999)
    assert not early.looks + late.looks
    polling.tick(1_000)
    assert (early.looks, late.looks, len(polling)) == ([True], [], 1)
    polling.tick(60_000)
    assert (early.looks, late.looks, len(polling)) == ([True], [True], 0)


def test_an_answered_pull_is_forgotten_at_once_however_long_it_could_have_waited() -> None:
    polling = LongPolling(10)
    gone: list[weakref.ref[Waiter]] = []
    for _ in range(100):
        waiter = Waiter()
        gone.append(weakref.ref(waiter))
        assert polling.hold(held(waiter, 15_000))
        del waiter
        polling.arrived("T", 0)
    assert not any(each() for each in gone)


def test_who_leaves_is_not_looked_for_again() -> None:
    polling, stays, leaves = LongPolling(10), Waiter(finds=False), Waiter(finds=False)
    assert polling.hold(held(leaves, 500, peer="leaves"))
    assert polling.hold(held(stays, 500, peer="stays"))
    polling.leave(cast("Any", "leaves"))
    polling.arrived("T", 0)
    polling.tick(500)
    assert (leaves.looks, stays.looks, len(polling)) == ([], [False, True], 0)
