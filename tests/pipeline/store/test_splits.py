from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow import fs
from tests.pipeline.store.logs import SIZE, change, found, write_log

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.store.files import (
    FORMAT_VERSION,
    Opened,
    StoreFile,
    check_store,
    disk_errors_told,
    inside,
)
from cometmq.pipeline.store.splits import Log, look, parts
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.upkeep import checkpoint


def test_parts_cover_the_log_and_nothing_behind_it(tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 30)
    log = look(str(tmp_path))
    assert places[-1] < log.end == log.data_end
    found_parts = parts(log, 1000)
    covered = [(part.base + part.start, part.base + part.stop) for part in found_parts]
    assert covered[0][0] == 0
    assert covered[-1][1] == log.end
    assert [stop for _, stop in covered[:-1]] == [start for start, _ in covered[1:]]


@pytest.mark.parametrize(
    ("mib", "cores", "counts"),
    [
        (1, 2, [1]),
        (20, 2, [1]),
        (513, 2, [2]),
        (700, 2, [4]),
        (700, 16, [16]),
        (100, 16, [6]),
        (1500, 2, [4, 2]),
        (4096, 3, [4, 4, 4, 4]),
    ],
)
def test_parts_have_as_much_as_each_other_whatever_a_log_has(
    monkeypatch: pytest.MonkeyPatch, mib: int, cores: int, counts: list[int]
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    files = [StoreFile(str(n), n << 30, 1 << 30) for n in range(len(counts))]
    log = Log("root", files, mib << 20, mib << 20)
    found_parts = parts(log)
    assert [sum(part.path == file.path for part in found_parts) for file in files] == counts
    for file in files:
        sizes = {part.stop - part.start for part in found_parts if part.path == file.path}
        assert max(sizes) - min(sizes) < counts[0], file
    assert max(part.stop - part.start for part in found_parts) <= 384 << 20


def test_what_is_appended_after_the_look_is_in_no_part(tmp_path: Path) -> None:
    before = write_log(tmp_path, [b"x" * 200] * 5)
    seen = parts(look(str(tmp_path)), 500)
    write_log(tmp_path, [b"x" * 200] * 9)
    assert parts(look(str(tmp_path)), 500) != seen
    from cometmq.pipeline.store.scan import Damage, scan

    places = [
        place
        for part in seen
        for each in scan(part)
        if not isinstance(each, Damage)
        for place in each.physical_offsets.tolist()
    ]
    assert places == before


def test_a_log_whose_front_has_expired_begins_later(tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 60)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    assert look(str(tmp_path)).first == SIZE
    assert found(tmp_path, 1000) == ([place for place in places if place >= SIZE], [])


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_log_that_lacks_a_file_in_the_middle_is_refused(tmp_path: Path, is_empty: bool) -> None:
    write_log(tmp_path, [b"x" * 200] * 60)
    lost = tmp_path / "commitlog" / f"{SIZE:020d}"
    lost.unlink()
    if is_empty:
        lost.touch()
    with pytest.raises(OptionError, match=rf"path: {lost} is missing or empty, while those"):
        look(str(tmp_path))


def test_a_file_made_ahead_of_need_is_no_data(tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 5)
    (tmp_path / "commitlog" / f"{SIZE:020d}").write_bytes(bytes(SIZE))
    (tmp_path / "commitlog" / f"{2 * SIZE:020d}").write_bytes(b"")
    assert found(tmp_path) == (places, [])


def test_a_store_without_messages_has_no_parts(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert parts(look(str(tmp_path))) == []
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(SIZE))
    assert parts(look(str(tmp_path))) == []
    change(tmp_path, 0, b"\x07" * 100)
    log = look(str(tmp_path))
    assert (log.end, log.data_end, parts(log)) == (0, 100, [])


def test_a_tail_that_fills_a_file_is_still_the_tail(tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 5)
    (tmp_path / "commitlog" / f"{SIZE:020d}").write_bytes(b"\x07" * SIZE)
    log = look(str(tmp_path))
    assert log.end < SIZE < log.data_end == 2 * SIZE
    assert found(tmp_path) == (places, [])


def test_a_last_file_without_a_right_body_is_behind_the_end(tmp_path: Path) -> None:
    """Its records are of no use to anybody, so the log ends with those of the file before."""
    places = write_log(tmp_path, [b"x" * 200] * 15)
    before = [place for place in places if place < SIZE]
    for place in places[len(before) :]:
        change(tmp_path, place + 90, b"y")
    change(tmp_path, places[-2] + 4, b"y")  # The last record follows none.
    log = look(str(tmp_path))
    assert (log.last, log.end) == (before[-1], before[-1] + places[1])
    assert log.data_end > places[-1]
    assert found(tmp_path) == (before, [])


def test_what_is_no_store_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pytest.raises(OptionError, match=r"path: .*: no such folder"):
        look(str(path))
    with pytest.raises(OptionError, match=r"^path: file:/s: Expected a local .*, got a URI"):
        look("file:/s")
    path.write_text("x")
    with pytest.raises(OptionError, match="a file; name the folder of a store"):
        look(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(OptionError, match="contains no commitlog/; name the folder of a store"):
        look(str(path))


def test_the_folder_of_the_log_itself_is_told_from_the_store(tmp_path: Path) -> None:
    write_log(tmp_path, [b"x"])
    with pytest.raises(OptionError, match="its parent is one"):
        look(str(tmp_path / "commitlog"))


def test_files_of_several_sizes_are_refused(tmp_path: Path) -> None:
    write_log(tmp_path, [b"x"])
    (tmp_path / "commitlog" / f"{SIZE:020d}").write_bytes(bytes(100))
    with pytest.raises(OptionError, match=r"has 100 bytes, but .* has 4096"):
        look(str(tmp_path))


def test_a_foreign_file_among_those_of_the_log_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path, [b"x"])
    (tmp_path / "commitlog" / "copying").mkdir()  # A folder is no file of a log.
    look(str(tmp_path))
    for name in ("notes.txt", "0" * 19, f"{0:020d}.gz"):
        foreign = tmp_path / "commitlog" / name
        foreign.touch()
        with pytest.raises(OptionError, match=rf"{foreign}: not a file of a log, .*; move it else"):
            look(str(tmp_path))
        foreign.unlink()


def test_a_file_that_begins_where_none_can_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path, [b"x"])
    folder = tmp_path / "commitlog"
    (folder / f"{0:020d}").rename(folder / f"{SIZE // 2:020d}")
    with pytest.raises(
        OptionError, match=f"{SIZE // 2:020d}: no file of a log of files of .* begins there"
    ):
        look(str(tmp_path))


