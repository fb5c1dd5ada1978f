"""`cometmq store`: the output, exit status, changes and refusals of its commands."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from tests.crash.disk import SimulatedFileSystem
from tests.store.apache_stores import unpack
from tests.store.damaged_stores import (
    BATCHES,
    ROOT,
    SMALL,
    contents,
    flip,
    open_small_store,
    overwrite,
    small_store,
    write_small_store,
)
from tests.store.records import HOST
from tests.store.test_rebuilding import given_twice

from cometmq.admin.commands import store_verify
from cometmq.admin.program import program
from cometmq.store.disk.filesystem import FileSystem, RealFileSystem
from cometmq.store.log.turn import Origin
from cometmq.store.looking.findings import Progress, Report
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME
from cometmq.store.upkeep import checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.looking.inspection import Inspected

SHAPE = ("--index-slots", "20", "--index-items", "40")
COMMANDS = (
    ("stat",),
    ("verify",),
    ("dump",),
    ("rebuild",),
    ("repair", "--dry-run"),
    ("repair", "--yes"),
)
HOLD = """
import sys
import time
from tests.store.damaged_stores import write_small_store
from cometmq.store.disk.filesystem import RealFileSystem
write_small_store(RealFileSystem(), sys.argv[1], close=False)
print("ready", flush=True)
sys.stdin.read()
"""


def run(*arguments: str, disk: FileSystem | None = None) -> Result:
    return CliRunner().invoke(program, ["store", *arguments], obj=disk)


def told(result: Result, status: int) -> str:
    """Return the one line on stderr of a command that failed as expected."""
    assert result.exit_code == status, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.stderr


@pytest.fixture
def real(tmp_path: Path) -> str:
    root = tmp_path / "store"
    write_small_store(RealFileSystem(), str(root))
    return str(root)


def fingerprint(root: str) -> str:
    """Return a digest of all names, contents, modes and modification times in a folder."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted((*files, *folders)):
            path = Path(folder) / name
            stat = path.stat()
            digest.update(f"{path} {stat.st_mtime_ns} {stat.st_mode} {stat.st_size}\n".encode())
            if path.is_file():
                digest.update(path.read_bytes())
    stat = Path(root).stat()
    digest.update(f"{stat.st_mtime_ns}".encode())
    return digest.hexdigest()


# Reading


@pytest.mark.parametrize("name", ["clean", "killed", "ext"])
def test_reading_commands_work_on_apache_stores_and_change_no_byte(
    name: str, tmp_path: Path
) -> None:
    root = str(unpack(name, tmp_path))
    before = fingerprint(root)
    for arguments in (
        ("stat",),
        ("stat", "--queues"),
        ("stat", "--json"),
        ("verify",),
        ("verify", "--json"),
        ("dump", "--body", "text"),
        ("dump", "--json", "--body", "hex"),
        ("repair", "--dry-run"),
    ):
        result = run(*arguments, root)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
    assert fingerprint(root) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_whose_segments_are_no_multiple_of_a_page_is_taken(
    command: tuple[str, ...],
) -> None:
    disk = small_store(replace(SMALL, segment_size=5000))
    disk.remove(f"{ROOT}/checkpoint")  # As with a store of Apache's, which has no record of sizes.
    disk.remove(f"{ROOT}/{QUEUE_ENDS_NAME}")
    result = run(*command, ROOT, *SHAPE, disk=disk)
    assert result.exit_code == 0, result.output


def test_stat_tells_what_is_in_a_store(tmp_path: Path) -> None:
    root = str(unpack("clean", tmp_path))
    found = json.loads(run("stat", "--json", root).stdout)
    assert (found["clean"], found["opened_by"], found["messages"]) == (True, None, 1688)
    assert (found["segments"], found["segment_size"], found["end_offset"]) == (8, 65536, 489584)
    assert (found["index_slots"], found["index_items"], len(found["index"])) == (200, 400, 13)
    assert (found["first_time"], found["last_time"]) == (1795254455845, 1795254582439)
    assert found["checkpoint"]["apache"]["queues_offset"] == 489236
    assert {
        "topic": "S_bcq",
        "queue_id": 0,
        "is_batch": True,
        "min_offset": 0,
        "max_offset": 26,
    } in found["queues"]
    text = run("stat", root).stdout
    assert "shut down cleanly" in text
    assert "1688 messages in 23 queues of 15 topics" in text
    assert "not shut down cleanly" in run("stat", str(unpack("killed", tmp_path / "k"))).stdout


