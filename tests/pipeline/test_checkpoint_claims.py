"""The claims about a log in checkpoints of both layouts, and how wrong ones are found."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from errno import EACCES
from struct import pack
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from tests.pipeline.store.logs import SIZE, change, write_log
from tests.store.apache_stores import unpack

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.checkpoint_claims import read_claims, read_topics, wrong_claims
from cometmq.pipeline.store.splits import look
from cometmq.store.deletions import Deletions
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


def of_apache(root: Path, longs: Longs) -> None:
    """Write a checkpoint of Apache's layout."""
    (root / "checkpoint").write_bytes(pack(">6q", *astuple(longs)).ljust(4096, b"\0"))


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
        ({"synced_offset": SIZE * 4}, "synced up to 16384: 3797 bytes are lost"),
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


def test_a_journal_that_went_with_its_checkpoint_is_no_finding(tmp_path: Path) -> None:
    """A broker that is at work replaces both."""
    write_log(tmp_path, [b"x" * 200] * 4)
    claim(tmp_path, journal=JournalClaim(0, 700, 9))
    claimed, log = read_claims(str(tmp_path)), look(str(tmp_path))
    claim(tmp_path)
    assert wrong_claims(claimed, log, lambda: -1) == []


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
    assert read_claims(str(tmp_path)).written_by == "none"


def test_a_log_without_records_is_told_from_one_that_lost_them(tmp_path: Path) -> None:
    write_log(tmp_path, [])
    claim(tmp_path)
    assert wrong(tmp_path) == []
    (tmp_path / "commitlog" / f"{0:020d}").unlink()  # As in a store that nobody has sent to.
    assert wrong(tmp_path) == []
    of_apache(tmp_path, Longs(1, 1, 1, 0, 0, 1))  # For Apache, 0 would be unknown.
    assert wrong(tmp_path, latest_ms=1) == []
    of_apache(tmp_path, Longs(1795254582439, 1795254582439, 0, 0, 0, 300))
    time, entry = wrong(tmp_path)
    assert "stored at 1795254582439 ms" in time
    assert "a record at 300, but the log ends at 0" in entry


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


@pytest.mark.parametrize("later", ["log_timestamp", "queues_timestamp"])
def test_either_time_of_apaches_checkpoint_may_be_later_than_the_log(
    tmp_path: Path, later: str
) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 4)
    longs = Longs(1, 1, 1, queues_offset=places[-1])
    of_apache(tmp_path, longs)
    assert wrong(tmp_path) == []
    of_apache(tmp_path, replace(longs, **{later: 1 << 41}))
    (found,) = wrong(tmp_path)
    assert f"stored at {1 << 41} ms, later than any in the log" in found


def test_other_checks_know_what_a_checkpoint_of_each_kind_says(tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 4)

    def known() -> tuple[str, int, int]:
        claimed = read_claims(str(tmp_path))
        return claimed.written_by, claimed.entries_to, min(claimed.ours_from, SIZE)

    assert known() == ("none", 0, SIZE)
    claim(tmp_path, recover_from=places[1], ours_from=places[2])
    assert known() == ("cometmq", places[1], places[2])
    of_apache(tmp_path, Longs(queues_offset=places[3]))
    assert known() == ("apache", places[3], SIZE)


def test_a_checkpoint_that_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, [])
    claim(tmp_path)
    data = bytearray((tmp_path / "checkpoint").read_bytes())
    data[52:56] = (99).to_bytes(4, "big")
    data[168:172] = crc32(data[48:168]).to_bytes(4, "big")
    (tmp_path / "checkpoint").write_bytes(data)
    with pytest.raises(OptionError, match=r"^store: .*checkpoint.*99"):
        read_claims(str(tmp_path))

    def denied(*_: object, **__: object) -> object:
        raise PermissionError(EACCES, "Permission denied")

    monkeypatch.setattr(RealFileSystem, "open", denied)
    with pytest.raises(OptionError, match=f"^store: {tmp_path}/checkpoint: Permission denied$"):
        read_claims(f"{tmp_path}/")


def test_of_a_local_store_it_is_known_which_topics_were_deleted_and_which_are_there(
    tmp_path: Path,
) -> None:
    assert read_topics(str(tmp_path)) == ({}, frozenset())
    Deletions(RealFileSystem(), str(tmp_path)).add(["gone"], 100, 0)
    (tmp_path / "config").mkdir()
    topics = {"topicConfigTable": {"there": {"topicName": "there"}}}
    (tmp_path / "config" / "topics.json").write_text(json.dumps(topics))
    assert read_topics(f"{tmp_path}/") == ({"gone": 100}, frozenset({"there"}))
    assert read_topics(f"file://{tmp_path}") == ({}, frozenset())
    (tmp_path / "deleted_topics.json").write_text("{")
    with pytest.raises(OptionError, match=r"^store: .*deleted_topics"):
        read_topics(str(tmp_path))
