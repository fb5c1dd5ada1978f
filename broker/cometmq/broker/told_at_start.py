"""Warnings about a store that a start has opened: what was missing or torn, or will be trouble."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.left_waiting import left_waiting
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME
from cometmq.store.upkeep.checkpoint import CHECKPOINT_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.broker.config import BrokerConfig
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.message_store import MessageStore

_LOG_FILES_MIN: Final = 20
"""On a disk with room for fewer files of the log, the next one takes more than 5%."""

_WITHOUT: Final = {
    CHECKPOINT_NAME: "without it this start read the whole log",
    QUEUE_ENDS_NAME: "without it this start could not notice a queue that was lost",
}
"""By lost note of the store: the consequence of the loss."""


def told_at_start(
    store: MessageStore, config: BrokerConfig, filesystem: FileSystem
) -> Iterator[str]:
    """Yield a line for each thing that the operator should know."""
    path = config.store_path
    if store.made_queues:
        yield (
            f"{path}/consumequeue: was missing: {store.made_queues} queues were rebuilt from the"
            " log, without what expired; a queue that has no message in the log goes on where"
            " it was known to end"
        )
    for name in store.lost_notes:
        yield (
            f"{path}/{name}: was damaged or missing, and was written anew: {_WITHOUT[name]};"
            " stop the broker and run `cometmq store verify` to see whether more is"
        )
    if store.kept is not None:
        yield (
            f"{path}: the end of the log was torn, as a power cut leaves it, and was cut off: the"
            f" bytes are kept in {store.kept}"
        )
    if (size := store.segments.size) > store.expiry.space().total // _LOG_FILES_MIN:
        yield (
            f"{path}: a file of the log has {size} bytes, more than 5% of the disk: the next one"
            f" may take it above {config.store.disk_used_percent_max}% at once, and puts are"
            " refused then; a larger disk helps, or with a new store a smaller segment_size"
        )
    if text := left_waiting(store, filesystem, f"{path}/config"):
        yield f"{path}: {text}"
