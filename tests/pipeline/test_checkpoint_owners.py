"""Which job a checkpoint belongs to, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.checkpoint_owners import note_job, refuse_others
from cometmq.pipeline.jobs.report import Report

OURS, THEIRS = json.dumps({"job": "mirror"}), json.dumps({"job": "archive"})
NOTE = "cometmq-job.json"


class Files:
    """A folder that is only in memory: paths, with what is in the files."""

    path = "checkpoint"

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def names(self, *names: str) -> list[str]:
        start = "".join(f"{name}/" for name in names)
        below = [each.removeprefix(start) for each in self.files if each.startswith(start)]
        return sorted({each.partition("/")[0] for each in below})

    def exists(self, name: str) -> bool:
        return name in self.files

    def read_json(self, name: str, *, if_damaged: str) -> Any:
        assert if_damaged
        return json.loads(self.files[name])

    def write(self, text: str, name: str) -> None:
        self.files[name] = text


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ({}, ""),
        ({"offsets/0": "", NOTE: OURS}, ""),
        ({"offsets/0": "", NOTE: THEIRS}, "was begun by archive, so what that has read would"),
        ({"offsets/0": "", NOTE: "{}"}, "was begun by None"),
        ({"offsets/0": ""}, ""),  # An earlier version noted no job.
        ({NOTE: THEIRS}, ""),  # It ended before it had read anything.
        ({"offsets/.0.tmp": "", NOTE: THEIRS}, ""),
        ({"batch=000000/part.parquet": ""}, "has results of a job"),
        ({"batch=000000/part.parquet": "", "offsets/0": "", NOTE: OURS}, ""),
    ],
)
def test_a_checkpoint_is_of_the_job_that_has_read_by_it(
    files: dict[str, str], refused: str
) -> None:
    folder: Any = Files(dict(files))
    report = Report("mirror")
    if refused:
        with pytest.raises(OptionError, match=f"^checkpoint: checkpoint {refused}"):
            refuse_others(folder, report)
        return
    refuse_others(folder, report)
    note_job(folder, report)
    assert json.loads(folder.files[NOTE]) == {"job": "mirror"}
    assert {**folder.files, NOTE: ""} == {**files, NOTE: ""}
