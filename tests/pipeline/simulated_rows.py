"""What tasks read of a simulated cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.pipeline.simulated_servers import RECORD, passes

from cometmq.pipeline.errors import PASSING
from cometmq.pipeline.fetching import chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.pipeline.simulated import World

    from cometmq.pipeline.fetching import Pulling
    from cometmq.pipeline.planning import Range

_ATTEMPTS: Final = 3


def rows_of(world: World, tasks: Sequence[Sequence[Range]], how: Pulling) -> list[tuple[int, int]]:
    """Return the messages that tasks read, each in several attempts: by life and offset, sorted.

    Those that brokers left out, as they do not pass a filter, count as read.
    """
    rows: list[tuple[int, int]] = []
    for task in world.random.sample(tasks, len(tasks)):
        for attempt in range(_ATTEMPTS):
            for broker in world.brokers.values():
                broker.left_out.clear()
            try:
                read = [
                    (life, offset)
                    for chunk in chunks(task, how)
                    for offset, life in RECORD.iter_unpack(chunk.data)
                    if chunk.first <= offset < chunk.end
                ]
            except PASSING:
                if attempt == _ATTEMPTS - 1:
                    raise
                world.waits()
            else:
                assert all(passes(how.expression, *each) for each in read), read
                rows += read + _left_out(world, task)
                break
    return sorted(rows)


def _left_out(world: World, task: Sequence[Range]) -> list[tuple[int, int]]:
    return [
        (life, offset)
        for broker in world.brokers.values()
        for life, offset in broker.left_out
        for part in task
        if part.queue == world.lives[life].queue and part.first <= offset < part.end
    ]
