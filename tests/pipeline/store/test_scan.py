"""Each record of a log is found once, however the log is divided, and so is each damage."""

from __future__ import annotations

from pathlib import Path
from random import Random
from time import process_time

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tests.pipeline.store.logs import BLANK, SIZE, change, found, write_log
from tests.store.apache_stores import manifest_records, unpack
from tests.store.records import record

from cometmq.pipeline.records.layout import head_at
from cometmq.pipeline.store import scan as scanning
from cometmq.pipeline.store.scan import Damage

SPLITS = (64 << 20, 5000, 1000, 100)


def bodies(count: int = 60, seed: int = 1) -> list[bytes]:
    random = Random(seed)
    return [random.randbytes(random.choice((0, 5, 100, 900))) for _ in range(count)]


@pytest.mark.parametrize("store", ["clean", "killed", "ext"])
@pytest.mark.parametrize("split_size", [64 << 20, 30_000, 777])
def test_every_record_of_apaches_stores_is_found(
    tmp_path: Path, store: str, split_size: int
) -> None:
    root = unpack(store, tmp_path)
    places, damages = found(root, split_size)
    assert places == [line["physicalOffset"] for line in manifest_records(store)]
    assert damages == []


@pytest.mark.parametrize("chunk_size", [200, 1000, 1 << 22])
def test_records_over_the_edges_of_parts_and_chunks_are_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_size: int
) -> None:
    monkeypatch.setattr(scanning, "CHUNK_SIZE", chunk_size)
    places = write_log(tmp_path, bodies())
    for split_size in (*SPLITS, 64, 333):
        assert found(tmp_path, split_size) == (places, [])


def damaged_places(root: Path, split_size: int) -> tuple[list[int], list[tuple[int, int]]]:
    places, damages = found(root, split_size)
    return places, [(damage.start, damage.end) for damage in damages]


@pytest.mark.parametrize("split_size", [*SPLITS, 64])
@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [
        (0, b"\0\0\0\0", "it claims 0 bytes, but "),
        (0, b"\x7f\xff\xff\xff", "it claims 2147483647 bytes, but "),
        (3, b"\x01", "its lengths do not agree"),
        (4, b"\xff", " and magic 0xffa320a7 are not the start of a record"),
        (12, b"\x80", "its queue offset or queue id is negative"),
        (20, b"\xff", "its queue offset or queue id is negative"),
        (28, b"\xff", "it claims to be at -"),
        (84, b"\xff\xff\xff\xff", "its lengths do not agree"),
        (84, b"\0\0\x01", "its lengths do not agree"),
        (88, b"another", "the checksum of its body is wrong"),
        (0, bytes(100), "there are zeros where a record should begin"),
    ],
)
def test_a_damaged_record_is_passed_over_alone_and_found_once(
    tmp_path: Path, split_size: int, at: int, data: bytes, reason: str
) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 40)
    for number in (0, 7, 30):
        place = places[number]
        write_log(tmp_path, [b"x" * 200] * 40)
        change(tmp_path, place + at, data)
        others = places[:number] + places[number + 1 :]
        there, (damage,) = found(tmp_path, split_size)
        assert (there, damage[:2]) == (others, (place, places[number + 1]))
        assert reason in damage.reason


@pytest.mark.parametrize("split_size", SPLITS)
def test_damage_over_several_records_and_parts_is_one(tmp_path: Path, split_size: int) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 40)
    change(tmp_path, places[3], b"\x55" * (places[9] - places[3]))
    expected = (places[:3] + places[9:], [(places[3], places[9])])
    assert damaged_places(tmp_path, split_size) == expected


@pytest.mark.parametrize("split_size", SPLITS)
def test_a_file_without_its_end_is_damaged_to_its_end(tmp_path: Path, split_size: int) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 40)
    in_first = [place for place in places if place < SIZE]
    end = in_first[-1] + head_at((tmp_path / "commitlog" / f"{0:020d}").read_bytes(), 0)[0]
    change(tmp_path, end, bytes(SIZE - end))
    found_places, damages = found(tmp_path, split_size)
    assert found_places == places
    assert damages == [Damage(end, SIZE, "there are zeros where a record should begin")]


