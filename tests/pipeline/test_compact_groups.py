"""Which batches `archive-compact` makes one of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from cometmq.pipeline.jobs import archive_compact
from cometmq.pipeline.jobs.archive_compact import (
    CompactSettings,
    _Batch,  # pyright: ignore[reportPrivateUsage]  # As it looks at them.
    _Compacting,  # pyright: ignore[reportPrivateUsage]  # One of its steps.
)
from cometmq.pipeline.jobs.archive_files import BatchName, Manifest
from cometmq.pipeline.jobs.job import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB: Final = 1 << 20


def batch(number: int, *sizes: float, parts: str = "topic", columns: str = "a") -> _Batch:
    """Return a batch with files of so many MiB, in another folder if that is negative."""
    files: dict[str, list[int]] = {}
    for size in sizes:
        files.setdefault("x" if size > 0 else "y", []).append(int(abs(size) * MIB))
    manifest = Manifest(
        name=BatchName(number, number),
        query_id=columns,  # Which nobody looks at here.
        first_query_id=None,
        rows=1,
        size=1,
        checksum=0,
        parts=[parts],
        schema="",
        ends={},
    )
    return _Batch(manifest, files)


class Compacting(_Compacting):
    """One that knows its batches."""

    def __init__(self, found: list[_Batch]) -> None:
        self._settings = CompactSettings(archive="/data", file_size="2m", batch_size="8m")
        self._found = found

    def _batches(self, run: Run) -> Iterator[_Batch]:
        del run
        yield from self._found

    def _columns(self, batch: _Batch) -> str:
        return str(batch.manifest.query_id) if batch.files else ""


CASES: Final[dict[str, tuple[list[_Batch], list[list[int]]]]] = {
    "nothing": ([], []),
    "one": ([batch(0, 1, 1, 1)], []),
    "at most 8m": ([batch(each, 1, 1) for each in range(5)], [[0, 1, 2, 3]]),
    "a byte more": ([batch(0, 4, 1), batch(1, 1, 1, 1), batch(2, 1e-6), batch(3, 1e-6)], [[2, 3]]),
    "large ones stay": ([batch(0, 2, 2), batch(1, 2, 2)], []),
    "half of the files": ([batch(0, 1, 1), batch(1, 1, 1)], [[0, 1]]),
    "less than half": ([batch(0, 1, 1), batch(1, 1)], []),
    "neighbours": ([batch(each, 1, 1) for each in (0, 1, 3, 4)], [[0, 1], [3, 4]]),
    "folders": ([batch(0, 1, -1), batch(1, 1, -1)], [[0, 1]]),
    "each folder needs a file": ([batch(0, 1), batch(1, -1)], []),
    "other folders": ([batch(each, 1, parts="topic"[each:]) for each in (0, 1)], []),
    "other columns": (
        [batch(each, 0.5, columns=of) for each, of in enumerate("abbb")],
        [[1, 2, 3]],
    ),
    "no columns": (
        [batch(0), batch(1, 1), batch(2), batch(3, 1), batch(4, 1, columns="b"), batch(5)],
        [[0, 1, 2, 3]],
    ),
    "no files": ([batch(0), batch(1)], []),
}


@pytest.mark.parametrize("case", CASES)
def test_neighbours_of_small_files_go_together(case: str) -> None:
    found, groups = CASES[case]
    compacting: Any = Compacting(found)
    numbers = [[each.name.first for each in group] for group in compacting.groups(Run())]
    assert numbers == groups


def test_a_batch_is_looked_at_by_its_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    class There:
        """An archive of one batch."""

        def files(self, name: str) -> list[tuple[str, int]]:
            assert name == "batch=000007"
            return [("topic=a/date=1/p", 3), ("topic=a/date=1/q", 4), ("topic=a/date=2/p", 5)]

    def names(_folder: object) -> list[BatchName]:
        return [BatchName(7, 7)]

    def read(_folder: object, name: BatchName) -> Manifest:
        return batch(name.first).manifest

    monkeypatch.setattr(archive_compact, "batches", names)
    monkeypatch.setattr(Manifest, "read", read)
    compacting: Any = _Compacting.__new__(_Compacting)
    compacting.folder = There()
    (found,) = compacting._batches(Run())
    assert found.files == {"topic=a/date=1": [3, 4], "topic=a/date=2": [5]}
    assert (found.name, found.file_count, found.size) == (BatchName(7, 7), 3, 12)
