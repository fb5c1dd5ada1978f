"""The commit of a batch to a table that others may change at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.full_disks import told_if_full

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.types import StructType

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


def require_columns(folder: Folder, there: StructType, schema: StructType) -> None:
    """Refuse a table that somebody has changed so that a batch's columns no longer fit."""
    where = f"to: {folder.path} is a table"
    if lost := [each for each in schema.names if each not in there.names]:
        raise PipelineError(
            f"{where} without {', '.join(lost)}, which each batch has: it was dropped or renamed."
            " Add it again, or give it back its name, and start this again"
        )
    for each in schema:
        now, before = (of[each.name].dataType.simpleString() for of in (there, schema))
        if now != before:
            raise PipelineError(
                f"{where} whose column {each.name} is now {now}, and not {before}, as in each"
                " batch; archive to another folder"
            )


def divided_by(folder: Folder, now: Sequence[str], parts: Sequence[str]) -> PipelineError:
    """Make the error for a table that somebody has divided by others than a batch's parts."""
    return PipelineError(
        f"to: {folder.path} is a table that is now divided by {', '.join(now) or 'nothing'}, and"
        f" not by {', '.join(parts) or 'nothing'}; archive to another folder"
    )