def test_a_wrong_checksum_counts_only_where_it_is_asked_for(tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 10)
    change(tmp_path, places[4] + 90, b"y")
    assert found(tmp_path, checksums=False) == (places, [])
    _, (damage,) = found(tmp_path)
    assert damage == Damage(places[4], places[5], "the checksum of its body is wrong")


@pytest.mark.parametrize("split_size", SPLITS)
@pytest.mark.parametrize("torn", [b"\x01", b"\0\0\x01\x2c\xda\xa3\x20\xa7" + b"\x07" * 60])
def test_a_torn_tail_is_no_damage(tmp_path: Path, split_size: int, torn: bytes) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 10)
    data = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    end = places[-1] + head_at(data, places[-1])[0]
    change(tmp_path, end, torn)
    assert found(tmp_path, split_size) == (places, [])


def test_a_record_whose_body_is_not_written_yet_is_the_tail(tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 10)
    change(tmp_path, places[-1] + 100, bytes(100))
    assert found(tmp_path) == (places[:-1], [])


def test_a_body_that_holds_a_record_of_elsewhere_is_a_body(tmp_path: Path) -> None:
    bodies = [record(5, b"inner"), b"", record(777, b"x" * 100)] * 8
    places = write_log(tmp_path, bodies)
    for split_size in (*SPLITS, 64):
        assert found(tmp_path, split_size) == (places, [])


@pytest.mark.parametrize("is_all_properties", [False, True])
@pytest.mark.parametrize("split_size", [10_000, 5000, 3500, 700])
def test_records_in_bodies_that_end_in_the_body_of_another_message_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_size: int, is_all_properties: bool
) -> None:
    """A search that begins in such a body finds one of them, which leads past the next real record.

    No checksum covers properties, and everybody knows the checksum of an empty body.
    """
    monkeypatch.setattr(scanning, "_BODY_MAX", 3300)
    size, ghost_size, body_size = 1 << 16, 2500, 3000
    starts = write_log(tmp_path, [bytes(body_size)] * 15, size=size)
    bodies: list[bytes] = []
    for start in starts:
        body = bytearray(body_size)
        for at in (1500, 1900, 2050):
            ghost = bytearray(record(start + 88 + at, b"", topic=""))
            ghost[:4] = ghost_size.to_bytes(4, "big")
            if is_all_properties:
                ghost[-2:] = (ghost_size - len(ghost)).to_bytes(2, "big")
            else:
                ghost[84:88] = (ghost_size - len(ghost)).to_bytes(4, "big")
            body[at : at + len(ghost)] = ghost
        bodies.append(bytes(body))
    assert write_log(tmp_path, bodies, size=size) == starts
    assert found(tmp_path, split_size, checksums=False) == (starts, [])


