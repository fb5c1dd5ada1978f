"""The examples of Spark on the pages do what the pages say."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.programs import as_users_have_it
from tests.store.apache_stores import unpack

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from cometmq.pipeline.jobs import JOBS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

REPOSITORY = Path(__file__).parent.parent.parent


def examples(page: str) -> list[str]:
    """Return the Python examples of a page."""
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


def test_the_example_of_the_readme_is_a_script_that_shows_what_comes(
    rocketmq_session: Cluster, tmp_path: Path
) -> None:
    rocketmq_session.send("orders", b"o-17", tag="paid")
    (code,) = examples("README.md")
    code = code.replace("127.0.0.1:9876", rocketmq_session.nameserver)
    code = code.replace("/tmp/orders", str(tmp_path / "checkpoint"))
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=as_users_have_it(),
        start_new_session=True,
    ) as script:
        assert script.stdout is not None
        assert script.stderr is not None
        shown = iter(script.stdout)
        table = "".join(iter(partial(next, shown, ""), "\n"))
        assert "|paid|" in table.replace(" ", "")
        batch = next((line for line in shown if line.startswith("Batch: 0")), "it ended")
        assert batch == "Batch: 0\n"
        os.killpg(script.pid, signal.SIGINT)  # As a terminal does at a Ctrl-C.
        assert "Traceback" not in script.stderr.read()
    assert script.returncode == 0


def test_the_example_of_a_job_is_a_dry_run(
    rocketmq_session: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rocketmq_session.send("orders", b"o-17")
    code, *_of_tables = examples("docs/pipeline-jobs.md")
    code = code.replace("127.0.0.1:9876", rocketmq_session.nameserver)
    code = code.replace("/data/orders", str(tmp_path / "orders"))
    exec(compile(code, "docs/pipeline-jobs.md", "exec"), {})
    assert re.search(r"'would_read': [1-9]", capfd.readouterr().out)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", JOBS)
def test_each_job_is_a_function_that_is_called_so(name: str) -> None:
    name = name.replace("-", "_")
    module = importlib.import_module(f"cometmq.pipeline.jobs.{name}")
    job = inspect.signature(getattr(module, name), eval_str=False)
    settings = f"{name.removeprefix('archive_').title()}Settings"
    assert [str(each.annotation) for each in job.parameters.values()] == [
        "SparkSession",
        settings,
        "Run | None",
    ]
    assert hasattr(module, settings)


def test_the_examples_of_a_page_run_one_after_the_other(
    spark: SparkSession,
    rocketmq_session: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    page = "docs/pipeline.md"
    rocketmq_session.send("orders", b"o-17", tag="paid")
    shown = examples(page)
    names: dict[str, object] = {"__name__": page}
    for code in shown:
        code = code.replace("127.0.0.1:9876", rocketmq_session.nameserver)
        # The JVM was started elsewhere, and takes relative paths from there.
        code = code.replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
        exec(compile(code, page, "exec"), names)
    assert "paid" in capfd.readouterr().out
    assert rocketmq_session.sent("paid", count=1)
    assert rocketmq_session.sent("copied", count=1)
