"""From which batch on the rows of a stream have said when their messages were stored.

A row is known again by where its message was and, where it says so, by when that was stored. Rows
that do not say so look like the ones that were sent from the same places of a topic that was made
anew since, and would be left out. So a checkpoint notes when rows began to say it: behind that none
is taken for one that did not, and SQL that has no time any more is refused.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.streams import last_begun

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.folders import Folder

TIME: Final = "store_time"
_TIMED: Final = "cometmq-timed.json"
"""In a checkpoint: the first batch of which every row that was sent says the time."""


def refuse_untimed(checkpoint: Folder) -> None:
    """Refuse rows that do not say the time, where an earlier run's did."""
    if _noted(checkpoint) is not None:
        raise OptionError(
            f"sql: the rows have lost {TIME}, which those had that were sent with this checkpoint"
            " up to now: they would be sent twice, or taken for those of a topic that was deleted"
            " and made anew, and left out; select it, too"
        )


def first_timed(checkpoint: Folder) -> int:
    """Return the first batch of which no run sent rows that do not say the time.

    For a run whose rows do, before its stream starts.
    """
    noted = _noted(checkpoint)
    return last_begun(checkpoint) + 1 if noted is None else noted


def note_timed(checkpoint: Folder, first: int) -> None:
    """Note what `first_timed` said, in front of what is sent; a run that sends nothing does not."""
    if _noted(checkpoint) != first:
        checkpoint.write(json.dumps({"from": first}) + "\n", _TIMED)


def _noted(checkpoint: Folder) -> int | None:
    """Return what the note says; `None` without one, or where the stream begins anew."""
    if last_begun(checkpoint) < 0 or not checkpoint.exists(_TIMED):
        return None
    said = checkpoint.read_json(
        _TIMED,
        if_damaged="put it back from a copy; or remove it, and the rows of a topic that was made"
        " anew within the hour may be left out",
        fields=["from"],
    )
    return int(said["from"])
