"""The checksums of sealed blocks, as a task compares them."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest
from tests.pipeline.store.logs import SEGMENT, write_sealed_log
from tests.store.damaged_stores import write_small_store

from cometmq.pipeline.store import blocks, scan, survey
from cometmq.pipeline.store.splits import look, parts
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.upkeep import integrity


def compared(root: Path, split_size: int = 64 << 20, sample: float = 1.0) -> blocks.Compared:
    found = [blocks.compare(part, sample) for part in parts(look(str(root)), split_size)]
    wrong = [each for one in found for each in one.wrong]
    return blocks.Compared(sum(one.blocks or 0 for one in found), sorted(wrong))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("split_size", [64 << 20, 300_000, 65_536, 10_000])
def test_a_changed_byte_is_found_however_the_log_is_cut(tmp_path: Path, split_size: int) -> None:
    write_sealed_log(tmp_path, 250)
    end = look(str(tmp_path)).end
    count = end // scan.BLOCK_SIZE
    assert compared(tmp_path, split_size) == (count, [])
    assert end > 2 * SEGMENT
    for place in (0, SEGMENT - 1, SEGMENT + 100_000, end // scan.BLOCK_SIZE * 65_536 - 1):
        path = tmp_path / "commitlog" / f"{place - place % SEGMENT:020d}"
        flip(path, place % SEGMENT)
        start = place - place % scan.BLOCK_SIZE
        assert compared(tmp_path, split_size) == (count, [(start, start + 65_536)])
        flip(path, place % SEGMENT)


def test_a_sidecar_that_is_damaged_or_missing_covers_nothing(tmp_path: Path) -> None:
    write_sealed_log(tmp_path, 120)
    count = compared(tmp_path).blocks
    path = tmp_path / "integrity" / f"{0:020d}"
    flip(path, 64 + 3 * 8 + 5)  # The check of an entry.
    assert compared(tmp_path) == ((count or 0) - 1, [])
    flip(path, 20)  # The header.
    assert compared(tmp_path) == ((count or 0) - 16, [])
    path.unlink()
    assert compared(tmp_path) == ((count or 0) - 16, [])


def test_a_block_that_is_shorter_is_compared_too(tmp_path: Path) -> None:
    write_small_store(RealFileSystem(), str(tmp_path))  # Its files have 4096 bytes.
    assert compared(tmp_path) == (2, [])
    flip(tmp_path / "commitlog" / f"{4096:020d}", 4000)
    assert compared(tmp_path) == (2, [(4096, 8192)])


def test_a_sample_has_its_share(tmp_path: Path) -> None:
    write_sealed_log(tmp_path, 400)
    assert 15 <= (compared(tmp_path, sample=0.4).blocks or 0) <= 35


def test_where_nobody_can_reckon_them_none_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_store(RealFileSystem(), str(tmp_path))
    monkeypatch.setitem(sys.modules, "crc32c", None)
    (part, *_) = parts(look(str(tmp_path)))
    assert blocks.compare(part) == (None, [])


def test_a_survey_tells_of_blocks_if_asked(tmp_path: Path) -> None:
    write_small_store(RealFileSystem(), str(tmp_path))
    flip(tmp_path / "commitlog" / f"{0:020d}", 4090)
    rows = [
        row
        for asked in (False, True)
        for part in parts(look(str(tmp_path)))
        for batch in survey.survey_batches(
            part, tuple(survey.COLUMNS), checksums=False, runs=False, blocks=asked
        )
        for row in batch.to_pylist()
    ]
    assert [row["blocks"] for row in rows if row["kind"] == "part"] == [0, 0, 0, 1, 1, 0]
    (wrong,) = [row for row in rows if row["kind"] == "block"]
    assert (wrong["start"], wrong["end"]) == (0, 4096)
    assert wrong["file"] == str(tmp_path / "commitlog" / f"{0:020d}")


def test_the_format_is_the_one_that_a_store_writes() -> None:
    assert scan.BLOCK_SIZE == integrity.BLOCK_SIZE
    assert blocks.VERSION == integrity.VERSION


def sealed_end(root: Path) -> int:
    """Return where the last sealed block ends: this store seals all that is whole."""
    return look(str(root)).end // scan.BLOCK_SIZE * scan.BLOCK_SIZE


def scanned(
    root: Path, split_size: int = 64 << 20
) -> tuple[dict[int, bytes], list[tuple[int, int, str]]]:
    """Return the records by their places, and the damage, as a table has them."""
    records: dict[int, bytes] = {}
    damages: list[tuple[int, int, str]] = []
    for part in parts(look(str(root)), split_size):
        sealed = blocks.wrong_blocks(part)
        for found in scan.scan(part, checksums=True, wrong_blocks=sealed):
            if isinstance(found, scan.Damage):
                damages.append((found.start, found.end, found.reason))
                continue
            ends = zip(found.starts.tolist(), found.ends.tolist(), strict=True)
            each = [bytes(found.raw[start:end]) for start, end in ends]
            assert not records.keys() & set(found.physical_offsets.tolist())
            records |= zip(found.physical_offsets.tolist(), each, strict=True)
    return records, damages


@pytest.mark.parametrize(
    ("split_size", "chunk_size"),
    [(64 << 20, scan.CHUNK_SIZE), (300_000, 10_000), (65_536, 100_000)],
)
def test_whatever_byte_is_wrong_no_record_is_read_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_size: int, chunk_size: int
) -> None:
    monkeypatch.setattr(scan, "CHUNK_SIZE", chunk_size)
    write_sealed_log(tmp_path, 250)
    records, damages = scanned(tmp_path, split_size)
    assert (len(records), damages) == (250, [])
    random = Random(split_size + chunk_size)
    heads = [place + random.randrange(90) for place in random.sample(sorted(records), 4)]
    for place in [*heads, *(random.randrange(sealed_end(tmp_path)) for _ in range(3))]:
        if place >= sealed_end(tmp_path):
            continue
        path = tmp_path / "commitlog" / f"{place - place % SEGMENT:020d}"
        flip(path, place % SEGMENT)
        found, damages = scanned(tmp_path, split_size)
        assert found.items() <= records.items()
        assert damages
        lost = records.keys() - found.keys()
        assert all(any(start <= each < end for start, end, _ in damages) for each in lost)
        assert len(lost) <= 2 + scan.BLOCK_SIZE // 10_000
        flip(path, place % SEGMENT)


@pytest.mark.parametrize("split_size", [64 << 20, 65_536])
def test_a_wrong_byte_that_no_record_checks_costs_its_block_and_is_told_once(
    tmp_path: Path, split_size: int
) -> None:
    write_sealed_log(tmp_path, 250)
    records, _ = scanned(tmp_path)
    block = 5 * scan.BLOCK_SIZE
    first = max(each for each in records if each <= block)
    behind = min(each for each in records if each >= block + scan.BLOCK_SIZE)
    inside = min(each for each in records if each > block)
    flip(tmp_path / "commitlog" / f"{0:020d}", inside + 17)  # Its flag.
    found, damages = scanned(tmp_path, split_size)
    assert found == {each: records[each] for each in records if not first <= each < behind}
    assert [(damages[0][0], damages[-1][1])] == [(first, behind)]
    assert all("does not match its checksum in integrity/" in reason for *_, reason in damages)
    if split_size > SEGMENT:
        assert len(damages) == 1


def test_a_damaged_record_is_the_reason_for_a_wrong_block(tmp_path: Path) -> None:
    write_sealed_log(tmp_path, 250)
    records, _ = scanned(tmp_path)
    path = tmp_path / "commitlog" / f"{0:020d}"
    for at, reason in ((5000, "the checksum of its body is wrong"), (4, " are not the start of")):
        place = sorted(records)[40]
        flip(path, place + at)
        found, ((start, end, said),) = scanned(tmp_path)
        assert reason in said
        assert (start, end) == (place, place + len(records[place]))
        assert found == {each: records[each] for each in records if each != place}
        flip(path, place + at)


@pytest.mark.parametrize("what", ["Apache wrote since", "no crc32c", "no sidecar", "unreadable"])
def test_sealed_blocks_that_do_not_count_cost_no_record(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    write_sealed_log(tmp_path, 120)
    records, _ = scanned(tmp_path)
    flip(tmp_path / "commitlog" / f"{0:020d}", sorted(records)[3] + 17)
    assert len(scanned(tmp_path)[0]) < 120
    if what == "Apache wrote since":
        flip(tmp_path / "checkpoint", 7)
    elif what == "no crc32c":
        monkeypatch.setitem(sys.modules, "crc32c", None)
    else:
        sidecar = tmp_path / "integrity" / f"{0:020d}"
        sidecar.unlink()
        if what == "unreadable":
            sidecar.mkdir()
    assert len(scanned(tmp_path)[0]) == 120
    assert ("its sealed blocks are not compared: " in caplog.text) == (what == "unreadable")
