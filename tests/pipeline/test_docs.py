"""What the pages show of Spark is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.store.apache_stores import unpack

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

REPOSITORY = Path(__file__).parent.parent.parent


def examples(page: str) -> list[str]:
    """What a page shows of Spark."""
    text = (REPOSITORY / page).read_text()
    shown = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert shown
    return shown


def test_the_example_of_a_store_runs(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (code,) = examples("docs/pipeline-store.md")
    code = code.replace("/var/lib/cometmq", str(unpack("clean", tmp_path)))
    exec(compile(code, "docs/pipeline-store.md", "exec"), {"spark": spark})
    assert "queue_id" in capfd.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "docs/pipeline.md"])
def test_the_examples_of_a_page_run_one_after_the_other(
    spark: SparkSession,
    rocketmq_session: Cluster,
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    rocketmq_session.send("orders", b"o-17", tag="paid")
    shown = examples(page)
    names: dict[str, object] = {"__name__": page}
    for code in shown:
        code = code.replace("127.0.0.1:9876", rocketmq_session.nameserver)
        # The JVM was started elsewhere, and a relative path is its.
        code = code.replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
        exec(compile(code, page, "exec"), names)
    assert "paid" in capfd.readouterr().out
    if page == "docs/pipeline.md":
        assert rocketmq_session.sent("paid", count=1)
        assert rocketmq_session.sent("copied", count=1)
