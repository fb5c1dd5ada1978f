"""What Java writes as it starts: only noise is left out. And signals as it starts and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from cometmq.pipeline.java_process import Stderr, signals_held

pytestmark = pytest.mark.spark

NOISE = """\
WARNING: Using incubator modules: jdk.incubator.vector
WARNING: package sun.security.action not in java.base
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
26/11/24 11:58:08 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform
"""
WORDS = """\
Error occurred during initialization of VM
26/11/24 11:58:09 WARN Utils: Service 'SparkUI' could not bind on port 4040.
no newline at the end"""


def passed_on(*chunks: str, starts_after: int = -1) -> str:
    """Return what is shown of Java's chunks; Java has started after chunk `starts_after`."""
    read, write = os.pipe()
    shown, to = os.pipe()
    stderr = Stderr(read, to)
    for number, chunk in enumerate(chunks):
        os.write(write, chunk.encode())
        if number == starts_after:
            os.write(write, b"started\n")
            while b"started" not in os.read(shown, 1 << 16):
                pass
            stderr.started()
    os.close(write)
    stderr.wait()
    os.close(to)
    with os.fdopen(shown, newline="") as file:
        return file.read()


def test_the_noise_of_a_start_is_left_out_and_an_error_is_not() -> None:
    assert passed_on(NOISE + WORDS) == WORDS


def test_a_line_may_come_in_pieces() -> None:
    assert passed_on(*(NOISE + WORDS)) == WORDS


def test_once_it_has_started_half_a_line_is_passed_on_at_once() -> None:
    assert passed_on(NOISE, "50 %\r", WORDS, starts_after=0) == "50 %\r" + WORDS


def test_nobody_who_reads_it_does_not_hold_up_java() -> None:
    read, write = os.pipe()
    shown, to = os.pipe()
    stderr = Stderr(read, to)
    os.close(shown)
    with os.fdopen(write, "wb") as file:
        file.write(b"x" * (1 << 18))  # More than a pipe holds.
    stderr.wait()
    os.close(to)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_a_signal_raises_waits_until_java_is_known(number: int) -> None:
    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    passed: list[int] = []

    def start() -> None:
        with signals_held():
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # Part of the first, as with `timeout`.
            passed.append(number)

    before = signal.signal(number, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert passed == [number]
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)


def test_a_signal_that_nothing_is_done_about_here_is_left_to_the_system() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with signals_held():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


ENDING = """
import atexit, os, subprocess, sys
from cometmq.pipeline.java_process import Stderr, _end

read, write = os.pipe()
java = subprocess.Popen(
    ["sh", "-c", "read _; echo ending >&2; exec sleep 1"], stdin=subprocess.PIPE, stderr=write
)
os.close(write)
atexit.register(_end, java, Stderr(read))
sys.exit(3)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_java_ends_changes_no_status_and_says_nothing(number: int) -> None:
    """Java takes seconds to end; a Ctrl-C used to give a traceback, a SIGTERM another status."""
    process = subprocess.Popen([sys.executable, "-c", ENDING], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "ending\n"
    process.send_signal(number)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 3


SCRIPT = """
from cometmq.pipeline import session

spark = session(master="local[1]")
spark.udf.register("longer", lambda text: text + "!")
print(spark.sql("SELECT longer('ended')").first()[0])
"""


@pytest.mark.slow
def test_a_script_that_leaves_its_session_open_ends_in_silence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout, done.stderr) == ("ended!\n", "")


NAMES = """
import subprocess
from cometmq.pipeline.java import find_java
from cometmq.pipeline.spark_session import _prepare_environment

_prepare_environment("local")
subprocess.run([find_java().program, "-XshowSettings:properties", "-version"], check=True)
"""


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX"}, {"LC_CTYPE": "C"}])
def test_java_takes_names_of_files_as_python_does_in_any_locale(locale: dict[str, str]) -> None:
    """In the locale C, Java made a folder called `?` of `ä`, where nobody looked for it."""
    plain = {name: value for name, value in os.environ.items() if name[:3] not in ("LAN", "LC_")}
    done = subprocess.run(
        [sys.executable, "-c", NAMES],
        env=plain | locale,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "sun.jnu.encoding = UTF-8\n" in done.stderr
