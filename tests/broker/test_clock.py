"""A broker's clock: its sleepers wake when it jumps."""

from __future__ import annotations

import trio

from cometmq.broker import clock as machine
from cometmq.broker.clock import Clock

HOUR_MS = 3_600_000


async def test_a_jump_moves_both_clocks_but_no_sign_of_life() -> None:
    clock = Clock()
    clock.jump(HOUR_MS)
    assert HOUR_MS <= clock.now_ms() - machine.now_ms() + 1000 <= HOUR_MS + 2000
    assert HOUR_MS <= clock.elapsed_ms() - clock.alive_ms() + 1000 <= HOUR_MS + 2000


async def test_who_sleeps_wakes_with_the_jump_that_reaches_its_time() -> None:
    clock, woken = Clock(), trio.Event()

    async def sleep() -> None:
        await clock.sleep(3600)
        woken.set()

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleep)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(HOUR_MS // 2)
            await trio.testing.wait_all_tasks_blocked()
            assert not woken.is_set()
            clock.jump(HOUR_MS // 2)
            await woken.wait()


async def test_without_a_jump_a_sleep_takes_its_time() -> None:
    clock = Clock()
    begin = clock.elapsed_ms()
    await clock.sleep(0.02)
    assert clock.elapsed_ms() - begin >= 20


async def test_a_function_that_follows_is_called_behind_each_jump() -> None:
    clock = Clock()
    seen: list[int] = []
    let_go = clock.follow(lambda: seen.append(clock.elapsed_ms() - clock.alive_ms()))
    clock.jump(HOUR_MS)
    clock.jump(HOUR_MS)
    let_go()
    clock.jump(HOUR_MS)
    assert len(seen) == 2
    assert HOUR_MS <= seen[0] <= HOUR_MS + 1000 <= 2 * HOUR_MS <= seen[1]
