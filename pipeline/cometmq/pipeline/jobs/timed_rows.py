"""From which batch on the rows of a stream have the store times of their messages.

A row is recognized by the place of its message and, if the row has it, by the store time. Rows
without a time look like rows sent earlier from the same places of a topic that was since recreated,
and would be left out. So a checkpoint notes when rows began to have times: after that, no row is
taken for one without, and SQL that no longer selects the time is refused.

A run whose rows have times notes that before its stream starts, as a plan: Spark notes a batch
before its rows are sent, and if the run were stopped in between, nobody would know whether rows of
that batch were sent. When the first rows are sent, it is no longer a plan. Until then, a run whose
rows have no times may continue, and cancels the plan.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.streams import last_begun

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.folders import Folder

TIME: Final = "store_time"
_TIMED: Final = "cometmq-timed.json"
"""The file in a checkpoint with the first batch of which every sent row has the time."""


class _Note(NamedTuple):
    first: int
    is_plan: bool


def refuse_untimed(checkpoint: Folder) -> None:
    """Refuse rows without times if an earlier run's rows had them."""
    note = _noted(checkpoint)
    if note is not None and not note.is_plan:
        raise OptionError(
            f"sql: the rows have no {TIME}, which those that were sent with this checkpoint until"
            " now had: they would be sent twice, or taken for those of a topic that was deleted"
            " and recreated, and left out; select it, too"
        )


def drop_plan(checkpoint: Folder) -> None:
    """Cancel an earlier run's plan, before a stream starts whose rows have no times."""
    if checkpoint.exists(_TIMED):
        checkpoint.write(json.dumps({"from": None}) + "\n", _TIMED)


def plan_timed(checkpoint: Folder) -> int:
    """Return, and note, the first batch of which no run has sent rows without times.

    For a run whose rows have times, before its stream starts.
    """
    note = _noted(checkpoint)
    if note is not None:
        return note.first
    first = last_begun(checkpoint) + 1
    checkpoint.write(json.dumps({"from": first, "is_plan": True}) + "\n", _TIMED)
    return first


def note_timed(checkpoint: Folder, first: int) -> None:
    """Note, before rows are sent, that it is no longer a plan.

    A run that sends nothing does not call this. `first` is the batch that was planned.
    """
    if _noted(checkpoint) != (first, False):
        checkpoint.write(json.dumps({"from": first}) + "\n", _TIMED)


def _noted(checkpoint: Folder) -> _Note | None:
    """Return the note; `None` if there is none, or if the stream starts over."""
    if last_begun(checkpoint) < 0 or not checkpoint.exists(_TIMED):
        return None
    said = checkpoint.read_json(
        _TIMED,
        if_damaged="put it back from a copy; or remove it, and the rows of a topic that was"
        " recreated within the hour may be left out",
        fields=["from"],
    )
    if said["from"] is None:
        return None
    return _Note(int(said["from"]), bool(said.get("is_plan")))
