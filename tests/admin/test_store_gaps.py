"""`cometmq store` on a log without some messages of a queue, and on records that fill its gaps."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner, Result
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import (
    ROOT,
    SMALL,
    damage,
    open_small_store,
    overwrite,
    small_store,
)
from tests.store.test_wrong_heads import CONFIG, LOG, change, two_queues

from cometmq.admin.program import program
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.queues.consume_queue import ENTRY_SIZE


def run(*arguments: str, disk: SimulatedFileSystem) -> Result:
    return CliRunner().invoke(program, ["store", *arguments, ROOT], obj=disk)


def next_step(disk: SimulatedFileSystem) -> str:
    found = re.search(r"^next +(.*)$", run("verify", disk=disk).stdout, re.MULTILINE)
    assert found is not None
    return found[1]


def test_for_a_record_that_is_not_what_it_says_verify_names_repair_and_not_rebuild() -> None:
    disk = two_queues()
    change(disk, 10, "a number far ahead")
    assert "repair --dry-run" in next_step(disk)
    assert "rebuild" not in next_step(disk)
    refused = run("rebuild", disk=disk)
    assert refused.exit_code == 1
    assert "T queue 0 offset 1099511627776, but the entry of T queue 0 offset 5" in refused.stderr
    assert "bytes at physical offset 980 is T queue 0 offset 5 (" in (
        run("repair", "--yes", disk=disk).stdout
    )


def test_a_gap_is_accepted_by_name_alone_and_then_verify_sends_nobody_to_a_rebuild() -> None:
    disk = two_queues()
    queue = f"{ROOT}/consumequeue/T/0/{0:020d}"
    for number in (10, 12):
        change(disk, number, "a queue that is not there")
    overwrite(disk, queue, 0, bytes(15 * ENTRY_SIZE))  # No entry is left to tell.
    assert "restore the log from a copy" in next_step(disk)
    assert f"rebuild --accept-gaps {ROOT}` puts all messages before these" in next_step(disk)
    refused = run("rebuild", disk=disk)
    assert refused.exit_code == 1
    assert "says that it is message 7 of T/0, but the log has none from 5 to 6" in refused.stderr
    assert "repair --dry-run" in refused.stderr
    done = run("rebuild", "--accept-gaps", disk=disk)
    assert done.exit_code == 0
    assert "queue T/0 begins after a gap; what is before it is out of reach" in done.stdout
    text = run("verify", disk=disk).stdout
    assert ": 5 out of reach\n" in text
    assert "dump /s --topic T`, send again what is needed" in next_step(disk)
    assert "rebuild" not in next_step(disk)


def test_what_a_repair_put_in_the_place_of_damage_is_of_no_deleted_topic() -> None:
    disk = small_store()
    half = next(each for each in LogCheck(inspect(disk, ROOT, SMALL)) if each.body == b"half")
    damage(disk, half)  # It is in no queue.
    assert run("repair", "--yes", disk=disk).exit_code == 0
    store = open_small_store(disk)
    assert store.close(2)
    text = run("rebuild", disk=disk).stdout
    assert "COMETMQ" not in text
    assert "1 record that a repair put in place of damaged bytes\n" in text


@pytest.mark.parametrize("close", [True, False])
def test_zeros_where_the_log_was_safe_are_given_up_with_a_word(close: bool) -> None:
    disk = two_queues(close=close)
    last = list(LogCheck(inspect(disk, ROOT, CONFIG)))[-3:]
    start, end = last[0].physical_offset, last[-1].physical_offset + last[-1].size
    overwrite(disk, LOG, start, bytes(end - start))
    will = run("repair", "--dry-run", disk=disk).stdout
    assert will.startswith(
        f"would be given up: {end - start} B of the log that is now zeros: it was safe on the"
        f" disk up to physical offset {end}, and ends at {start} now; "
    )
    assert ("  lost: T queue 1 offset 13 to 14; the next message gets 13\n" in will) is close
    assert ("may have been in the log only, and those are not named" in will) is not close
    plan = json.loads(run("repair", "--dry-run", "--json", disk=disk).stdout)
    assert (plan["safe_to"], plan["blank_size"]) == (end, end - start)
    assert run("repair", "--yes", disk=disk).stdout.startswith("given up: ")
    assert "nothing to repair" in run("repair", "--yes", disk=disk).stdout


@pytest.mark.parametrize("close", [True, False])
def test_of_a_killed_store_a_step_says_what_it_may_hide_and_nothing_of_other_offsets(
    close: bool,
) -> None:
    disk = two_queues(close=close)
    damage(disk, list(LogCheck(inspect(disk, ROOT, CONFIG)))[3])
    text = run("repair", "--dry-run", disk=disk).stdout
    assert text.startswith("would be stepped over: ")
    assert (
        "may have held the last message of a queue, which nothing else records" in text
    ) is not close
    assert "its last messages" not in text
    assert "as well" not in text


def test_a_torn_tail_is_no_loss_of_what_was_safe() -> None:
    disk = two_queues(close=False)
    end = inspect(disk, ROOT, CONFIG).start.synced_offset
    assert end is not None
    overwrite(disk, LOG, end, b"torn")
    text = run("repair", "--dry-run", disk=disk).stdout
    assert text.startswith("would be cut off: 4 B, the torn tail")
    assert "in the log only" not in text
    assert "given up" not in text
