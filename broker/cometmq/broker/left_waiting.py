"""Messages with a delivery time that an Apache broker left in its store; nobody delivers them here.

Apache's 5.x keeps such messages in a special topic, with a timer wheel beside it that says when
each is due. This broker has no such wheel and reads the topic like any other. The messages there
would wait for ever, so a start warns of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.bodies import TimerMetrics
from cometmq.store.disk.names import some_of
from cometmq.store.errors import StoreFormatError
from cometmq.store.tables import TIMER_METRICS, TableFile

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.message_store import MessageStore

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"


def left_waiting(store: MessageStore, filesystem: FileSystem, folder: str) -> str | None:
    """Describe the messages of a store that wait for a delivery time; None if there are none.

    `folder` is the folder of the tables, where Apache counts the waiting messages by topic. If that
    count cannot be read, any message in the timer topic may be waiting.
    """
    here = store.max_offset(TIMER_TOPIC, 0) - store.min_offset(TIMER_TOPIC, 0)
    if here <= 0:
        return None
    waiting = _counted(filesystem, folder)
    if waiting is None:
        which = f"any of its {here} messages"
    elif waiting:
        counted = [f"{count} of {topic}" for topic, count in sorted(waiting.items())]
        which = f"by config/{TIMER_METRICS} {some_of(counted)}"
    else:
        return None
    return (
        f"{TIMER_TOPIC} is where an Apache broker kept messages with a delivery time, and {which}"
        " may still wait there: this broker delivers none of them. Have an Apache broker open the"
        " store until they are due, or send them again yourself:"
        f" `cometmq tail {TIMER_TOPIC} --no-follow` shows them"
    )


def _counted(filesystem: FileSystem, folder: str) -> dict[str, int] | None:
    try:
        loaded = TableFile(filesystem, folder, TIMER_METRICS).load(TimerMetrics.from_tree)
    except StoreFormatError:
        return None
    if not loaded.is_found:
        return None
    counts = TimerMetrics.from_tree(loaded.tree).timing_count
    return {topic: each.count for topic, each in counts.items() if each.count > 0}
