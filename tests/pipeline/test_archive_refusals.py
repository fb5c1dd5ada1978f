"""Which checkpoints may continue an archive, and from where, at each border and without Spark.

A wrong answer would put messages there twice, or leave some out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.pipeline.cluster import Queue
from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs import archive_writing
from cometmq.pipeline.jobs.adopting import GoingOn
from cometmq.pipeline.jobs.archive import ArchiveSettings
from cometmq.pipeline.jobs.archive_writing import Archiving, Last
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.torn_checkpoints import ENDS
from cometmq.pipeline.offsets import First, document_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.pipeline.first_messages import Part

NONE: Any = None
"""In place of Spark's objects."""
Q0, Q1, OTHER = Queue("T", "a", 0), Queue("T", "a", 1), Queue("U", "a", 0)
LAST = Last(number=6, query_id="theirs", parts=["topic", "date"], schema="", ends={})


class Files:
    """A folder that is only in memory."""

    def __init__(self, _spark: object, path: str) -> None:
        self.path = path
        self.files: dict[str, str] = {}

    def exists(self, *names: str) -> bool:
        return "/".join(names) in self.files

    def has_name(self, *_: object) -> bool:
        return False

    def names(self, name: str) -> list[str]:
        return [each for each in self.files if each == name]

    def read_json(self, name: str, **_: object) -> Any:
        return json.loads(self.files[name])

    def write(self, text: str, name: str) -> None:
        self.files[name] = text


