"""Executors that have nothing of CometMQ but the wheel that the session sends them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

import pyspark
from tests.pipeline.programs import as_users_have_it
from tests.pipeline.workers import standalone

from cometmq.pipeline.shipping import write_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

ROOTS = [str(Path(root).resolve()) for root in ("proto", "broker", "nameserver", "client")]
ROOTS.append(str(Path("pipeline").resolve()))

PYTHON = (sys.executable, "-W", "ignore")

# Whatever an executor imports must come from the wheel, numpy, pyarrow and PySpark.
POOR = """
import os, sys
sys.path[:] = [each for each in sys.path if not os.path.isdir(os.path.join(each, "cometmq"))]
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in repr(each).lower()]
for name in ("msgspec", "msgpack", "anyio", "click", "rich", "trio", "orjson"):
    sys.modules[name] = None
"""

# In the workers' folders, not in the driver's.
POOR_PYTHON = """#!/bin/sh
case "$PWD" in */work-[01]/*) PYTHONPATH="$PYTHONPATH:{poor}"; export PYTHONPATH;; esac
exec "{python}" "$@"
"""

OUR_SESSION = """
import sys
from cometmq.pipeline import session
master, nameserver = sys.argv[1:]
given = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1"}
first = session(master=master, app_name="standalone", **given)
spark = session(master=master, app_name="standalone", **given)  # As each thread that writes does.
assert spark is first
"""
THEIR_SESSION = """
import sys
from pyspark.sql import SparkSession
nameserver = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
"""
DRIVER = """
rows = spark.range(20000).selectExpr("cast(id AS string) AS body", "id").repartition(4)
given = {"nameserver": nameserver}
rows.write.format("cometmq").mode("append").options(topic="far", dedupKey="id", **given).save()
read = spark.read.format("cometmq").options(topic="far", minPartitions=4, **given).load()
print("rows", read.select("body").distinct().count(), "tasks", read.rdd.getNumPartitions())
def where(_):
    import os, cometmq.pipeline.source as source
    return [(os.getcwd(), source.__file__)]
places = spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).distinct().collect()
print("workers", len({place for place, _ in places}), "wheel", all(".whl" in f for _, f in places))
spark.stop()
"""

MISTAKEN = """
import sys
from cometmq.pipeline import session
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
spark = session()
nameserver, how, to = sys.argv[1:]
if how == "read":
    spark.read.format("cometmq").options(nameserver=nameserver, topik="orders").load()
archive(spark, ArchiveSettings(nameserver=nameserver, topic="not-there", to=to))
"""

SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with standalone(tmp_path, "127.0.0.1", "127.0.0.1") as url:
        yield url


def run(command: list[str], executors_python: str) -> subprocess.CompletedProcess[str]:
    """Run a program that starts Spark; the caller looks at its status."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={
            **as_users_have_it(),
            "PYTHONPATH": os.pathsep.join(ROOTS),
            "PYSPARK_PYTHON": executors_python,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )


def run_driver(tmp_path: Path, session: str, command: list[str], *arguments: str) -> str:
    """Run the driver, with executors that have nothing but the wheel; return what it prints."""
    (tmp_path / "driver.py").write_text(session + DRIVER)
    (tmp_path / "sitecustomize.py").write_text(POOR)
    python = tmp_path / "python"
    python.write_text(POOR_PYTHON.format(poor=tmp_path, python=sys.executable))
    python.chmod(0o755)
    began = time.monotonic()
    done = run([*command, str(tmp_path / "driver.py"), *arguments], str(python))
    return f"{done.stdout}{done.stderr[-3000:]}{time.monotonic() - began:.0f} s"


def test_a_cluster_whose_executors_have_only_the_wheel(
    master: str, rocketmq_session: Cluster, tmp_path: Path
) -> None:
    said = run_driver(tmp_path, OUR_SESSION, [*PYTHON], master, rocketmq_session.nameserver)
    assert "rows 20000 tasks 4" in said, said
    assert "workers 2 wheel True" in said


def test_a_program_of_spark_submit_that_takes_the_wheel_along(
    master: str, rocketmq_session: Cluster, tmp_path: Path
) -> None:
    """The way to do it by hand, as in `docs/pipeline.md`."""
    wheel = write_wheel(str(tmp_path))
    command = [SUBMIT, "--master", master, "--py-files", wheel]
    for setting in (
        f"spark.executorEnv.PYTHONPATH={Path(wheel).name}",
        "spark.executor.memory=512m",
        "spark.driver.host=127.0.0.1",
        "spark.driver.bindAddress=127.0.0.1",
        "spark.ui.enabled=false",
    ):
        command += ["--conf", setting]
    said = run_driver(tmp_path, THEIR_SESSION, command, rocketmq_session.nameserver)
    assert "rows 20000 tasks 4" in said, said
    assert "workers 2 wheel True" in said


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("read", "topik: no such option; did you mean topic?"),
        ("job", "topic: not-there: no such topic on "),
    ],
)
def test_what_is_wrong_is_in_the_last_lines_of_spark_submit(
    rocketmq_session: Cluster, tmp_path: Path, how: str, said: str
) -> None:
    """On its stdout, where `spark-submit` puts a program's stderr."""
    (tmp_path / "mistaken.py").write_text(MISTAKEN)
    command = [SUBMIT, "--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    command += ["--py-files", write_wheel(str(tmp_path)), str(tmp_path / "mistaken.py")]
    command += [rocketmq_session.nameserver, how, str(tmp_path / "to")]
    done = run(command, sys.executable)
    assert done.returncode == 1, done.stderr[-3000:]
    last = [line for line in done.stdout.splitlines() if line.strip()][-2:]
    assert any(f"cometmq.pipeline.errors.OptionError: {said}" in line for line in last), last
    assert "\tat " not in done.stdout + done.stderr


def test_the_wheel_has_an_entry_for_each_folder(tmp_path: Path) -> None:
    """Without them Python 3.11 finds no namespace package in it."""
    with ZipFile(write_wheel(str(tmp_path))) as wheel:
        names = set(wheel.namelist())
    assert {"cometmq/", "cometmq/pipeline/", "cometmq/pipeline/records/"} <= names
    # Spark finds both formats by these.
    assert {"pyspark_cometmq/__init__.py", "pyspark_cometmq_store/__init__.py"} <= names
    assert not any(name.startswith("cometmq/proto") for name in names)


def test_a_session_that_was_made_otherwise_finds_both_formats() -> None:
    """Spark imports packages named `pyspark_…`, and takes one format from each."""
    names = [each.name for each in iter_modules() if each.name.startswith("pyspark_cometmq")]
    assert {import_module(name).DefaultSource.name() for name in names} == {
        "cometmq",
        "cometmq-store",
    }


def test_what_goes_to_executors_imports_nothing_else() -> None:
    script = (
        "import sys; before = set(sys.modules)\n"
        "import cometmq.pipeline.source, cometmq.pipeline.stream_source, cometmq.pipeline.sink\n"
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "ours = {name for name in sys.modules if name.startswith('cometmq.')}\n"
        "print(sorted(tops & {'msgspec', 'msgpack', 'anyio', 'click', 'rich', 'pandas'}))\n"
        "print(sorted(name for name in ours if not name.startswith('cometmq.pipeline')))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]
