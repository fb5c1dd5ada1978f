"""The claims about a log in checkpoints of both layouts, and how wrong ones are found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.store.logs import SIZE, change, write_log
from tests.store.apache_stores import unpack

from cometmq.pipeline.jobs.checkpoint_claims import read_claims, wrong_claims
from cometmq.pipeline.store.splits import look
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.queues.entry_journal import JournalClaim
from cometmq.store.upkeep.checkpoint import CheckpointFile, Claims, Longs

if TYPE_CHECKING:
    from pathlib import Path


def wrong(root: Path, latest_ms: int = -1) -> list[str]:
    claimed = read_claims(str(root))
    return [
        f"{kind}: {detail}"
        for kind, _, _, _, detail in wrong_claims(claimed, look(str(root)), lambda: latest_ms)
    ]


def claim(root: Path, **more: Any) -> None:
    """Write a checkpoint of ours whose claims are true, except those that are given."""
    end = look(str(root)).end
    claims = Claims(recover_from=end, verify_from=0, synced_offset=end, segment_size=SIZE)
    file = CheckpointFile(RealFileSystem(), f"{root}/checkpoint")
    file.write(Longs(queues_offset=end), replace(claims, **more))
    file.close()


def test_a_checkpoint_of_ours_that_says_no_more_than_there_is_is_sound(tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 40)
    assert read_claims(str(tmp_path)).written_by == "none"
    assert wrong(tmp_path) == []
    claim(tmp_path)
    assert read_claims(str(tmp_path)).written_by == "cometmq"
    assert read_claims(str(tmp_path)).entries_to == look(str(tmp_path)).end
    assert wrong(tmp_path) == []
    claim(tmp_path, recover_from=places[7], verify_from=places[3], synced_offset=places[20])
    assert wrong(tmp_path) == []
    assert places[13] == SIZE
    claim(tmp_path, recover_from=2 * places[12] - places[11])  # Where a file's filler begins.
    assert wrong(tmp_path) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"synced_offset": SIZE * 4}, "bytes are lost"),
        ({"recover_from": SIZE * 4}, "recover from is 16384, but the log ends at"),
        ({"recover_from": 11}, "recover from is 11, but no record begins there"),
        ({"verify_from": 11}, "verify from is 11, but no record begins there"),
        ({"segment_size": 8192}, "files of the log have 8192 bytes, but they have 4096"),
        ({"journal": JournalClaim(0, 700, 9)}, f"it names 9 bytes of {0:020d} in entryjournal"),
    ],
)
def test_what_a_checkpoint_of_ours_says_too_much_is_found(
    tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    write_log(tmp_path, [b"x" * 200] * 40)
    claim(tmp_path, **more)
    (found,) = wrong(tmp_path)
    assert found.startswith("wrong checkpoint: ")
    assert said in found


def test_a_journal_that_is_there_is_no_finding(tmp_path: Path) -> None:
    write_log(tmp_path, [b"x" * 200] * 4)
    (tmp_path / "entryjournal").mkdir()
    (tmp_path / "entryjournal" / f"{0:020d}").write_bytes(bytes(9))
    claim(tmp_path, journal=JournalClaim(0, 700, 9))
    assert wrong(tmp_path) == []


def test_what_fills_the_end_of_a_file_is_synced_with_it(tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 14)
    assert places[13] == SIZE
    change(tmp_path, SIZE, bytes(400))
    filler = look(str(tmp_path)).end
    for place in (filler, SIZE):
        claim(tmp_path, synced_offset=SIZE, recover_from=place)
        assert wrong(tmp_path) == []


def test_a_checkpoint_with_a_bad_byte_is_a_finding(tmp_path: Path) -> None:
    write_log(tmp_path, [b"x" * 200] * 4)
    claim(tmp_path)
    data = bytearray((tmp_path / "checkpoint").read_bytes())
    data[60] ^= 1
    (tmp_path / "checkpoint").write_bytes(data)
    (found,) = wrong(tmp_path)
    assert found.startswith("damaged checkpoint: ")


@pytest.mark.parametrize("store", ["clean", "killed", "ext"])
def test_apaches_checkpoints_say_no_more_than_there_is(tmp_path: Path, store: str) -> None:
    assert wrong(unpack(store, tmp_path)) == []


def test_what_apaches_checkpoint_knows_beyond_the_log_is_found(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    for _ in range(3):  # The checkpoint names the last record, and its time.
        change(root, look(str(root)).last, bytes(100), size=65536)
    time, entry = wrong(root)
    assert "stored at 1795254582439 ms, later than any in the log" in time
    assert "an entry of a record at 489236" in entry
    assert wrong(root, latest_ms=1795254582439) == [entry]  # A clock that went back.
