"""From which batch on the rows of a stream have said when their messages were stored.

A row is known again by where its message was and, where it says so, by when that was stored. Rows
that do not say so look like the ones that were sent from the same places of a topic that was made
anew since, and would be left out. So a checkpoint notes when rows began to say it: behind that none
is taken for one that did not, and SQL that has no time any more is refused.

A run whose rows say it notes that before its stream starts, as its plan: Spark notes a batch before
a row of it is sent, and a run that is stopped in between would leave a batch of which nobody knows
whether rows were sent. With the first rows that are sent it is no plan any more; until then a run
whose rows do not say the time may go on, and strikes the plan out.
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
"""In a checkpoint: the first batch of which every row that was sent says the time."""


class _Note(NamedTuple):
    first: int
    is_plan: bool


def refuse_untimed(checkpoint: Folder) -> None:
    """Refuse rows that do not say the time, where an earlier run's did."""
    note = _noted(checkpoint)
    if note is not None and not note.is_plan:
        raise OptionError(
            f"sql: the rows have lost {TIME}, which those had that were sent with this checkpoint"
            " up to now: they would be sent twice, or taken for those of a topic that was deleted"
            " and made anew, and left out; select it, too"
        )


def drop_plan(checkpoint: Folder) -> None:
    """Strike out what an earlier run planned, before a stream starts whose rows say no time."""
    if checkpoint.exists(_TIMED):
        checkpoint.write(json.dumps({"from": None}) + "\n", _TIMED)


def plan_timed(checkpoint: Folder) -> int:
    """Return the first batch of which no run sent rows that do not say the time, and note it.

    For a run whose rows do, before its stream starts.
    """
    note = _noted(checkpoint)
    if note is not None:
        return note.first
    first = last_begun(checkpoint) + 1
    checkpoint.write(json.dumps({"from": first, "is_plan": True}) + "\n", _TIMED)
    return first


def note_timed(checkpoint: Folder, first: int) -> None:
    """Note in front of what is sent that it is no plan any more; a run that sends nothing does not.

    For the same first batch that was planned.
    """
    if _noted(checkpoint) != (first, False):
        checkpoint.write(json.dumps({"from": first}) + "\n", _TIMED)


def _noted(checkpoint: Folder) -> _Note | None:
    """Return what the note says; `None` without one, or where the stream begins anew."""
    if last_begun(checkpoint) < 0 or not checkpoint.exists(_TIMED):
        return None
    said = checkpoint.read_json(
        _TIMED,
        if_damaged="put it back from a copy; or remove it, and the rows of a topic that was made"
        " anew within the hour may be left out",
        fields=["from"],
    )
    if said["from"] is None:
        return None
    return _Note(int(said["from"]), bool(said.get("is_plan")))
