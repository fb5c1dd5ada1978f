"""What a run learns of the last batch of a Delta table, from its notes and its log."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")
pytest.importorskip("deltalake", reason="the extra cometmq[delta] is not installed")

from tests.pipeline.test_delta_tables import Made, There

from cometmq.pipeline.errors import DamagedFileError, OptionError
from cometmq.pipeline.jobs import archive_delta
from cometmq.pipeline.jobs.archive_delta import ToDelta
from cometmq.pipeline.jobs.archive_writing import Last

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark  # Its types of columns.

ENDS: Final = {"orders": {"broker-a": {"0": 5}}}
OF_ROWS: Final = {"orders": {"broker-a": {"0": 3}}}


def last(number: int, stream: str = "S") -> Last:
    return Last(number=number, query_id=stream, parts=["topic"], schema="", ends=ENDS)


class Noted(There):
    """The folder of a table, with notes."""

    def note(self, begun: Last | None, done: Last | None) -> None:
        """Write what a run has noted."""
        said = {"begun": begun and asdict(begun), "done": done and asdict(done)}
        self.write(json.dumps(said))

    def write(self, text: str) -> None:
        (self.root / "_cometmq").mkdir(parents=True, exist_ok=True)
        (self.root / "_cometmq" / "archive.json").write_text(text)

    def read(self, *names: str) -> str:
        return self.root.joinpath(*names).read_text()

    def read_json(self, *names: str, if_damaged: str, fields: tuple[str, ...]) -> Any:
        said = json.loads(self.read(*names))
        if not said.keys() >= {*fields}:
            raise DamagedFileError(if_damaged)
        return said


class Archive(ToDelta):
    """One whose checkpoint is of a stream, and whose rows are known."""

    _rows_end_with = -1

    def __init__(self, folder: Noted, stream: str = "S") -> None:
        given: Any = folder, SimpleNamespace(path="/at", stream=stream)
        self.folder, self.checkpoint = given
        self.learned: list[tuple[int, int, int]] = []

    def learn(self, files: int, size: int, rows: int) -> None:
        self.learned.append((files, size, rows))

    def _last_batch(self) -> int:
        return self._rows_end_with

    def _ends_of_rows(self) -> dict[str, Any]:
        return OF_ROWS

    def with_rows_to(self, number: int) -> Archive:
        self._rows_end_with = number
        return self

    def require_same(self, batch: Last) -> None:
        """Look for the last batch, and refuse one that is repeated with another end."""
        self.last()
        self._require_same(batch)


@pytest.fixture
def folder(tmp_path: Path) -> Noted:
    return Noted(tmp_path / "a table")


@pytest.fixture
def made(folder: Noted, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A table with the batches 0 and 1 of the stream S."""

    def query_id(checkpoint: Any) -> str:
        return str(checkpoint.stream)

    monkeypatch.setattr(archive_delta, "query_id", query_id)
    made = Made(folder.root)
    for number in (0, 1):
        made.append(number)
    return made


def test_without_a_commit_there_is_no_batch(folder: Noted) -> None:
    folder.note(last(0), None)
    archive = Archive(folder)
    assert archive.last() is None
    archive.require_same(replace(last(0), ends=OF_ROWS))


def test_a_table_without_notes_is_of_others(made: Made, folder: Noted) -> None:
    assert made.table.version == 2
    with pytest.raises(OptionError, match=rf"^to: {folder.path} is a table, not an archive"):
        Archive(folder).last()
    folder.write('{"begun": null}')
    with pytest.raises(DamagedFileError, match="put it back from a copy, or archive to another"):
        Archive(folder).last()


@pytest.mark.parametrize(
    ("begun", "done", "found"),
    [
        (last(1), last(0), last(1)),  # Its commit is there.
        (last(2), last(1), last(1)),
        (last(0, "T"), None, None),
        (last(2, "T"), last(1), last(1)),
        (None, last(1), last(1)),
    ],
)
def test_the_last_batch_is_the_last_one_that_the_log_has(
    made: Made, folder: Noted, begun: Last | None, done: Last | None, found: Last | None
) -> None:
    folder.note(begun, done)
    archive = Archive(folder)
    assert archive.last() == found
    assert folder.synced == [f"{made.table.version:020d}.json"] * (begun == found)
    size = sum(made.written(1).values())
    assert archive.learned == [(1, size, 1)]


@pytest.mark.parametrize("stream", ["S", "T"])
def test_a_table_that_was_restored_is_gone_on_with_by_another_stream_only(
    made: Made, folder: Noted, stream: str
) -> None:
    folder.note(last(1), last(0))
    made.theirs.restore(1)
    assert Archive(folder, stream).with_rows_to(1).last() == last(1)  # Nothing of it is gone.
    archive = Archive(folder, stream).with_rows_to(0)
    if stream == "T":
        assert archive.last() == replace(last(1), ends=OF_ROWS)
        return
    with pytest.raises(OptionError, match=r"without batches 1 to 1, after which the .* /at goes"):
        archive.last()


def test_a_table_without_batches_may_be_restored(made: Made, folder: Noted) -> None:
    folder.note(last(0, "T"), None)
    made.theirs.restore(0)
    assert Archive(folder).last() is None


@pytest.mark.parametrize(
    ("batch", "is_refused"),
    [
        (last(1), False),
        (last(2), False),
        (last(0), True),
        (replace(last(1), ends=OF_ROWS), True),
        (replace(last(1, "T"), ends=OF_ROWS), False),
        (replace(last(2), ends=OF_ROWS), False),
    ],
)
def test_a_batch_that_is_repeated_ends_where_it_did(
    made: Made, folder: Noted, batch: Last, is_refused: bool
) -> None:
    assert made.table.last_of("S") == 1
    folder.note(last(1), last(0))
    archive = Archive(folder)
    if not is_refused:
        archive.require_same(batch)
        return
    with pytest.raises(DamagedFileError, match=rf"^batch {batch.number} exists, but does not end"):
        archive.require_same(batch)


@pytest.mark.parametrize(("said", "number"), [(None, -1), (0, 0), (7, 7)])
def test_a_table_without_rows_has_no_batch(
    folder: Noted, monkeypatch: pytest.MonkeyPatch, said: int | None, number: int
) -> None:
    def rows_of(*_: object) -> Any:
        return SimpleNamespace(selectExpr=greatest)

    def greatest(sql: str) -> Any:
        assert sql == "max(batch) AS last"
        return SimpleNamespace(collect=lambda: [{"last": said}])

    monkeypatch.setattr(archive_delta, "rows_of", rows_of)
    archive: Any = Archive(folder)
    archive.spark = archive._table = None
    assert ToDelta._last_batch(archive) == number  # pyright: ignore[reportPrivateUsage]  # A step.