def test_stat_says_which_queues_end_too_early() -> None:
    disk = small_store()
    whole = json.loads(run("stat", "--json", ROOT, disk=disk).stdout)
    assert whole["short_queues"] == []
    assert whole["damages"] == []
    assert "damage" not in run("stat", ROOT, disk=disk).stdout
    folder = f"{ROOT}/consumequeue/T/1"
    for entry in disk.list(folder):
        disk.remove(f"{folder}/{entry.name}")
    (short,) = json.loads(run("stat", "--json", ROOT, disk=disk).stdout)["short_queues"]
    known = next(q for q in whole["queues"] if (q["topic"], q["queue_id"]) == ("T", 1))
    assert short == {
        "topic": "T",
        "queue_id": 1,
        "max_offset": 0,
        "known_offset": known["max_offset"],
    }
    said = run("stat", ROOT, disk=disk)
    assert said.exit_code == 1
    text = said.stdout
    had = f"it had messages up to {known['max_offset']}"
    problem = f"the sound entries of queue 1 of T end at 0, but {had}"
    assert f"damage      {problem}" in text
    as_json = run("stat", "--json", ROOT, disk=disk)
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["damages"] == [f"{problem}: run `cometmq store verify`"]


def test_a_store_that_a_process_has_open_is_read_and_not_written(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        before = fingerprint(root)
        assert f"open in process {holder.pid}" in run("stat", root, *SHAPE).stdout
        verified = run("verify", root, *SHAPE)
        assert f"open in process {holder.pid}" in verified.stdout
        assert verified.exit_code == 0, verified.output
        assert run("dump", root, "--topic", "T", "--limit", "3").exit_code == 0
        for command in ("rebuild", "repair --yes", "repair --dry-run"):
            refusal = told(run(*command.split(), root, *SHAPE), 1)
            assert f"open in process {holder.pid}; stop it first" in refusal
        assert fingerprint(root) == before
    finally:
        holder.communicate("")


def test_verify_names_what_is_wrong_and_exits_with_one(real: str) -> None:
    assert run("verify", real).exit_code == 0
    flip(RealFileSystem(), f"{real}/consumequeue/T/1/00000000000000000000", 11, 0x40)
    before = fingerprint(real)
    result = run("verify", real)
    assert result.exit_code == 1
    line = result.stdout.splitlines()[0]
    assert line.startswith(f"wrong entry: {real}/consumequeue/T/1/00000000000000000000: byte 0 (T")
    assert "size is" in line
    assert "should be physical offset" in line
    found = json.loads(run("verify", "--json", real).stdout)
    assert (found["sound"], found["counts"]) == (False, {"wrong entry": 1})
    assert found["findings"][0]["queue_offset"] == 0
    assert fingerprint(real) == before


def test_verify_prints_so_many_findings_and_counts_the_others() -> None:
    disk = small_store()
    for path in list(contents(disk, f"{ROOT}/consumequeue")):
        disk.remove(path)
    result = run("verify", ROOT, "--max", "2", disk=disk)
    assert result.stdout.count("missing entry: ") == 2
    assert "... and 43 more\n" in result.stdout
    assert "45 findings: 45 missing entry" in result.stdout
    alike = run("verify", ROOT, disk=disk).stdout
    assert alike.count("missing entry: ") == 3 + 1 + 3 + 1 + 3 + 1
    assert "missing entry: T queue 1: and 17 more of that kind, to offset 19\n" in alike
    assert "45 findings: 45 missing entry" in alike
    assert len(json.loads(run("verify", ROOT, "--json", disk=disk).stdout)["findings"]) == 45


def test_one_finding_is_said_as_one() -> None:
    disk = small_store()
    flip(disk, f"{ROOT}/consumequeue/T/1/{0:020d}", 11, 0x40)
    assert "1 finding: 1 wrong entry" in run("verify", ROOT, disk=disk).stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_no_name_is_not_the_root_of_the_machine(command: tuple[str, ...]) -> None:
    assert "DIR is empty: name the folder of a store" in told(run(*command, ""), 2)


def test_stat_without_a_checkpoint_says_what_that_means() -> None:
    disk = small_store()
    disk.remove(f"{ROOT}/checkpoint")
    shown = run("stat", ROOT, disk=disk).stdout
    assert "none: the next start reads the log from its beginning" in shown
    assert "1970" not in shown


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (("--topic", "T", "--queue", "1", "--from", "3", "--to", "6"), [3, 4, 5]),
        (("--topic", "Batches", "--queue", "0", "--from", "5", "--to", "8"), [4, 7]),
        (("--topic", "Batches", "--queue", "0", "--from", "6", "--to", "7"), [4]),
        (("--topic", "Batches", "--queue", "0", "--from", "7", "--to", "8"), [7]),
        (("--topic", "Batches", "--queue", "0", "--from", "14"), [12, 15]),
        (("--key", "k7"), [3]),
        (("--key", "U007"), [3]),
        (("--topic", "T", "--key", "all", "--limit", "3"), [0, 0, 1]),
        (("--since", "1700000058500"), [19]),
        (("--since", "2023-11-14T22:14:18.500Z", "--until", "1700000058501"), [19]),
        (("--until", "1700000001500", "--topic", "SCHEDULE_TOPIC_XXXX"), [0]),
        (("--physical", "0"), [0]),
        (("--topic", "nobody"), []),
    ],
)
def test_dump_picks_what_is_asked_for(options: tuple[str, ...], offsets: list[int]) -> None:
    disk = small_store()
    result = run("dump", ROOT, "--json", *options, disk=disk)
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["queue_offset"] for record in found] == offsets