class Archived(Archiving):
    """An archive, and what its checkpoint and the cluster say."""

    there: Last | None = LAST
    ends: Mapping[Queue, int] = {Q0: 5}

    def __init__(self, **more: Any) -> None:
        self.warnings: list[str] = []
        self.numbers: list[tuple[int, int]] = []
        run = Run(progress=lambda news: self.warnings.extend([news["warning"]]))
        settings = ArchiveSettings(nameserver="127.0.0.1:1", topic="T", to="to", **more)
        super().__init__(NONE, settings, run.report_of("archive"), run)

    def last(self) -> Last | None:
        return self.there

    def reached(self, last: Last) -> dict[str, Any]:
        assert last is self.there
        return document_of(self.ends)

    def last_messages(self) -> dict[Queue, First]:
        return {Q0: First(4, 1000), OTHER: First(4, 1000)}

    def observed(self, frame: Any) -> Any:
        return frame

    def write(self, frame: Any, number: int, batch_id: int) -> None:
        assert frame is None
        self.numbers.append((batch_id, number))


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the checkpoint and the cluster say, to be changed by tests."""
    says: dict[str, Any] = {
        "id": "ours",
        "next": 2,
        "queues": {Q0: 5},
        "from": {},
        "other": frozenset[object](),
        "going": GoingOn({}, {}, [], []),
    }

    def source_end(_: object, batch: int) -> dict[str, Any]:
        assert batch == max(says["next"] - 1, 0)
        return {"queues": document_of(says["queues"]), "from": document_of(says["from"])}

    def going_on(_settings: object, reached: Mapping[Queue, int], _last: object) -> Any:
        says["asked"] = dict(reached)
        return says["going"]

    def next_batch(_: object) -> Any:
        return says["next"]

    def query_id(_: object) -> Any:
        return says["id"]

    def made_anew(*_: object) -> Any:
        return says["other"]

    for each in (source_end, going_on, next_batch, query_id, made_anew):
        monkeypatch.setattr(archive_writing, each.__name__, each)
    monkeypatch.setattr(archive_writing, "Folder", Files)
    return says


def adopting(**more: Any) -> Archived:
    """Return an archive that another checkpoint goes on with, which was used before."""
    archived = Archived(adopt=True, **more)
    archived.checkpoint.write("", ENDS)
    return archived


def begun(archived: Archived) -> list[tuple[int, int]]:
    """Return the next batches of an archive that may be continued, with their numbers."""
    archived.prepare()
    archived.refuse_missing()
    archived.begin()
    for batch_id in (2, 3):
        archived.batch(NONE, batch_id)
    return archived.numbers


def test_batches_are_numbered_behind_those_that_an_archive_had(
    checkpoint: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shaped(_: Archiving, frame: Any) -> Any:
        return frame

    monkeypatch.setattr(Archiving, "_shaped", shaped)
    first, again = adopting(), adopting()
    assert begun(first) == [(2, 7), (3, 8)]
    again.checkpoint = first.checkpoint
    checkpoint["id"] = "theirs"
    assert begun(again) == [(2, 7), (3, 8)]
    few = adopting()
    few.there = replace(LAST, number=0)
    checkpoint |= {"id": "ours", "next": 3}  # More than are there, but others have those.
    assert begun(few) == [(2, 0), (3, 1)]
    monkeypatch.setattr(Archived, "there", None)
    checkpoint["next"] = 0
    assert begun(Archived()) == [(2, 2), (3, 3)]


def test_batches_that_are_done_and_not_there_are_named(checkpoint: dict[str, Any]) -> None:
    checkpoint["id"] = "theirs"
    for first_number, is_missing in ((5, False), (6, True)):
        archived = Archived()
        archived.checkpoint.write(json.dumps({"first_number": first_number}), "archive.json")
        archived.prepare()
        if is_missing:
            with pytest.raises(OptionError, match="does not have batches 7 to 7"):
                archived.refuse_missing()
        else:
            archived.refuse_missing()
    archived = Archived()
    archived.there, checkpoint["next"] = None, 1
    assert archived.prepare() is archived.settings
    with pytest.raises(OptionError, match="does not have batches 0 to 0"):
        archived.refuse_missing()


def check_prepared(archived: Archived, refusal: str) -> None:
    """Check that it is refused with such words, or without any, that it goes on as it was."""
    if refusal:
        with pytest.raises(OptionError, match=refusal):
            archived.prepare()
    else:
        assert archived.prepare() is archived.settings


@pytest.mark.parametrize(
    ("batches", "queues", "begins", "is_behind"),
    [
        (2, {Q0: 5}, {}, False),
        (2, {Q0: 6}, {}, False),
        (2, {Q0: 4}, {}, True),
        (2, {Q0: 5, Q1: 0}, {}, False),
        (2, {Q0: 5}, {Q0: 4}, False),
        (1, {Q0: 5}, {Q0: 4}, False),
        (0, {Q0: 9}, {Q0: 5}, False),  # Its first batch is not done: it counts where that begins.
        (0, {Q0: 9}, {Q0: 4}, True),
        (0, {Q0: 4}, {}, True),
    ],
)
def test_a_checkpoint_that_is_behind_the_archive_is_refused(
    checkpoint: dict[str, Any],
    batches: int,
    queues: dict[Queue, int],
    begins: dict[Queue, int],
    is_behind: bool,
) -> None:
    checkpoint |= {"next": batches, "queues": queues, "from": begins}
    archived = adopting()
    said = r"T/a/0 up to 5, but the checkpoint .* is at 4: mess"
    check_prepared(archived, said if is_behind else "")
    assert "asked" not in checkpoint


@pytest.mark.parametrize(
    ("ends", "going", "is_strict", "is_refused"),
    [
        ({Q0: 5, Q1: 3}, GoingOn({Q1: 3}, {}, [], []), True, True),
        ({Q0: 5, Q1: 3}, GoingOn({}, {Q1: 3}, [], []), True, True),
        ({Q0: 5, Q1: 3}, GoingOn({}, {}, [Q1], []), True, True),
        ({Q0: 5, Q1: 3}, GoingOn({}, {}, [Q1], []), False, False),
        ({Q0: 5, Q1: 3}, GoingOn({}, {}, [], ["other messages"]), True, False),
        ({Q0: 5, Q1: 0}, None, True, False),
        ({Q0: 5, OTHER: 3}, None, True, False),
    ],
)
def test_a_checkpoint_that_does_not_know_a_queue_of_the_archive_is_refused(
    checkpoint: dict[str, Any],
    ends: dict[Queue, int],
    going: GoingOn | None,
    is_strict: bool,
    is_refused: bool,
) -> None:
    archived = adopting(fail_on_data_loss=is_strict)
    archived.ends, checkpoint["going"] = ends, going
    said = r"T/a/1 up to 3, but the checkpoint .* does not know"
    check_prepared(archived, said if is_refused else "")
    assert checkpoint.get("asked") == (None if going is None else {Q1: 3})


@pytest.mark.parametrize(
    ("other", "starts", "is_refused"),
    [
        (("T", "a"), {Q0: 5}, True),
        (("T", "a"), {}, False),
        (("U", "a"), {Q0: 5}, False),
        (("T", "b"), {Q0: 5, OTHER: 5}, False),
    ],
)
def test_a_checkpoint_whose_topic_was_made_anew_and_archived_by_another_is_refused(
    checkpoint: dict[str, Any], other: Part, starts: dict[Queue, int], is_refused: bool
) -> None:
    checkpoint |= {"other": frozenset({other}), "going": GoingOn(starts, {}, [], [])}
    archived = adopting()
    said = "topic T of broker a was deleted and recreated"
    check_prepared(archived, said if is_refused else "")


def test_a_new_checkpoint_begins_where_the_archive_ends_unless_a_start_is_given(
    checkpoint: dict[str, Any],
) -> None:
    checkpoint |= {"next": 0, "going": GoingOn({Q0: 5}, {Q1: 3}, [], [])}
    archived = Archived(adopt=True)
    assert json.loads(archived.prepare().start) == {"T": {"a": {"0": 5}}}
    assert json.loads(archived.absent["absentQueues"]) == {"T": {"a": {"1": 3}}}
    assert checkpoint.pop("asked") == {Q0: 5}
    checkpoint["going"] = GoingOn({Q0: 5}, {}, [], [])
    archived = Archived(adopt=True)
    archived.prepare()
    assert (archived.absent, archived.warnings) == ({}, [])
    del checkpoint["asked"]
    archived = Archived(adopt=True, start="latest")
    assert archived.prepare() is archived.settings
    assert "asked" not in checkpoint
    with pytest.raises(OptionError, match="was begun with another checkpoint than to/_checkpoint"):
        Archived().prepare()


def test_what_a_new_checkpoint_would_lose_or_read_twice_is_refused_or_warned_of(
    checkpoint: dict[str, Any],
) -> None:
    for going, error in (
        (GoingOn({}, {}, [], ["one", "two"]), OptionError),
        (GoingOn({}, {}, [Q0], []), PipelineError),
    ):
        checkpoint["going"] = going
        with pytest.raises(error, match="--no-fail-on-data-loss"):
            Archived(adopt=True).prepare()
        archived = Archived(adopt=True, fail_on_data_loss=False)
        archived.prepare()
        assert len(archived.warnings) == max(len(going.lost), 1)


@pytest.mark.parametrize("given", [{"partition_by": "topic"}, {"schema": "id INT"}])
def test_other_columns_than_an_archive_has_are_refused(
    checkpoint: dict[str, Any], given: dict[str, str]
) -> None:
    checkpoint["id"] = "theirs"
    with pytest.raises(OptionError, match="all of a table has the same columns"):
        Archived(**given).prepare()
