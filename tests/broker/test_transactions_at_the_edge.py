"""Transactions that are too large, forged or taken back: each one hurts nobody but itself."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.broker.test_transactions import (
    COMMIT,
    ROLLBACK,
    TIMEOUT,
    Shop,
)
from tests.crash.disk import Moment, Operation, SimulatedFileSystem

from cometmq.broker.transaction_records import GROUP, HALF_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shop() -> Shop:
    return Shop(SimulatedFileSystem())


@contextmanager
def full_disk(shop: Shop) -> Iterator[None]:
    """Have the disk refuse whatever the log is to get."""

    def refuse(operation: Operation) -> None:
        is_write = operation.verb == "write" and "commitlog" in operation.path
        if is_write and operation.moment is Moment.BEFORE:
            raise OSError(errno.ENOSPC, "no room")

    shop.disk.hook = refuse
    yield
    shop.disk.hook = None
    shop.wired.broker.store.tick(shop.now_ms)


def save_all(shop: Shop) -> None:
    """Save how far everything is, once the disk has confirmed that."""
    shop.save()
    shop.wired.sync()
    shop.wired.broker.store.finish_log()
    shop.save()


def refuse_halves(shop: Shop, count: int, more: str = "") -> None:
    """Send half messages in one turn that the disk does not take."""
    with full_disk(shop):
        frames = [shop.wired.frame(shop.peer, shop.half_request(b"no", more)) for _ in range(count)]
        shop.wired.give(shop.peer, *frames)
        assert all(answer.code for answer in shop.wired.answers(shop.peer))


def test_half_messages_that_a_turn_takes_back_hide_none_that_come_later(shop: Shop) -> None:
    shop.end(shop.half(b"before"), ROLLBACK)
    refuse_halves(shop, 3)
    save_all(shop)
    halves = [shop.half(b"a"), shop.half(b"b")]
    shop.start(shop.disk.kill())
    assert shop.open_count == 2
    assert [shop.end(half, COMMIT) for half in halves] == [0, 0]
    assert shop.bodies() == [b"a", b"b"]


def test_saved_progress_is_never_ahead_of_the_half_queue(shop: Shop) -> None:
    shop.end(shop.half(b"x"), ROLLBACK)
    shop.wired.broker.transactions.table.next_offset = 10
    save_all(shop)
    assert shop.wired.broker.state.offsets.find(GROUP, HALF_TOPIC, 0) == 1


def test_who_stands_where_another_was_taken_back_waits_for_its_own_time(shop: Shop) -> None:
    refuse_halves(shop, 1, "CHECK_IMMUNITY_TIME_IN_SECONDS\x011\x02")
    peer = shop.join()
    half = shop.half(b"paid")
    shop.pass_time(TIMEOUT - 1)
    assert shop.asked(peer) == []
    shop.pass_time(1)
    assert [asked.key for asked, _ in shop.asked(peer)] == [half.key]
