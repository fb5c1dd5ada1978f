"""A store that Apache keeps partly in RocksDB is refused, but read where that is safe."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.admin.test_store_commands import SHAPE, fingerprint
from tests.store.damaged_stores import SMALL, write_small_store

from cometmq.admin.program import program
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.errors import StoreFormatError
from cometmq.store.looking.store_reader import StoreReader
from cometmq.store.message_store import MessageStore

TABLES = ("config/topics", "config/metadata", "config/rdb")
QUEUES = ("consumequeue", "consumequeue_rocksdb")


def store_with(folder: str, tmp_path: Path) -> Path:
    """A sound store, older than a database beside its files."""
    root = tmp_path / "store"
    write_small_store(RealFileSystem(), str(root))
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / "CURRENT").write_text("MANIFEST-000005\n")
    return root


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, ["store", *arguments])


@pytest.mark.parametrize("folder", [*TABLES, *QUEUES])
def test_a_start_and_a_read_of_queues_are_refused_and_no_byte_changes(
    folder: str, tmp_path: Path
) -> None:
    root = store_with(folder, tmp_path)
    before = fingerprint(str(root))
    with pytest.raises(StoreFormatError, match=r"in RocksDB.*cometmq pipeline mirror"):
        MessageStore.open(str(root), SMALL, now_ms=1, threads=False)
    with pytest.raises(StoreFormatError, match=r"in RocksDB.*cometmq pipeline mirror"):
        StoreReader(str(root), SMALL)
    assert fingerprint(str(root)) == before


@pytest.mark.parametrize("folder", [*TABLES, *QUEUES])
@pytest.mark.parametrize("command", [["rebuild"], ["repair", "--dry-run"], ["repair", "--yes"]])
def test_what_mends_a_store_is_refused_and_no_byte_changes(
    command: list[str], folder: str, tmp_path: Path
) -> None:
    root = store_with(folder, tmp_path)
    before = fingerprint(str(root))
    result = run(*command, str(root), *SHAPE)
    assert result.exit_code == 1
    assert "in RocksDB" in result.stderr
    assert result.stderr.count("\n") == 1
    assert fingerprint(str(root)) == before


@pytest.mark.parametrize("folder", ["config/topics", "consumequeue"])
def test_what_reads_the_log_says_what_it_leaves_out(folder: str, tmp_path: Path) -> None:
    root = store_with(folder, tmp_path)
    (root / "config").mkdir(exist_ok=True)
    (root / "config/topics.json").write_text('{"topicConfigTable":{}}')  # Older than all records.
    for path in (root / "consumequeue/T/0").iterdir():
        path.unlink()
    before = fingerprint(str(root))
    stat = run("stat", str(root), *SHAPE)
    assert stat.exit_code == 1
    assert "in RocksDB" in stat.stdout
    verify = run("verify", str(root), *SHAPE)
    assert verify.exit_code == 1
    assert "1 finding: 1 rocksdb" in verify.stdout
    assert "nothing of them is checked" in verify.stdout
    assert "topics that are gone" not in verify.stdout
    assert "rebuild" not in verify.stdout
    dump = run("dump", str(root), *SHAPE, "--topic", "T")
    assert dump.exit_code == 0
    assert dump.stdout.count("\n") > 2
    assert fingerprint(str(root)) == before


def test_a_topic_may_be_called_as_the_file_of_a_database(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_small_store(RealFileSystem(), str(root))
    (root / "consumequeue/CURRENT/0").mkdir(parents=True)
    (root / "rocksdbstore").mkdir()  # 5.5.0 always makes it.
    (root / "rocksdbstore/CURRENT").write_text("MANIFEST-000005\n")
    assert MessageStore.open(str(root), SMALL, now_ms=1, threads=False).close(2)