def test_dump_shows_by_its_number_what_a_topic_had_before_it_was_made_again() -> None:
    disk = small_store()
    store = open_small_store(disk)
    store.delete_topics(["T"])
    for number in range(5):
        store.put("T", 0, b"again", b"", Origin(number, number, HOST))
        store.commit()
    assert store.close(1)
    options = ("--topic", "T", "--queue", "0", "--from", "3", "--to", "5")
    found = run("dump", "--json", *options, ROOT, disk=disk)
    assert offsets_of(found, "queue_offset") == [3, 4, 3, 4]


def test_dump_finds_by_time_what_was_stored_around_a_clock_that_was_set_back() -> None:
    disk, hour = SimulatedFileSystem(), 3_600_000
    store = MessageStore.open(ROOT, SMALL, now_ms=1, filesystem=disk, threads=False)
    periods = [hour * 500_000, hour * 499_999, hour * 500_000 + 60_000]
    for begin in periods:
        for now_ms in range(begin, begin + 40):  # These fill at least two files of the log.
            store.put("T", 0, bytes(500), b"", Origin(now_ms, now_ms, HOST))
            store.commit()
    assert store.close(1)
    for number, begin in enumerate(periods):
        times = ("--since", str(begin), "--until", str(begin + 1000))
        found = offsets_of(run("dump", "--json", *times, ROOT, disk=disk), "queue_offset")
        assert found == list(range(40 * number, 40 * number + 40))


@pytest.mark.parametrize(("wrong_by", "size"), [(-3, 10), (-3, 250), (3, 10), (3, 500)])
def test_dump_finds_by_time_what_lies_in_one_file_with_a_clock_that_was_wrong(
    wrong_by: int, size: int
) -> None:
    """A search by times must not assume that times grow within a file of the log."""
    disk, hour, start = SimulatedFileSystem(), 3_600_000, 3_600_000 * 500_000
    store = MessageStore.open(ROOT, SMALL, now_ms=1, filesystem=disk, threads=False)
    hours = (0, 1, 2, 2 + wrong_by, 2, 6)
    begins = [start + hours[number] * hour + number * 60_000 for number in range(6)]
    for begin in begins:
        for now_ms in range(begin, begin + 6):
            store.put("T", 0, bytes(size), b"", Origin(now_ms, now_ms, HOST))
            store.commit()
    assert store.close(1)
    for number in (0, 1, 2, 4):  # Periods with the right time, which others follow.
        times = ("--since", str(begins[number]), "--until", str(begins[number] + 1000))
        found = offsets_of(run("dump", "--json", *times, ROOT, disk=disk), "queue_offset")
        assert found == list(range(6 * number, 6 * number + 6))


@pytest.mark.parametrize(
    ("first", "end"),
    [
        (("--from", "7"), ("--to", "5")),
        (("--from", "5"), ("--to", "5")),
        (("--since", "2026-11-21"), ("--until", "2026-11-20")),
    ],
)
def test_dump_refuses_a_range_that_ends_in_front_of_its_begin(
    first: tuple[str, str], end: tuple[str, str]
) -> None:
    wanted = f"{first[0]} is not before {end[0]}"
    assert wanted in told(run("dump", *first, *end, ROOT, disk=small_store()), 2)


def test_dump_shows_the_records_that_reach_into_a_range() -> None:
    disk = small_store()
    whole = offsets_of(run("dump", "--json", ROOT, disk=disk))
    at = [offset for offset in whole if offset > 4096][1]
    for first, end in ((0, 9000), (at, at + 1), (at - 1, at + 1), (at + 1, 8192), (8000, 8192)):
        begun = [offset for offset in whole if offset <= first]
        expected = [offset for offset in whole if begun[-1] <= offset < end]
        found = run("dump", "--json", "--physical", f"{first}..{end}", ROOT, disk=disk)
        assert offsets_of(found) == expected, (first, end)
    assert offsets_of(run("dump", "--json", "--physical", str(at), ROOT, disk=disk)) == [at]
    assert "reaches into 9000..9001" in told(
        run("dump", "--physical", "9000..9001", ROOT, disk=disk), 1
    )
    for wrong in ("x", "5..", "..5", "7..7", "1..2..3", "-1"):
        assert "like 65536..131072" in told(run("dump", "--physical", wrong, ROOT, disk=disk), 2)


def offsets_of(result: Result, of: str = "physical_offset") -> list[int]:
    return [json.loads(line)[of] for line in result.stdout.splitlines()]


def test_the_records_of_a_damaged_block_are_shown_by_the_command_that_verify_names() -> None:
    disk = small_store()
    flip(disk, f"{ROOT}/commitlog/{0:020d}", 44)  # A time, which only the block's checksum covers.
    (line,) = run("verify", ROOT, disk=disk).stdout.splitlines()[:1]
    command = "`cometmq store dump --physical 0..4096 /s` shows its records"
    assert line.endswith(f"4096 bytes differ from their checksum; {command}")
    shown = run("dump", "--json", "--physical", "0..4096", ROOT, disk=disk)
    assert shown.exit_code == 0
    assert len(offsets_of(shown)) > 20
    flip(disk, f"{ROOT}/commitlog/{0:020d}", 100)  # This damages a record, too.
    assert run("dump", "--physical", "0..4096", ROOT, disk=disk).exit_code == 1
    assert run("dump", "--physical", "4000..4096", ROOT, disk=disk).exit_code == 0


