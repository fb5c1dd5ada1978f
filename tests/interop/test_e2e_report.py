"""How the reports of Apache's black-box suite are read; `make e2e` runs the suite itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.interop.e2e import AGAIN, FAILED, PASSED, SKIPPED, compared, outcomes

if TYPE_CHECKING:
    from pathlib import Path

REPORT = """<testsuite>
<testcase name="good" classname="a.b.T"/>
<testcase name="flaky" classname="a.b.T"><flakyFailure/></testcase>
<testcase name="bad" classname="a.b.T"><failure/><rerunFailure/></testcase>
<testcase name="broken" classname="a.b.T"><error/></testcase>
<testcase name="off" classname="a.b.T"><skipped/></testcase>
</testsuite>"""


def test_reports_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "target" / "surefire-reports"
    folder.mkdir(parents=True)
    (folder / "TEST-a.b.T.xml").write_text(REPORT)
    assert outcomes(tmp_path) == {
        "T.good": PASSED, "T.flaky": AGAIN, "T.bad": FAILED, "T.broken": FAILED, "T.off": SKIPPED,
    }  # fmt: skip


def test_only_what_passes_on_apaches_must_pass_here() -> None:
    good = {"apache": {"a": PASSED, "b": FAILED}, "cometmq": {"a": AGAIN, "b": FAILED}}
    assert compared(good) == (
        ["a: apache passed, cometmq passed when run again", "b: apache failed, cometmq failed"],
        True,
    )
    assert not compared({"apache": {"a": PASSED}, "cometmq": {"a": FAILED}})[1]
    assert not compared({"apache": {"a": PASSED}, "cometmq": {}})[1]
    assert compared({"apache": {"a": PASSED}, "cometmq": {"a": PASSED}}) == ([], True)