def test_a_store_of_a_newer_format_is_refused_whatever_is_read_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, [b"x"])
    claims = checkpoint.Claims(recover_from=0, verify_from=0, synced_offset=0, segment_size=SIZE)
    for version in (checkpoint.VERSION, FORMAT_VERSION + 1):
        check_store(str(tmp_path))
        monkeypatch.setattr(checkpoint, "VERSION", version)
        file = checkpoint.CheckpointFile(RealFileSystem(), str(tmp_path / "checkpoint"))
        file.write(checkpoint.Longs(), claims)
        file.close()
    for ask in (look, check_store):
        with pytest.raises(OptionError, match=r"checkpoint: version 2, .* use a newer one"):
            ask(str(tmp_path))
    path = tmp_path / "checkpoint"
    path.write_bytes(path.read_bytes().replace(b"CMCP\0", b"CMCP\1"))  # Damaged: it says nothing.
    check_store(f"file://{tmp_path}")
    os.truncate(path, 10)
    check_store(str(tmp_path))


@pytest.mark.parametrize("place", ["", "/commitlog"])
def test_a_link_that_leads_nowhere_is_told_as_that(tmp_path: Path, place: str) -> None:
    (tmp_path / "s").mkdir()
    root = tmp_path / "s" if place else tmp_path / "link"
    Path(f"{root}{place}").symlink_to("/not/mounted")
    with pytest.raises(OptionError, match=f"{root}{place}: a dangling link; mount what"):
        check_store(str(root))