def test_what_verify_could_not_check_is_not_called_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    def vanishes(store: Inspected, report: Report) -> Iterator[Progress]:
        report.is_complete = False
        report.notes.append("a file went")
        yield Progress("log", 0, 1)

    monkeypatch.setattr(store_verify, "run_verify", vanishes)
    disk = small_store()
    shown = run("verify", ROOT, disk=disk)
    assert shown.exit_code == 1
    assert "result   nothing found, but not all was checked" in shown.stdout
    document = json.loads(run("verify", "--json", ROOT, disk=disk).stdout)
    assert (document["sound"], document["complete"]) == (False, False)


def test_dump_shows_bodies_as_text_or_hex_and_cuts_them(tmp_path: Path) -> None:
    root = str(unpack("clean", tmp_path))
    lines = run("dump", root, "--topic", "S_mix", "--limit", "2", "--body", "text").stdout
    assert lines.splitlines()[2].strip() == "text: mix body 0"
    lines = run(
        "dump", root, "--topic", "S_mix", "--limit", "1", "--body", "hex", "--cut", "3"
    ).stdout
    assert lines.splitlines()[2].strip() == "hex: 6d6978 ... (10 bytes)"
    compressed = [
        record
        for line in run("dump", root, "--json", "--body", "text").stdout.splitlines()
        if (record := json.loads(line))["sys_flag"] & 1
    ]
    assert {record["sys_flag"] & 0x700 for record in compressed} == {0x100, 0x200, 0x300}
    assert all(record["body_plain_size"] > record["body_size"] for record in compressed)


@pytest.mark.parametrize(
    ("plain", "shown", "form"),
    [
        (b"\xff\xfe" * 50, "fffefffefffe", "hex"),
        ("a\u20ac\u20ac".encode(), "a\u20ac", "text"),  # The cut splits the second euro sign.
        (b"abcdef\xff", "abcdef", "text"),
    ],
)
def test_a_body_that_is_cut_is_text_only_where_all_that_is_shown_is(
    plain: bytes, shown: str, form: str
) -> None:
    disk = SimulatedFileSystem()
    store = MessageStore.open(ROOT, SMALL, now_ms=1, filesystem=disk, threads=False)
    store.put("T", 0, plain, b"", Origin(1, 1, HOST))
    store.commit()
    assert store.close(1)
    result = run("dump", "--json", "--body", "text", "--cut", "6", ROOT, disk=disk)
    record = json.loads(result.stdout)
    assert (record["body"], record["body_form"]) == (shown, form)


def test_dump_goes_on_behind_damage_and_exits_with_one() -> None:
    disk = small_store()
    count = len(run("dump", ROOT, disk=disk).stdout.splitlines())
    flip(disk, f"{ROOT}/commitlog/00000000000000000000", 8, 255)
    result = run("dump", ROOT, disk=disk)
    assert len(result.stdout.splitlines()) == count - 1
    assert "no sound record in 0 to" in told(result, 1)


