"""What a power cut leaves of a checkpoint, and what a stream makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.pipeline.errors import DamagedFileError
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.torn_checkpoints import begins_anew, last_done, mend, next_batch

if TYPE_CHECKING:
    from collections.abc import Mapping


class Checkpoint(Folder):
    """A folder without Spark, with notes of these numbers; one with a `-` holds only zeros."""

    def __init__(self, path: Path, ends: str, done: str) -> None:
        self.path = str(path)
        for kind, numbers in (("offsets", ends), ("commits", done)):
            (path / kind).mkdir()
            for each in numbers.split():
                number = each.removesuffix("-")
                (path / kind / number).write_bytes(b"\0" * 7 if each.endswith("-") else b"v1")
                (path / kind / f".{number}.crc").write_bytes(b"")

    @property
    def local_path(self) -> str | None:
        """Where it is."""
        return self.path

    def names(self, *names: str) -> list[str]:
        """Return the names in a folder."""
        return sorted(each.name for each in Path(self.of(*names)).iterdir())

    @property
    def left(self) -> tuple[str, str]:
        """The notes that are there, and have a checksum."""
        ends, done = (
            " ".join(name for name in self.names(kind) if f".{name}.crc" in self.names(kind))
            for kind in ("offsets", "commits")
        )
        return ends, done


def mended(checkpoint: Checkpoint, **how: bool) -> list[str]:
    """Mend a checkpoint, and return what is said about each note."""
    said: list[Mapping[str, Any]] = []
    mend(checkpoint, Run(progress=said.append), **how)
    texts = [each["warning"].removeprefix(f"{checkpoint.path}/") for each in said]
    return [text.replace(" is empty, as after a power cut; ", ": ") for text in texts]


@pytest.mark.parametrize(
    ("notes", "left", "said"),
    [
        (("0 1", "0 1"), ("0 1", "0 1"), []),
        (("0 1", "0 1-"), ("0 1", "0"), ["commits/1: batch 1 is repeated"]),
        (("0 1", "0-"), ("0 1", ""), ["commits/0: batch 1 is repeated"]),
        (("0 1-", "0"), ("0", "0"), ["offsets/1: the stream continues after batch 0"]),
        (("0-", ""), ("", ""), ["offsets/0: the stream starts over"]),
        (
            ("0 1-", "0-"),
            ("0", ""),
            ["commits/0: batch 0 is repeated", "offsets/1: batch 0 is repeated"],
        ),
    ],
)
@pytest.mark.parametrize("repeats", [False, True])
def test_notes_of_what_was_under_way_are_forgotten(
    tmp_path: Path, notes: tuple[str, str], left: tuple[str, str], said: list[str], repeats: bool
) -> None:
    checkpoint = Checkpoint(tmp_path, *notes)
    assert mended(checkpoint, repeats=repeats) == said
    assert checkpoint.left == left


@pytest.mark.parametrize(("notes", "is_left"), [("", False), ("0", True)])
def test_half_a_note_goes_where_the_stream_begins_for_spark_would_not_begin_it(
    tmp_path: Path, notes: str, is_left: bool
) -> None:
    """A full disk or a kill leaves it; if there are other notes, Spark passes over it."""
    checkpoint = Checkpoint(tmp_path, notes, "")
    halves = [tmp_path / "offsets" / name for name in (".0.09980b3a.tmp", "..0.09980b3a.tmp.crc")]
    for half in halves:
        half.touch()
    assert mended(checkpoint) == []
    assert [half.exists() for half in halves] == [is_left, is_left]


class _Elsewhere(Checkpoint):
    """A checkpoint that is not on this machine, without files of checksums."""

    @property
    def local_path(self) -> None:
        """It has none."""

    def remove(self, *names: str) -> None:
        """Remove a file."""
        Path(self.of(*names)).unlink()


@pytest.mark.parametrize(("notes", "is_left"), [("", False), ("0", True)])
def test_half_a_note_goes_on_other_file_systems_too(
    tmp_path: Path, notes: str, is_left: bool
) -> None:
    """Spark refused such a checkpoint on S3 and HDFS at each start."""
    checkpoint = _Elsewhere(tmp_path, notes, "")
    half = tmp_path / "offsets" / ".0.09980b3a.tmp"
    half.touch()
    assert mended(checkpoint) == []
    assert half.exists() is is_left


@pytest.mark.parametrize(
    ("notes", "left"),
    [
        (("0 1 2-", "0 1 2"), ("0 1", "0 1")),
        (("0 1 2- 3", "0 1 2 3"), ("0 1", "0 1")),
        (("0 1 2- 3", "0 1- 2 3-"), ("0 1", "0")),
        (("0 1 2- 3 4- 5", "0 1 2 3 4"), ("0 1", "0 1")),
        (("0- 1", "0 1"), ("", "")),
        (("7 8- 9", "7 8 9"), ("", "")),
    ],
)
def test_a_stream_that_may_repeat_goes_back_to_where_it_knows_the_end_of_a_batch(
    tmp_path: Path, notes: tuple[str, str], left: tuple[str, str]
) -> None:
    checkpoint = Checkpoint(tmp_path, *notes)
    said = mended(checkpoint, repeats=True)
    assert checkpoint.left == left
    follows = {"0 1 / 0 1": "the stream continues after batch 1", "0 1 / 0": "batch 1 is repeated"}
    assert said
    assert {each.partition(": ")[2] for each in said} == {
        follows.get(" / ".join(left), "the stream starts over")
    }


@pytest.mark.parametrize("notes", [("0 1 2-", "0 1 2"), ("0 1- 2", "0 1")])
def test_others_refuse_a_batch_that_was_begun_and_ends_nobody_knows_where(
    tmp_path: Path, notes: tuple[str, str]
) -> None:
    checkpoint = Checkpoint(tmp_path, *notes)
    before = checkpoint.left
    said = r"/offsets/[12] is empty, but that batch was begun: put it back from a copy, or use a"
    with pytest.raises(DamagedFileError, match=said):
        mend(checkpoint, Run())
    assert checkpoint.left == before


@pytest.mark.parametrize(
    ("notes", "lost"),
    [(("", "0 1"), 1), (("0", "0 1"), 1), (("1", "0 1"), 0), (("1", "0"), 0), (("0 2-", "0 1"), 1)],
)
@pytest.mark.parametrize("repeats", [False, True])
def test_an_end_that_is_not_there_is_told_for_spark_speaks_of_another_run(
    tmp_path: Path, notes: tuple[str, str], lost: int, repeats: bool
) -> None:
    checkpoint = Checkpoint(tmp_path, *notes)
    before = checkpoint.left
    said = f"/offsets/{lost} is missing, but that batch was begun: put it back from a copy, or"
    with pytest.raises(DamagedFileError, match=said):
        mend(checkpoint, Run(), repeats=repeats)
    with pytest.raises(DamagedFileError, match=said):
        last_done(checkpoint, repeats=repeats)
    assert checkpoint.left == before


@pytest.mark.parametrize("notes", [("0-", "0"), ("0-", ""), ("0- 1", "0 1")])
def test_a_stream_that_would_begin_later_than_it_had_is_refused(
    tmp_path: Path, notes: tuple[str, str]
) -> None:
    checkpoint = Checkpoint(tmp_path, *notes)
    before = checkpoint.left
    with pytest.raises(DamagedFileError, match="nothing else says how far the stream was: give --"):
        mend(checkpoint, Run(), repeats=True, from_start=False)
    assert checkpoint.left == before


@pytest.mark.parametrize(
    ("notes", "last", "repeated"),
    [
        (("0 1", "0 1"), 1, 1),
        (("0 1", "0 1-"), 0, 0),
        (("0 1", "0-"), 0, 0),
        (("0 1-", "0"), 0, 0),
        (("", ""), -1, -1),
        (("0 1 2-", "0 1 2"), None, 1),
        (("0 1 2- 3", "0 1- 2 3-"), None, 0),
    ],
)
def test_who_only_looks_knows_what_would_be_done_and_removes_nothing(
    tmp_path: Path, notes: tuple[str, str], last: int | None, repeated: int
) -> None:
    checkpoint = Checkpoint(tmp_path, *notes)
    before = sorted(tmp_path.rglob("*"))
    assert last_done(checkpoint, repeats=True) == repeated
    if last is None:
        with pytest.raises(DamagedFileError, match="is empty, but that batch was begun"):
            last_done(checkpoint)
    else:
        assert last_done(checkpoint) == last
    assert sorted(tmp_path.rglob("*")) == before
    mend(checkpoint, Run(), repeats=True)
    assert last_done(checkpoint, repeats=True) == repeated


@pytest.mark.parametrize(
    ("notes", "stream", "anew"),
    [
        (("0-", ""), b"", True),
        (("0", ""), b"\0\0", True),
        (("0", "0"), b"", False),
        (("0 1", ""), b"", False),
        (("", ""), b"{}", False),
    ],
)
def test_who_only_looks_knows_whether_the_stream_begins_anew(
    tmp_path: Path, notes: tuple[str, str], stream: bytes, anew: bool
) -> None:
    checkpoint = Checkpoint(tmp_path, *notes)
    (tmp_path / "metadata").write_bytes(stream)
    assert begins_anew(checkpoint) == anew
    assert (tmp_path / "metadata").exists()
    mended(checkpoint)
    assert (tmp_path / "metadata").exists() is not anew
    assert not (anew and checkpoint.names("offsets"))


@pytest.mark.parametrize("kind", ["offsets", "commits"])
def test_a_checksum_without_its_note_goes_for_spark_would_not_write_that_note(
    tmp_path: Path, kind: str
) -> None:
    checkpoint = Checkpoint(tmp_path, "0 1", "0")
    (tmp_path / kind / ".2.crc").touch()
    (tmp_path / kind / ".2.0a1b.tmp").touch()
    assert mended(checkpoint) == []
    assert not (tmp_path / kind / ".2.crc").exists()
    assert (tmp_path / kind / ".2.0a1b.tmp").exists()
    assert checkpoint.left == ("0 1", "0")


@pytest.mark.parametrize(
    ("ends", "done", "first"),
    [("", "", 0), ("0", "", 0), ("0", "0", 1), ("0 1", "", 1), ("0 1 2", "0", 2)],
)
def test_a_batch_behind_which_another_has_begun_is_done(
    tmp_path: Path, ends: str, done: str, first: int
) -> None:
    """A power cut may have taken the note that it is."""
    checkpoint = Checkpoint(tmp_path, ends, done)
    assert next_batch(checkpoint) == first
    assert last_done(checkpoint) == first - 1
