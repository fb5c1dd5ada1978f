"""What `stat` tells of a store."""

from __future__ import annotations

from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import ROOT, SMALL, small_store

from cometmq.store.inspection import inspect
from cometmq.store.mending import Plan, carry_out, make_plan
from cometmq.store.summary import Summary, summarize


def summary_of(disk: SimulatedFileSystem) -> Summary:
    return summarize(inspect(disk, ROOT, SMALL))


def test_the_end_of_a_log_that_was_repaired_is_told() -> None:
    disk = small_store()
    before = summary_of(disk)
    disk.open(f"{ROOT}/commitlog/{8192:020d}").resize(500)
    inspected, plan = inspect(disk, ROOT, SMALL), Plan()
    list(make_plan(inspected, plan, cut=False))
    carry_out(inspected, plan, 1)
    after = summary_of(disk)
    assert 8192 < after.end_offset == plan.cut_at
    assert after.first_time == before.first_time
    assert after.last_time is not None
    assert before.last_time is not None
    assert after.last_time <= before.last_time