@pytest.mark.parametrize("command", ["stat", "verify", "dump"])
def test_a_reader_that_has_seen_enough_is_told_nothing(command: str, real: str) -> None:
    ours, theirs = os.pipe()
    os.close(ours)  # As when `| head` has ended.
    program = [sys.executable, "-m", "cometmq.admin", "store", command, real, *SHAPE]
    with os.fdopen(theirs, "wb") as nobody:
        ended = subprocess.run(program, stdout=nobody, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_what_the_encoding_of_the_terminal_lacks_is_escaped(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "cometmq.admin", "store", "dump", "--topic", "S_mix"]
    ended = subprocess.run(
        [*program, str(unpack("clean", tmp_path))],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert rb"K1 \u952e1" in ended.stdout


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", [*COMMANDS, ("dump", "--json"), ("stat", "--queues")])
def test_output_that_cannot_be_written_is_not_the_disk_of_the_store(
    command: tuple[str, ...], unbuffered: str, real: str
) -> None:
    program = [sys.executable, "-m", "cometmq.admin", "store", *command, real, *SHAPE]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            program, stdout=full, stderr=subprocess.PIPE, check=False, env=environment
        )
    said = (
        b"Error: the output cannot be written: No space left on device; check where it goes, it"
        b" is not the store\n"
    )
    assert (ended.returncode, ended.stderr) == (1, said)


class Interrupted(SimulatedFileSystem):
    """A disk that interrupts, as by Ctrl-C, before it opens one of the files."""

    left = -1

    def open(self, path: str, *, create: bool = False, read_only: bool = False):  # type: ignore[no-untyped-def]  # As the one that it overrides.
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().open(path, create=create, read_only=read_only)


@pytest.mark.parametrize("command", ["stat", "verify", "dump", "repair --dry-run", "rebuild"])
def test_ctrl_c_anywhere_ends_it_in_one_word_and_leaves_a_store_that_works(command: str) -> None:
    for number in range(1, 1000, 7):
        disk = Interrupted()
        disk._disk = small_store()._disk  # pyright: ignore[reportPrivateUsage]  # Opened by nobody yet.
        before = contents(disk)
        disk.left = number
        result = run(*command.split(), ROOT, *SHAPE, disk=disk)
        if disk.left > 0:
            assert number > 1
            return
        assert told(result, 130).strip() == "Interrupted"
        if command != "rebuild":
            assert contents(disk) == before
        else:
            assert run("rebuild", ROOT, *SHAPE, disk=disk).exit_code == 0
        assert run("verify", ROOT, *SHAPE, disk=disk).exit_code == 0
    raise AssertionError("it never came to its end")


def test_dump_of_an_offset_at_which_no_record_begins_fails() -> None:
    assert "begins at 5" in told(run("dump", ROOT, "--physical", "5", disk=small_store()), 1)


# Writing


def test_rebuild_makes_a_store_sound_and_says_what_it_did(tmp_path: Path) -> None:
    root = str(unpack("clean", tmp_path))
    before = contents(RealFileSystem(), f"{root}/consumequeue")
    flip(RealFileSystem(), f"{root}/consumequeue/S_roll/0/00000000000000006000", 7, 255)
    assert run("verify", root).exit_code == 1
    result = run("rebuild", root)
    assert result.exit_code == 0, result.output
    assert "10 records of topic S_del, which was deleted" in result.stdout
    assert run("verify", root).exit_code == 0
    assert contents(RealFileSystem(), f"{root}/consumequeue") == before


def test_a_rebuild_that_is_refused_leaves_no_lock_in_a_copy(real: str) -> None:
    Path(real, "lock").unlink()
    flip(RealFileSystem(), f"{real}/commitlog/{0:020d}", 31)
    before = contents(RealFileSystem(), real)
    assert "repair" in told(run("rebuild", real), 1)
    assert contents(RealFileSystem(), real) == before


def test_repair_without_yes_says_what_it_would_do_and_does_nothing(real: str) -> None:
    flip(RealFileSystem(), f"{real}/commitlog/00000000000000000000", 8, 255)
    before = fingerprint(real)
    result = run("repair", real)
    assert "would be stepped over: 126 bytes at physical offset 0" in result.stdout
    assert "lost: T queue 0 offset 0" in result.stdout
    assert "run it again with --yes" in told(result, 1)
    assert run("repair", "--dry-run", real).exit_code == 0
    assert "contradict" in told(run("repair", "--dry-run", "--yes", real), 2)
    assert fingerprint(real) == before


def test_repair_with_yes_does_it_and_a_start_accepts_the_store(real: str) -> None:
    flip(RealFileSystem(), f"{real}/commitlog/00000000000000000000", 8, 255)
    result = json.loads(run("repair", "--yes", "--json", real).stdout)
    assert result["done"]
    assert result["stepped_over"][0]["lost"] == [
        {"topic": "T", "queue_id": 0, "queue_offset": 0, "count": 1}
    ]
    assert result["kept"] == [f"{real}/cut/00000000000000000000-0"]
    write_small_store(RealFileSystem(), real)
    assert run("verify", real).exit_code == 0
    assert "nothing to repair" in run("repair", "--yes", real).stdout


def test_repair_says_which_record_it_writes_right_and_keeps_its_message(real: str) -> None:
    before = contents(RealFileSystem(), f"{real}/commitlog")
    dumped = [json.loads(line) for line in run("dump", "--json", real).stdout.splitlines()]
    third = next(each for each in dumped if (each["topic"], each["queue_offset"]) == ("T", 3))
    flip(RealFileSystem(), f"{real}/commitlog/{0:020d}", third["physical_offset"] + 15, 4)
    result = run("repair", "--dry-run", real)
    it = f"T queue {third['queue_id']} offset 3"
    assert f"would be corrected: the record of {third['size']} bytes" in result.stdout
    assert f"is {it} (it says that it is T queue {third['queue_id'] + 4} offset" in result.stdout
    done = json.loads(run("repair", "--yes", "--json", real).stdout)
    (head,) = done["written_right"]
    assert head["is"] == {"topic": "T", "queue_id": third["queue_id"], "queue_offset": 3}
    assert (done["stepped_over"], len(done["kept"])) == ([], 1)
    assert contents(RealFileSystem(), f"{real}/commitlog") == before
    write_small_store(RealFileSystem(), real)
    assert run("verify", real).exit_code == 0


@pytest.mark.parametrize("has_checksums", [True, False])
def test_repair_says_what_a_damage_may_have_ruined_that_nobody_can_check(
    has_checksums: bool,
) -> None:
    """The damage begins in the properties of a record and continues over the next record."""
    config = replace(SMALL, record_crc=has_checksums)
    disk = small_store(config)
    second = offsets_of(run("dump", "--json", ROOT, disk=disk))[1]
    overwrite(disk, f"{ROOT}/commitlog/{0:020d}", second - 3, b"Z" * 20)
    result = run("repair", "--dry-run", ROOT, disk=disk)
    found = json.loads(run("repair", "--dry-run", "--json", ROOT, disk=disk).stdout)
    if has_checksums:
        assert found["stepped_over"][0]["physical_offset"] == 0
        assert "not checked" not in result.stdout
        assert found["doubted_blocks"] == []
        return
    assert found["stepped_over"][0]["physical_offset"] == second
    assert "(properties, times) of other records in 0..4096; look at them" in result.stdout
    assert found["doubted_blocks"] == [{"physical_offset": 0, "size": 4096}]
    assert run("repair", "--yes", ROOT, disk=disk).stdout.count("not checked: ") == 1


def test_a_segment_that_is_missing_in_the_middle_is_mended_as_its_refusal_says(real: str) -> None:
    segment = Path(real) / "commitlog" / f"{4096:020d}"
    segment.unlink()
    for command in (("stat",), ("verify",), ("repair", "--dry-run")):
        said = told(run(*command, real), 1)
        assert f"{segment}: missing, while {8192:020d} after it is there" in said
        assert "`truncate -s 4096`" in said
        assert "`cometmq store repair --dry-run`" in said
    segment.write_bytes(bytes(4096))
    assert "lost: T queue 0 offset 9" in run("repair", "--dry-run", real).stdout
    assert run("repair", "--yes", real).exit_code == 0
    write_small_store(RealFileSystem(), real)
    assert run("verify", real).exit_code == 0


# Bad input


@pytest.mark.parametrize("is_apache", [True, False])
def test_repair_does_what_it_said_it_would_do(is_apache: bool, tmp_path: Path) -> None:
    """The store was shut down, the repair itself has locked it, and its checkpoint is gone.

    If the repair took it for open or killed, it would take the whole log for a torn tail.
    """
    root = str(tmp_path / "store")
    if is_apache:
        root = str(unpack("clean", tmp_path))
        overwrite(RealFileSystem(), f"{root}/checkpoint", 0, bytes(48))
    else:
        write_small_store(RealFileSystem(), root)
        Path(root, "checkpoint").unlink()
    third = json.loads(run("dump", "--limit", "3", "--json", root).stdout.splitlines()[-1])
    flip(RealFileSystem(), f"{root}/commitlog/{0:020d}", third["physical_offset"] + 31)
    said, done = (
        json.loads(run("repair", option, "--json", root).stdout)
        for option in ("--dry-run", "--yes")
    )
    assert len(said["stepped_over"]) == 1
    assert {**done, "done": False, "kept": []} == said


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_not_a_store_is_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear Sir")
    (tmp_path / "empty").mkdir()
    before = fingerprint(str(tmp_path))
    assert "no such folder" in told(run(*command, str(tmp_path / "nowhere")), 1)
    assert "holds empty, letter.txt" in told(run(*command, str(tmp_path)), 1)
    assert "name the folder of a store" in told(run(*command, str(tmp_path / "empty")), 1)
    assert "name the folder of a store" in told(run(*command, str(tmp_path / "letter.txt")), 1)
    assert told(run(*command), 2)
    assert fingerprint(str(tmp_path)) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_with_a_bad_file_is_refused_and_not_changed(command: tuple[str, ...]) -> None:
    for name, size, text in (
        ("commitlog/notes", 5, "move it elsewhere"),
        ("commitlog/00000000000000040960", 4096, "missing"),
        ("commitlog/00000000000000004096", 8192, "restore it from a copy"),
    ):
        disk = small_store()
        file = disk.open(f"{ROOT}/{name}", create=True)
        file.resize(size)
        file.close()
        operations = disk.operations
        message = told(run(*command, ROOT, *SHAPE, disk=disk), 1)
        assert text in message
        assert name.rpartition("/")[2] in message or text == "missing"
        assert disk.operations == operations


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_of_a_newer_format_is_refused(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(checkpoint, "VERSION", 9)
        disk = small_store()
    operations = disk.operations
    message = told(run(*command, ROOT, *SHAPE, disk=disk), 1)
    assert f"version 9, but this program knows up to {checkpoint.VERSION}" in message
    assert disk.operations == operations


def test_repair_takes_a_sealed_block_as_it_is_only_when_asked() -> None:
    disk = small_store()
    flip(disk, f"{ROOT}/commitlog/{0:020d}", 44)
    before = contents(disk)
    result = run("repair", "--yes", ROOT, disk=disk)
    assert (result.exit_code, contents(disk)) == (1, before)
    assert "not accepted: block of 4096 bytes at physical offset 0" in result.stdout
    assert "--accept-blocks" in result.stderr
    assert run("repair", "--accept-blocks", ROOT, disk=disk).exit_code == 1
    assert contents(disk) == before
    result = run("repair", "--accept-blocks", "--yes", "--json", ROOT, disk=disk)
    document = json.loads(result.stdout)
    assert (result.exit_code, document["blocks_accepted"]) == (0, True)
    assert document["wrong_blocks"] == [{"physical_offset": 0, "size": 4096}]
    assert run("verify", ROOT, disk=disk).exit_code == 0


@pytest.mark.parametrize("command", [("rebuild",), ("repair", "--yes")])
def test_writing_to_a_read_only_disk_is_refused(command: tuple[str, ...]) -> None:
    disk = small_store()
    flip(disk, f"{ROOT}/commitlog/00000000000000000000", 8, 255)
    disk.read_only = True
    operations = disk.operations
    message = told(run(*command, ROOT, *SHAPE, disk=disk), 1)
    assert os.strerror(errno.EROFS) in message
    assert "mount it for writing" in message
    assert disk.operations == operations


def test_reading_from_a_read_only_disk_works() -> None:
    disk = small_store()
    disk.read_only = True
    for command in ("stat", "verify", "dump"):
        assert run(command, ROOT, disk=disk).exit_code == 0


class Forbidden(SimulatedFileSystem):
    """A disk that forbids reading the log's files, for tests as root, who may read everything."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False):  # type: ignore[no-untyped-def]  # As the one that it overrides.
        if "/commitlog/" in path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().open(path, create=create, read_only=read_only)


@pytest.mark.parametrize("command", COMMANDS)
def test_files_that_may_not_be_read_are_named(command: tuple[str, ...]) -> None:
    disk = small_store()
    forbidden = Forbidden()
    forbidden._disk = disk._disk  # pyright: ignore[reportPrivateUsage]  # The same disk, seen by another user.
    before = contents(disk)
    message = told(run(*command, ROOT, *SHAPE, disk=forbidden), 1)
    assert f"{ROOT}/commitlog/0000" in message
    assert "run it as the user that the store belongs to" in message
    assert contents(disk) == before


@pytest.mark.parametrize("command", [("rebuild",), ("repair", "--yes"), ("repair", "--dry-run")])
def test_a_store_that_another_process_has_locked_is_refused(command: tuple[str, ...]) -> None:
    disk = small_store(close=False)
    operations = disk.operations
    message = told(run(*command, ROOT, *SHAPE, disk=disk.other_process()), 1)
    assert "open in process 1; stop it first" in message
    assert disk.operations == operations


@pytest.mark.parametrize("command", ["stat", "verify", "dump", "rebuild", "repair"])
def test_help_shows_examples(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"cometmq store {command} " in result.stdout


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [("400", 33, "33 bytes"), ("401", 400, "a name that is not a multiple of 400")],
)
def test_a_wrong_file_of_a_queue_is_a_finding_and_stat_says_so(
    name: str, size: int, said: str
) -> None:
    disk = small_store()
    file = disk.open(f"{ROOT}/consumequeue/T/0/{name:0>20}", create=True)
    file.resize(size)
    file.close()
    assert "queue file: " in run("verify", ROOT, disk=disk).stdout
    assert f"{said}, in a store with queue files of 400" in told(run("stat", ROOT, disk=disk), 1)
    assert SMALL.consume_queue_file_size == 400


# Another folder than that of a store


@pytest.mark.parametrize("command", COMMANDS)
def test_who_names_another_folder_is_told_the_store_that_is_near(
    command: tuple[str, ...], real: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = Path(real).parent
    (parent / "letters").mkdir()
    monkeypatch.chdir(parent)
    for named, meant in (
        (f"{real}/commitlog", real),
        (f"{real}/consumequeue/T/0", real),
        ("store/commitlog/", "store"),
        (".", "./store"),
        (str(parent), real),
    ):
        text = told(run(*command, named), 1)
        assert "holds no commitlog/; name the folder of a store" in text
        assert f"did you mean {meant}?" in text
        assert "new store" not in text
    assert "did you mean" not in told(run(*command, "letters"), 1)
    for name in ("checkpoint", "lock"):  # In a store these are files.
        (parent / "letters" / name).mkdir()
        assert "letters: holds no commitlog/; name the folder" in told(run(*command, "letters"), 1)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_without_the_folder_of_its_log_is_told_what_to_do_and_that_helps(
    command: tuple[str, ...], real: str
) -> None:
    shutil.rmtree(f"{real}/commitlog")
    text = told(run(*command, real), 1)
    assert f"{real}/commitlog: missing, while queues are there: check that its disk" in text
    assert "make an empty folder in its place" in text
    Path(f"{real}/commitlog").mkdir()
    assert "lost: " in run("repair", "--dry-run", real).stdout


def test_dump_reads_times_without_a_zone_as_utc_and_says_when_nothing_matches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        disk = small_store()
        until = run("dump", "--until", "2023-11-14T22:13:21", *SHAPE, ROOT, disk=disk)
        assert "2023-11-14T22:13:20.000Z" in until.stdout
        nothing = run("dump", "--until", "2023-11-14T22:13:20", *SHAPE, ROOT, disk=disk)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "no record matches; topics here: Batches, SCHEDULE_TOPIC_XXXX, T" in nothing.stderr


def test_verify_ends_with_what_to_do_next() -> None:
    disk = small_store()
    flip(disk, f"{ROOT}/consumequeue/T/0/{0:020d}", 3)
    assert f"run `cometmq store rebuild {ROOT}`" in run("verify", ROOT, disk=disk).stdout
    flip(disk, f"{ROOT}/commitlog/{0:020d}", 40)
    assert "restore the files of the log" in run("verify", ROOT, disk=disk).stdout


def test_what_verify_says_to_run_runs_as_it_stands(tmp_path: Path) -> None:
    root = str(tmp_path / "my store")
    write_small_store(RealFileSystem(), root)
    Path(root, f"consumequeue/T/0/{0:020d}").unlink()
    assert f"run `cometmq store rebuild '{root}'`" in run("verify", *SHAPE, root).stdout


def test_alike_findings_do_not_hide_others() -> None:
    disk = small_store()
    for path in list(contents(disk, f"{ROOT}/consumequeue/T/0")):
        disk.remove(path)
    for queue_id in range(2, 60):
        path = f"{ROOT}/consumequeue/T/{queue_id}"
        disk.make_directories(path)
        disk.open(f"{path}/notes.txt", create=True).close()
    text = run("verify", ROOT, disk=disk).stdout
    assert "and 17 more of that kind" in text
    assert text.count("misplaced: ") == 50 - 3
    assert "... and 11 more\n" in text
    assert "78 findings: 20 missing entry, 58 misplaced" in text


@pytest.mark.parametrize("batch", [False, True], ids=["simple", "batch"])
def test_offsets_that_were_given_out_twice_are_to_be_looked_at_and_then_accepted(
    batch: bool,
) -> None:
    disk, topic = given_twice(batch=batch), BATCHES if batch else "T"
    look = f"look at the earlier messages with `cometmq store dump {ROOT} --topic {topic}`"
    assert f"next     {look}, send again what is needed\n" in run("verify", ROOT, disk=disk).stdout
    flip(disk, f"{ROOT}/consumequeue/T/1/{0:020d}", 11, 0x40)
    text = run("verify", ROOT, disk=disk).stdout
    assert f"and stop the broker and run `cometmq store rebuild --accept-restarts {ROOT}`" in text
    assert run("rebuild", "--accept-restarts", ROOT, disk=disk).exit_code == 0
    text = run("verify", ROOT, disk=disk).stdout
    assert text.endswith("send again what is needed\n")


def test_a_damaged_list_of_where_the_queues_end_has_an_advice_of_its_own() -> None:
    disk = small_store()
    flip(disk, f"{ROOT}/{QUEUE_ENDS_NAME}", 20)
    text = run("verify", ROOT, disk=disk).stdout
    assert "1 finding: 1 queue ends" in text
    assert (
        "next     start the broker once all queues are there, as it would not notice a missing one"
    ) in text
    file = disk.open(f"{ROOT}/checkpoint")
    sound = file.read(file.size(), 0)
    file.resize(5)
    assert "1 checkpoint" in run("verify", ROOT, disk=disk).stdout
    file.write(sound, 0)  # Without one the next start rebuilds all queues.
    disk.open(f"{ROOT}/queue_ends.json").resize(0)
    flip(disk, f"{ROOT}/consumequeue/T/0/{0:020d}", 3)
    assert f"run `cometmq store rebuild {ROOT}`" in run("verify", ROOT, disk=disk).stdout


def test_a_rebuild_counts_as_people_do_and_says_which_options_count() -> None:
    disk = SimulatedFileSystem()
    store = MessageStore.open(ROOT, SMALL, now_ms=1, filesystem=disk, threads=False)
    for topic in ("Gone", "T"):
        store.put(topic, 0, b"body", b"", Origin(1, 1, HOST))
        store.commit()
    store.delete_topics(["Gone"])
    assert store.close(2)
    said = run("rebuild", *SHAPE, ROOT, disk=disk).stdout
    assert " 2 records in " in said
    assert " 1, with 1 entry\n" in said
    assert " 1 record of topic Gone, which was deleted\n" in said
    explained = " ".join(run("rebuild", "--help").stdout.split())
    assert "If you give both, all files get that shape, whatever the present ones say." in explained
    assert explained.count("per index file; needed if the files do not tell.") == 2


def test_dump_names_the_queues_of_a_topic_that_has_none_of_that_number() -> None:
    disk = small_store()
    nothing = run("dump", "--topic", "T", "--queue", "99", *SHAPE, ROOT, disk=disk)
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert nothing.stderr.endswith("no record matches; queues of T here: 0, 1\n")
    other = run("dump", "--topic", "t", "--queue", "0", *SHAPE, ROOT, disk=disk)
    assert "no record matches; topics here: Batches, SCHEDULE_TOPIC_XXXX, T\n" in other.stderr


def test_a_topic_that_is_no_text_is_looked_for_as_it_is() -> None:
    nothing = run("dump", "--topic", "\udcff", *SHAPE, ROOT, disk=small_store())
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "no record matches" in nothing.stderr
