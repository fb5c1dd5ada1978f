"""Config files: Apache's text both ways, and never a moment without a whole table."""

from __future__ import annotations

import contextlib
import errno
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.archives import unpack
from tests.crash.disk import KillAt, Killed, Moment, Operation, SimulatedFileSystem

from cometmq.proto import fastjson
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.errors import StoreFormatError
from cometmq.store.tables import (
    CONSUMER_FILTERS,
    CONSUMER_OFFSETS,
    CONSUMER_ORDER_INFO,
    DELAY_OFFSETS,
    SECTIONS,
    SUBSCRIPTION_GROUPS,
    TIMER_METRICS,
    TOPICS,
    TRANSACTION_METRICS,
    Loaded,
    Table,
    TableFile,
    encode,
    encode_line,
)

VECTORS = Path(__file__).parent.parent / "vectors" / "store"
FOLDER = "/store/config"


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("apache")
    unpack(VECTORS / "clean.tar.xz", folder)
    return folder / "store" / "config"


def table_of(name: str, tree: dict[str, Any]) -> Table:
    table = Table(SECTIONS[name])
    for member, value in tree.items():
        if member in SECTIONS[name]:
            for key, entry in value.items():
                table.put(member, key, entry)
        else:
            table.set_member(member, value)
    return table


def text_of(table: Table) -> bytes:
    return b"".join(table.snapshot().chunks())


def lines_of(text: bytes) -> list[bytes]:
    return sorted(line.rstrip(b",") for line in text.split(b"\n"))


@pytest.mark.parametrize("name", [DELAY_OFFSETS, CONSUMER_FILTERS, CONSUMER_ORDER_INFO])
def test_a_table_is_written_byte_for_byte_as_apache_wrote_it(apache: Path, name: str) -> None:
    text = (apache / name).read_bytes()
    tree = TableFile(RealFileSystem(), str(apache), name).load().tree
    assert text_of(table_of(name, tree)) == text
    assert encode(tree) == text


@pytest.mark.parametrize("name", [TOPICS, SUBSCRIPTION_GROUPS, CONSUMER_OFFSETS])
def test_a_table_whose_order_is_javas_is_written_with_the_same_lines_sorted(
    apache: Path, name: str
) -> None:
    text = (apache / name).read_bytes()
    tree = fastjson.loads(text)
    if name == CONSUMER_OFFSETS:
        tree.pop("pullOffsetTable")
        ours = text_of(table_of(name, tree))
        assert fastjson.loads(ours) == tree | {"pullOffsetTable": {}}
        assert b"\t\t\t0:71,\n\t\t\t1:41\n" in ours
    else:
        ours = text_of(table_of(name, tree))
        assert lines_of(ours) == lines_of(text)
        assert fastjson.loads(ours) == tree


@pytest.mark.parametrize("name", [TIMER_METRICS, TRANSACTION_METRICS])
def test_metrics_are_written_on_one_line_as_apache_writes_them(apache: Path, name: str) -> None:
    text = (apache / name).read_bytes()
    assert encode_line(fastjson.loads(text)) == text


def test_only_what_is_put_again_changes_and_what_is_discarded_goes() -> None:
    table = Table(["offsetTable"])
    assert text_of(table) == b'{\n\t"offsetTable":{}\n}'
    table.set_member("dataVersion", {"counter": 1, "gone": None})
    for key in ("b@g", "a@g", "c@g", "a@g"):
        table.put("offsetTable", key, {0: 1, 10: 3, 2: 2})
    table.put("offsetTable", "a@g", {0: 9})
    table.discard("offsetTable", "b@g")
    table.discard("offsetTable", "none")
    before = table.snapshot()
    table.put("offsetTable", "z@g", {})
    assert b"".join(before.chunks()) == (
        b'{\n\t"dataVersion":{\n\t\t"counter":1\n\t},\n\t"offsetTable":{'
        b'\n\t\t"a@g":{\n\t\t\t0:9\n\t\t},'
        b'\n\t\t"c@g":{\n\t\t\t0:1,\n\t\t\t2:2,\n\t\t\t10:3\n\t\t}\n\t}\n}'
    )
    assert b'"z@g":{}' in text_of(table)


def test_a_large_table_reads_back_as_it_was() -> None:
    table = Table(["topicConfigTable"])
    tree = {f"t{number}": {"perm": number, "order": False} for number in range(2345)}
    for name, config in tree.items():
        table.put("topicConfigTable", name, config)
    assert fastjson.loads(text_of(table)) == {"topicConfigTable": tree}


def test_saving_ten_thousand_topics_holds_the_caller_up_for_little() -> None:
    table = Table(["topicConfigTable"])
    for number in range(10_000):
        table.put("topicConfigTable", f"topic-{number}", {"perm": 6, "readQueueNums": 8})
    took = min(_time_of(table.snapshot) for _ in range(20))
    chunks = table.snapshot().chunks()
    longest = sorted(_time_of(lambda: next(chunks, b"")) for _ in range(40))[20]
    yardstick = min(_time_of(lambda: encode_line({"a": [1, 2, 3]})) for _ in range(200))
    assert took < 100 * yardstick
    assert longest < 100 * yardstick


def _time_of(action: Any) -> int:
    start = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - start


def new_file(disk: SimulatedFileSystem) -> TableFile:
    return TableFile(disk, FOLDER, TOPICS)


def save(file: TableFile, number: int, *, padding: int = 3000) -> None:
    table = Table(["topicConfigTable"])
    table.put("topicConfigTable", "T", {"perm": number, "padding": "x" * padding})
    file.write(table.snapshot().chunks())


