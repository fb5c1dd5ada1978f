"""Which job began a checkpoint: what one job has read would count as read by another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.folders import last_batch
from cometmq.pipeline.jobs.torn_checkpoints import ENDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.pipeline.jobs.folders import Folder
    from cometmq.pipeline.jobs.report import Report

_BEGUN_BY: Final = "cometmq-job.json"
"""The file in a checkpoint that says which job began it."""


def has_begun(offsets: Iterable[str]) -> bool:
    """Whether a stream has a batch, by the names in the folder of Spark's batch ends."""
    return any(name.isdigit() for name in offsets)


def was_started(checkpoint: Folder) -> bool:
    """Whether a job's stream was started on it, even if it has no batch."""
    return checkpoint.exists(_BEGUN_BY)


def refuse_others(checkpoint: Folder, report: Report) -> None:
    """Refuse a checkpoint of another job, and to begin one where results are."""
    if not has_begun(checkpoint.names(ENDS)):
        if last_batch(checkpoint) >= 0:
            raise OptionError(
                f"checkpoint: {checkpoint.path} has results of a job, and readers of these would"
                " take files of a checkpoint for part of them; choose another folder"
            )
    elif checkpoint.exists(_BEGUN_BY):
        said = checkpoint.read_json(
            _BEGUN_BY, if_damaged="remove it, if this job began what is there"
        )
        if said.get("job") != report.job:
            raise OptionError(
                f"checkpoint: {checkpoint.path} was begun by {said.get('job')}, so what that has"
                f" read would count as read by {report.job}; choose another folder"
            )


def note_job(checkpoint: Folder, report: Report) -> None:
    """Note which job the checkpoint belongs to, right before its stream starts."""
    if not (checkpoint.exists(_BEGUN_BY) and has_begun(checkpoint.names(ENDS))):
        checkpoint.write(json.dumps({"job": report.job}) + "\n", _BEGUN_BY)