def test_what_may_not_be_read_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, [b"x"])

    def forbidden(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a file")

    monkeypatch.setattr(Opened, "read", forbidden)  # Root may read everything.
    with pytest.raises(OptionError, match=r"Permission denied: 'a file'; run it as the user that"):
        look(str(tmp_path))


def test_a_store_may_be_named_by_a_uri(tmp_path: Path) -> None:
    write_log(tmp_path, [b"x"])
    assert look(f"file://{tmp_path}").end == look(str(tmp_path)).end
    with pytest.raises(OptionError, match="path: nowhere://x: "):
        look("nowhere://x")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_store_on_s3_may_be_named_as_spark_does(scheme: str) -> None:
    root = f"{scheme}://me:secret@bucket/store?region=us-east-1"  # So no server is asked for it.
    assert inside(root, "checkpoint") == "bucket/store/checkpoint"


def test_a_library_that_is_not_there_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_uri(uri: str) -> None:
        raise OSError(f"Unable to load libhdfs for {uri}\ndlopen(libhdfs.so) failed\nand so on")

    monkeypatch.setattr(fs, "FileSystem", SimpleNamespace(from_uri=from_uri))
    with pytest.raises(OptionError, match=r"^path: hdfs://a: Unable to load libhdfs for hdfs://a$"):
        check_store("hdfs://a")


def test_a_server_of_s3_that_is_away_may_be_there_soon() -> None:
    away = "AWS Error NETWORK_CONNECTION during HeadObject operation: Could not connect"
    with (
        pytest.raises(PipelineError, match=r"^path: s3://b: AWS Error NETWORK_") as caught,
        disk_errors_told("s3://b"),
    ):
        raise OSError(away)
    assert not isinstance(caught.value, OptionError)


@pytest.mark.parametrize("mark", "#?")
def test_a_uri_names_the_folder_that_it_seems_to(tmp_path: Path, mark: str) -> None:
    """Arrow leaves out what is behind these, and would read another store."""
    for name in ("a", f"a{mark}b"):
        write_log(tmp_path / name, [b"x"] * len(name))
    quoted = f"%{ord(mark):X}"
    with pytest.raises(OptionError, match=f"in a URI write [{mark}] as {quoted}, or name"):
        look(f"file://{tmp_path}/a{mark}b")
    assert look(f"file://{tmp_path}/a{quoted}b").end == look(f"{tmp_path}/a{mark}b").end


def sparse(root: Path, size: int) -> int:
    """Write a short log, lengthen its one file by a hole, and return where its data ends."""
    places = write_log(root, [b"x" * 200] * 5)
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        data = file.read()
        end = len(data.rstrip(b"\0"))
        file.truncate(size)
        file.flush()
        os.fsync(file.fileno())
    assert places[-1] < end
    return end


def test_what_was_never_written_of_a_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse(tmp_path, 64 << 20)
    read: list[int] = []
    plain = Opened.read

    def unknown(_self: Opened, _start: int, end: int) -> int:
        return end

    def note(self: Opened, size: int, position: int) -> bytes:
        read.append(position)
        return plain(self, size, position)

    monkeypatch.setattr(Opened, "read", note)
    seen = look(str(tmp_path))
    assert not [position for position in read if position]
    monkeypatch.setattr(Opened, "written_end", unknown)
    assert look(str(tmp_path)) == seen
    assert max(read) == 60 << 20


def test_looks_make_no_data_of_what_was_never_written(tmp_path: Path) -> None:
    sparse(tmp_path, 64 << 20)
    path = tmp_path / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:  # As a broker does: what is read of such space counts as data.
        os.posix_fallocate(file.fileno(), 0, 64 << 20)
    with Opened(str(tmp_path), str(path)) as file:
        if file.written_end(0, 64 << 20) == 64 << 20:
            pytest.skip("this filesystem does not tell what was never written")
        look(str(tmp_path))
        written = file.written_end(0, 64 << 20)
        for _ in range(2):
            look(str(tmp_path))
        assert file.written_end(0, 64 << 20) == written


def test_a_tail_torn_off_behind_a_hole_is_found(tmp_path: Path) -> None:
    end = sparse(tmp_path, 64 << 20)
    before = look(str(tmp_path))
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(40 << 20)
        file.write(b"torn")
    log = look(str(tmp_path))
    assert log.end == before.end
    assert (before.data_end, log.data_end) == (end, (40 << 20) + 4)