def saved(disk: SimulatedFileSystem) -> int | None:
    tree = new_file(disk).load().tree
    return tree["topicConfigTable"]["T"]["perm"] if tree else None


def put_text(disk: SimulatedFileSystem, name: str, text: bytes) -> None:
    disk.make_directories(FOLDER)
    file = disk.open(f"{FOLDER}/{name}", create=True)
    file.resize(0)
    file.write(text, 0)
    file.close()


def test_the_table_before_is_kept_as_the_backup() -> None:
    disk = SimulatedFileSystem()
    file = new_file(disk)
    assert file.load() == Loaded({}, from_backup=False, is_found=False)
    for number in (1, 2, 3):
        save(file, number)
    assert saved(disk) == 3
    disk.remove(f"{FOLDER}/{TOPICS}")
    assert saved(disk) == 2
    assert [entry.name for entry in disk.list(FOLDER)] == [f"{TOPICS}.bak"]


GOOD = b'{"topicConfigTable":{"T":{"perm":7}}}'


@pytest.mark.parametrize("bad", [None, b"", bytes(700), b'{"topicConfigTable":', b"[]", b"\xff"])
def test_a_damaged_file_yields_to_its_backup_and_never_becomes_it(bad: bytes | None) -> None:
    disk = SimulatedFileSystem()
    put_text(disk, f"{TOPICS}.bak", GOOD)
    if bad is not None:
        put_text(disk, TOPICS, bad)
    assert new_file(disk).load().from_backup
    assert saved(disk) == 7
    save(new_file(disk), 8)
    assert saved(disk) == 8
    disk.remove(f"{FOLDER}/{TOPICS}")
    assert saved(disk) == 7


def test_damage_without_a_good_backup_is_an_error_that_names_the_file_and_nothing_is_changed() -> (
    None
):
    disk = SimulatedFileSystem()
    put_text(disk, TOPICS, b'{"topicConfigTable":')
    before = disk.operations
    with pytest.raises(StoreFormatError, match=f"{FOLDER}/{TOPICS}: .*restore it from a copy"):
        new_file(disk).load()
    assert disk.operations == before


def test_what_is_damaged_does_not_become_the_backup_of_who_saves_without_a_look_at_it() -> None:
    disk = SimulatedFileSystem()
    put_text(disk, TOPICS, b'{"topicConfigTable":')
    save(new_file(disk), 8)
    assert saved(disk) == 8
    assert not disk.exists(f"{FOLDER}/{TOPICS}.bak")


def test_names_without_content_are_an_empty_table() -> None:
    disk = SimulatedFileSystem()
    put_text(disk, TOPICS, b"")
    put_text(disk, f"{TOPICS}.bak", bytes(40))
    problem = "it has no content"
    assert new_file(disk).load() == Loaded({}, from_backup=False, is_found=False, problem=problem)


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("saves_before", [0, 1, 2])
def test_after_a_power_cut_at_any_operation_the_table_is_the_old_or_the_new_one(
    moment: Moment, saves_before: int
) -> None:
    number = 0
    outcomes: set[int | None] = set()
    while True:
        number += 1
        disk = SimulatedFileSystem()
        disk.make_directories(FOLDER)
        disk.sync_directory("/store")
        file = new_file(disk)
        for before in range(saves_before):
            save(file, before)
        kill = disk.hook = KillAt(disk.operations + number, moment)
        with contextlib.suppress(Killed):
            save(file, saves_before)
        old = saves_before - 1 if saves_before else None
        for seed in range(40):
            found = saved(disk.power_cut(Random(seed)))
            assert found in {old, saves_before}, f"operation {number}, seed {seed}"
            outcomes.add(found)
            if kill.hit is None:
                assert found == saves_before
        assert saved(disk.kill()) in {old, saves_before}
        if kill.hit is None:
            break
    assert outcomes == {saves_before - 1 if saves_before else None, saves_before}
    assert number > 5


def test_a_save_that_the_disk_refuses_leaves_the_old_table_and_the_next_one_works() -> None:
    failing = ("create", "write", "sync", "rename", "sync_directory")
    for verb in failing:
        for skipped in range(2):
            disk = SimulatedFileSystem()
            file = new_file(disk)
            save(file, 1)
            disk.hook = _FailOnce(verb, skipped)
            with contextlib.suppress(OSError):
                save(file, 2)
            disk.hook = None
            assert saved(disk) in {1, 2}
            save(file, 3)
            assert {saved(disk.power_cut(Random(seed))) for seed in range(40)} == {3}


class _FailOnce:
    def __init__(self, verb: str, skipped: int) -> None:
        self._verb = verb
        self._left = skipped

    def __call__(self, operation: Operation) -> None:
        if operation.verb == self._verb and operation.moment is Moment.BEFORE:
            self._left -= 1
            if self._left == -1:
                raise OSError(errno.EIO, "injected")


def test_a_full_disk_leaves_the_old_table() -> None:
    disk = SimulatedFileSystem(total=3 * 4096)
    file = new_file(disk)
    save(file, 1)
    with pytest.raises(OSError, match="No space left"):
        save(file, 2, padding=20_000)
    assert saved(disk) == 1
    disk.total = 1 << 20
    save(file, 3, padding=20_000)
    assert saved(disk) == 3


def test_nothing_of_a_longer_table_that_a_killed_save_left_behind_gets_into_the_next() -> None:
    disk = SimulatedFileSystem()
    put_text(disk, f"{TOPICS}.tmp", b"{" + b"x" * 9000)
    save(new_file(disk), 1, padding=3)
    assert saved(disk) == 1
    assert disk.open(f"{FOLDER}/{TOPICS}").size() < 200
