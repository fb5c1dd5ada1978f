"""How often a batch is committed to a table that others change."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.committing import commit_to

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.folders import Folder


class LostError(Exception):
    """Another commit came first."""


class There:
    """A table's folder."""

    path = "/data/orders"


def test_a_batch_is_committed_again_until_others_leave_the_table_alone() -> None:
    tries: list[int] = []

    def commit() -> None:
        tries.append(1)
        if len(tries) < wins_at:
            raise LostError

    for wins_at in (1, 5):
        tries.clear()
        commit_to(cast("Folder", There()), 7, LostError, commit)
        assert len(tries) == wins_at
    wins_at = 6
    tries.clear()
    with pytest.raises(PipelineError, match="/data/orders is changed by others all the time, so b"):
        commit_to(cast("Folder", There()), 7, LostError, commit)
    assert len(tries) == 5


def test_what_is_wrong_with_a_commit_is_not_tried_again() -> None:
    tries: list[int] = []

    def full() -> None:
        tries.append(1)
        raise OSError(28, "No space left on device")

    with pytest.raises(PipelineError, match="path: /data/orders: its disk is full"):
        commit_to(cast("Folder", There()), 7, LostError, full)
    assert len(tries) == 1
