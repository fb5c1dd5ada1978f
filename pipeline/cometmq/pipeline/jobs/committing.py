"""The commit of a batch to a table that others may change at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.full_disks import told_if_full

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.pipeline.jobs.folders import Folder

_TRIES: Final = 5


def commit_to(
    folder: Folder, batch: int, lost: type[Exception], commit: Callable[[], None]
) -> None:
    """Commit a batch, and again if it `lost` against others; each time `commit` looks anew."""
    for left in reversed(range(_TRIES)):
        try:
            with told_if_full(folder.path):
                commit()
            return
        except lost as error:
            if not left:
                raise PipelineError(
                    f"to: {folder.path} is changed by others all the time, so batch {batch} could"
                    " not be added; start this again when they are done"
                ) from error
