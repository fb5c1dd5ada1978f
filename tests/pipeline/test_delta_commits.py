"""What the log of a Delta table says of batches, and of what others did."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from cometmq.pipeline.errors import DamagedFileError
from cometmq.pipeline.jobs.delta_commits import STREAM, Commits, Written, is_delta, sync_commit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cometmq.pipeline.jobs.folders import Folder

BATCH: Final = Written(files=2, size=300, rows=5)
INSERT: Final[dict[str, Any]] = {"commitInfo": {"operation": "WRITE"}}
THEIRS: Final[dict[str, Any]] = {**INSERT, "txn": {"appId": "another stream", "version": 3}}
RESTORE: Final[dict[str, Any]] = {"commitInfo": {"operation": "RESTORE"}}
CREATE: Final[dict[str, Any]] = {"protocol": {"minReaderVersion": 1}}


def batch(written: Written = BATCH) -> dict[str, Any]:
    return {
        "add": {"path": "part-0.parquet"},
        "txn": {"appId": f"{STREAM}0123", "version": 7},
        "commitInfo": {"operation": "WRITE", "operationMetrics": written.metrics},
    }


class There:
    """A table's folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.synced = root, list[str]()
        (root / "_delta_log").mkdir()
        self.commits = 0

    def commit(self, *said: dict[str, Any]) -> Folder:
        """Add commits."""
        for each in said:
            lines = [json.dumps({kind: of}, ensure_ascii=False) for kind, of in each.items()]
            path = self.root / "_delta_log" / f"{self.commits:020d}.json"
            path.write_text("\n".join(lines) + "\n", "utf-8")
            self.commits += 1
        return cast("Folder", self)

    def of(self, *names: str) -> str:
        return str(self.root.joinpath(*names))

    def exists(self, *names: str) -> bool:
        return self.root.joinpath(*names).exists()

    def read(self, *names: str) -> str:
        return self.root.joinpath(*names).read_text("utf-8")

    def sync(self, *names: str) -> None:
        self.synced.append(names[-1])

    def has_name(self, is_such: Callable[[str], bool], *names: str) -> bool:
        return any(is_such(each.name) for each in self.root.joinpath(*names).iterdir())


@pytest.mark.parametrize(
    ("commits", "said"),
    [
        ([], Written()),
        ([CREATE, INSERT, THEIRS], Written()),
        ([CREATE, batch(Written(1, 2, 3)), batch(), THEIRS, RESTORE], BATCH),
        ([batch(), *[INSERT] * 9], BATCH),
        ([batch(), *[INSERT] * 10], Written()),  # It does not look further.
        ([{"txn": batch()["txn"]}], Written()),
        ([batch(), {"add": {"stats": '{"minValues": {"key": "a\u2028b\u0085c"}}'}}], BATCH),
    ],
)
def test_the_last_batch_is_among_the_latest_commits(
    tmp_path: Path, commits: list[dict[str, Any]], said: Written
) -> None:
    folder = There(tmp_path).commit(*commits)
    assert Commits(folder, len(commits) - 1).last_written() == said


@pytest.mark.parametrize(
    ("commits", "is_restored"),
    [
        ([], False),
        ([CREATE, INSERT], False),
        ([batch(), RESTORE], True),
        ([batch(), RESTORE, INSERT, THEIRS], True),
        ([RESTORE, batch()], False),
        ([RESTORE, batch(), INSERT], False),
    ],
)
def test_a_version_that_was_restored_behind_the_last_batch_is_seen(
    tmp_path: Path, commits: list[dict[str, Any]], is_restored: bool
) -> None:
    folder = There(tmp_path).commit(*commits)
    assert Commits(folder, len(commits) - 1).was_restored() is is_restored


def test_the_oldest_commits_may_have_been_removed(tmp_path: Path) -> None:
    """Delta does that behind its checkpoints."""
    folder = There(tmp_path).commit(RESTORE, INSERT)
    (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()
    assert not Commits(folder, 1).was_restored()


def test_each_commit_of_others_is_looked_at_once(tmp_path: Path) -> None:
    there = There(tmp_path)
    commits = Commits(there.commit(RESTORE, batch()), 1)
    assert not commits.restored()
    there.commit(INSERT, RESTORE, INSERT)
    assert commits.restored()
    assert not commits.restored()
    there.commit(RESTORE)
    assert commits.restored()


@pytest.mark.parametrize("torn", ['{"commitInfo": {"operat', "\0\0\0"])
def test_a_damaged_commit_behind_a_checkpoint_is_told(tmp_path: Path, torn: str) -> None:
    """Who reads the table does not need it any more, and does not notice."""
    folder = There(tmp_path).commit(CREATE, INSERT)
    path = tmp_path / "_delta_log" / f"{0:020d}.json"
    path.write_text(torn)
    with pytest.raises(
        DamagedFileError, match=rf"^{path} is damaged \(.*: put it back from a copy"
    ):
        Commits(folder, 1).last_written()


def test_a_folder_is_a_table_with_its_first_commit(tmp_path: Path) -> None:
    there = There(tmp_path)
    (tmp_path / "_delta_log" / ".0.json.tmp").touch()
    assert not is_delta(there.commit())
    assert is_delta(there.commit(CREATE))


def test_a_commit_is_synced_with_the_checkpoint_that_came_with_it(tmp_path: Path) -> None:
    there = There(tmp_path)
    folder, log = there.commit(), tmp_path / "_delta_log"
    for name in (f"{10:020d}.json", f"{10:020d}.checkpoint.parquet", "_last_checkpoint"):
        (log / name).touch()
    sync_commit(folder, 9)
    assert there.synced == ["_last_checkpoint"]
    sync_commit(folder, 10)
    assert there.synced[1:] == [
        f"{10:020d}.json",
        f"{10:020d}.checkpoint.parquet",
        "_last_checkpoint",
    ]


def test_the_last_batch_is_synced_with_what_others_have_committed_since(tmp_path: Path) -> None:
    there = There(tmp_path)
    folder = there.commit(CREATE, batch(), batch(), INSERT, THEIRS)
    Commits(folder, 4).sync()
    assert there.synced == [f"{number:020d}.json" for number in (4, 3, 2)]
