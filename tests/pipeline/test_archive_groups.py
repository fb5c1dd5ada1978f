"""Which batches `archive-compact` merges, at each border and without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs import archive_compact
from cometmq.pipeline.jobs.archive_compact import (
    CompactSettings,
    _Compacting,  # pyright: ignore[reportPrivateUsage]  # To look at one of its steps.
)
from cometmq.pipeline.jobs.archive_files import BatchName
from cometmq.pipeline.jobs.job import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_SPARK: Any = None
MIB = 1 << 20
SMALL = {"topic=T": [1, 1]}
LARGE = {"topic=T": [MIB - 1, 1]}

Files = dict[str, list[int]]


class Archive:
    """A folder of batches that is only in memory: by name, the sizes of files by their folders."""

    path = "archive"

    def __init__(self, there: Mapping[str, Files], parts: Mapping[str, list[str]]) -> None:
        self.there, self.parts = there, parts

    def names(self, *_: str) -> list[str]:
        return [f"{name}.json" for name in self.there]

    def exists(self, *_: str) -> bool:
        return False  # What makes other archives of it.

    def files(self, folder: str) -> list[tuple[str, int]]:
        of_batch = self.there[folder.removeprefix("batch=")]
        return [
            (f"{path}/{number}.parquet", size)
            for path, sizes in of_batch.items()
            for number, size in enumerate(sizes)
        ]

    def read_json(self, _folder: str, name: str, **_: object) -> dict[str, Any]:
        parts = self.parts.get(name.removesuffix(".json"), ["topic"])
        said: dict[str, Any] = {"query_id": "q", "rows": 1, "bytes": 1, "checksum": "0", "ends": {}}
        return {**said, "partition_by": parts}


def grouped(
    monkeypatch: pytest.MonkeyPatch,
    there: Mapping[str, Files],
    *,
    columns: Mapping[str, str] | None = None,
    parts: Mapping[str, list[str]] | None = None,
    run: Run | None = None,
    **more: str,
) -> list[tuple[list[str], int]]:
    """Return the groups that are merged, each with the number of files that it is to have."""
    folder = Archive(there, parts or {})

    def open_folder(*_: object) -> Archive:
        return folder

    def is_no_table(*_: object) -> None:
        pass

    monkeypatch.setattr(archive_compact, "Folder", open_folder)
    monkeypatch.setattr(archive_compact, "refuse_table", is_no_table)
    settings = CompactSettings(archive="archive", **{"file_size": "1m", **more})
    compacting = _Compacting(NO_SPARK, settings)
    known = compacting._known_columns  # pyright: ignore[reportPrivateUsage]  # As above.
    for name, files in there.items():
        batch = BatchName.read(name)
        assert batch is not None
        known[batch] = (columns or {}).get(name, "some" if files else "")
    return [
        ([str(each.name) for each in group], compacting.expected(group))
        for group in compacting.groups(run or Run())
    ]


def test_neighbours_become_one_batch_up_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {f"{number:06d}": LARGE for number in range(5)}
    first, last = [f"{number:06d}" for number in range(2)], ["000002", "000003"]
    found = grouped(monkeypatch, there, batch_size="2m")
    assert found == [(first, 2), (last, 2)]
    assert grouped(monkeypatch, there, batch_size="2047k") == []
    assert grouped(monkeypatch, there) == [([*there], 5)]
    assert grouped(monkeypatch, {"000000": SMALL}) == []
    assert grouped(monkeypatch, {"000000": {}, "000001": {}}) == []


@pytest.mark.parametrize(
    ("files", "after"),
    [
        ([MIB, MIB], None),
        ([MIB - 1, 1, MIB, MIB], None),
        ([MIB - 2, 1, MIB, 1], 2),
        ([MIB - 2, 1, MIB, 2], None),
        ([1] * 4, 1),
    ],
)
def test_a_batch_is_merged_if_half_of_the_files_go(
    monkeypatch: pytest.MonkeyPatch, files: list[int], after: int | None
) -> None:
    there = {"000000": {"topic=T": files[:1]}, "000001": {"topic=T": files[1:]}}
    assert grouped(monkeypatch, there) == ([] if after is None else [([*there], after)])


def test_each_folder_has_files_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"000000": {"topic=T": [1], "topic=U": [1]}, "000001": {"topic=T": [1], "topic=U": [1]}}
    assert grouped(monkeypatch, there) == [([*there], 2)]
    apart = {"000000": {"topic=T": [1]}, "000001": {"topic=U": [1]}}
    assert grouped(monkeypatch, apart) == []


@pytest.mark.parametrize(
    ("names", "columns", "parts", "merged"),
    [
        (
            ["000000", "000001", "000003", "000004"],
            {},
            {},
            [["000000", "000001"], ["000003", "000004"]],
        ),
        (["000000-000004", "000005"], {}, {}, [["000000-000004", "000005"]]),
        (["000000", "000001", "000002"], {"000000": "other"}, {}, [["000001", "000002"]]),
        (["000000", "000001", "000002"], {"000001": ""}, {}, [["000000", "000001", "000002"]]),
        (
            ["000000", "000001", "000002"],
            {"000000": "other", "000001": ""},
            {},
            [["000000", "000001"]],
        ),
        (["000000", "000001"], {}, {"000001": ["topic", "date"]}, []),
    ],
)
def test_what_has_no_neighbour_or_other_columns_or_folders_stays_apart(
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    columns: dict[str, str],
    parts: dict[str, list[str]],
    merged: list[list[str]],
) -> None:
    there = dict.fromkeys(names, SMALL)
    found = grouped(monkeypatch, there, columns=columns, parts=parts)
    assert found == [(each, 1) for each in merged]


def test_a_run_that_is_stopped_looks_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    run.stop()
    assert grouped(monkeypatch, {"000000": SMALL, "000001": SMALL}, run=run) == []


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [
        ({"file_size": "1m", "batch_size": "1m"}, False),
        ({"file_size": "1023k"}, True),
        ({"file_size": "2m", "batch_size": "1m"}, True),
        ({"compression": "none such"}, True),
    ],
)
def test_sizes_that_cannot_be_are_refused(given: dict[str, str], is_refused: bool) -> None:
    if is_refused:
        with pytest.raises(OptionError):
            CompactSettings(archive="archive", **given)
    else:
        assert CompactSettings(archive="archive", **given).batch_bytes == MIB