@pytest.mark.parametrize("behind", [8000, 0])
def test_thousands_of_records_in_a_body_take_no_time(tmp_path: Path, behind: int) -> None:
    """Each reaches to the body's end, and has a wrong checksum: comparing them takes minutes."""
    size, body_size, count = 64 << 20, 4 << 20, 20_000
    others = ([b"x" * body_size], [b"x" * 1000] * behind)
    start = write_log(tmp_path, [*others[0], bytes(body_size), *others[1]], size=size)[1]
    body = bytearray(body_size)
    for at in range(0, body_size - 200, body_size // count):
        ghost = bytearray(record(start + 88 + at, b"", topic=""))
        rest = body_size - at
        ghost[:4] = rest.to_bytes(4, "big")
        ghost[84:88] = (rest - len(ghost)).to_bytes(4, "big")
        body[at : at + len(ghost)] = ghost
    places = write_log(tmp_path, [*others[0], bytes(body), *others[1]], size=size)
    begun = process_time()
    assert found(tmp_path, 3 << 20) == (places, [])
    assert process_time() - begun < 10


def test_a_last_message_that_was_torn_ends_the_log_whatever_is_in_its_body(tmp_path: Path) -> None:
    bodies = [b"x" * 100, bytes(1000), bytes(2000)]
    start = write_log(tmp_path, bodies)[2]
    bodies[2] = record(start + 88, b"ghost").ljust(2000, b"y")
    places = write_log(tmp_path, bodies)
    change(tmp_path, start + 1900, bytes(100))
    assert found(tmp_path) == (places[:2], [])


def test_a_last_message_without_properties_is_where_the_log_ends(tmp_path: Path) -> None:
    """Its last bytes are zeros, as are the unwritten bytes after it."""
    folder = tmp_path / "commitlog"
    folder.mkdir()
    first = record(0, b"x" * 100)
    at = len(first) + record(0, b"y" * 300).index(b"y")
    last = record(len(first), record(at, b"ghost").ljust(300, b"z"))
    (folder / f"{0:020d}").write_bytes((first + last).ljust(SIZE, b"\0"))
    assert last.endswith(b"\0")
    for split_size in SPLITS:
        assert found(tmp_path, split_size) == ([0, len(first)], [])


@pytest.mark.parametrize("split_size", [*SPLITS, 64])
def test_what_stands_behind_the_filler_of_a_file_is_no_record(
    tmp_path: Path, split_size: int
) -> None:
    """As after a store's tail was cut off, if the file's new records end before the old ones."""
    places = write_log(tmp_path, [b"x" * 200] * 40)
    filler = places[9]
    change(tmp_path, filler, (SIZE - filler).to_bytes(4, "big") + BLANK)
    assert places[11] < SIZE
    behind = [place for place in places if place >= SIZE]
    assert found(tmp_path, split_size) == (places[:9] + behind, [])


@pytest.mark.parametrize("behind", [b"x" * 100, None])
@pytest.mark.parametrize("split_size", [*SPLITS, 64])
def test_a_body_that_holds_records_of_its_own_place_is_a_body(
    tmp_path: Path, split_size: int, behind: bytes | None
) -> None:
    """A sender who knows where the message will lie can do this, also in the log's last message."""
    lengths = [100, 3000, *([100] if behind else [])]
    start = write_log(tmp_path, [b"x" * each for each in lengths])[1]
    at = start + record(start, b"y" * 3000).index(b"y")
    inner = b""
    while len(inner) < 2000:
        inner += record(at + len(inner), b"ghost" * 10)
    inner += b"z" * (3000 - len(inner))
    places = write_log(tmp_path, [b"x" * 100, inner, *([behind] if behind else [])])
    assert found(tmp_path, split_size) == (places, [])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 99),
    at=st.integers(0, 3 * SIZE),
    noise=st.binary(min_size=1, max_size=300),
    split_size=st.sampled_from(SPLITS),
    body_max=st.sampled_from((4 << 20, 1500, 200)),
)
def test_whatever_is_written_over_a_log_the_other_records_are_found(
    tmp_path: Path, seed: int, at: int, noise: bytes, split_size: int, body_max: int
) -> None:
    places = write_log(tmp_path, bodies(40, seed))
    sizes = {
        place: head_at(
            (tmp_path / "commitlog" / f"{place - place % SIZE:020d}").read_bytes(), place % SIZE
        )[0]
        for place in places
    }
    end = places[-1] + sizes[places[-1]]
    at = min(at, places[-2])
    noise = noise[: min(len(noise), SIZE - at % SIZE, end - at)]
    change(tmp_path, at, noise)
    untouched = [p for p in places if p + sizes[p] <= at or p >= at + len(noise)]
    found_places, damages = found(tmp_path, split_size)
    assert set(untouched) <= set(found_places) <= set(places)
    with pytest.MonkeyPatch.context() as patch:  # However far before a part the search begins.
        patch.setattr(scanning, "_BODY_MAX", body_max)
        assert (found_places, damages) == found(tmp_path, split_size)
    assert (found_places, damages) == found(tmp_path)
    for file in (tmp_path / "commitlog").iterdir():
        file.unlink()
