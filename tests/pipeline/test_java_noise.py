"""What Spark's processes say about closed sockets and the like is left out; real errors are not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from cometmq.pipeline.java_noise import Sieve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.spark

HEADER = "Traceback (most recent call last):\n"
DAEMON = """\
  File "/opt/spark/python/lib/pyspark.zip/pyspark/daemon.py", line 229, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/spark/python/lib/pyspark.zip/pyspark/daemon.py", line 85, in worker
    outfile.flush()
"""
BROKEN = "BrokenPipeError: [Errno 32] Broken pipe\n"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer\n"
MEANWHILE = "\nDuring handling of the above exception, another exception occurred:\n\n"
IDLE = HEADER + DAEMON + BROKEN
FLUSHING = f"PySpark daemon failed to flush the output to the worker process:\n{IDLE}\n"
READING = """\
  File "/spark/pyspark/sql/streaming/python_streaming_source_runner.py", line 211, in main
    func_id = read_int(infile)
              ^^^^^^^^^^^^^^^^
  File "/opt/spark/python/pyspark/serializers.py", line 597, in read_int
    length = stream.read(4)
             ^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/socket.py", line 706, in readinto
    return self._sock.recv_into(b)
           ^^^^^^^^^^^^^^^^^^^^^^^
"""
WRITING = """\
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "<frozen runpy>", line 88, in _run_code
  File "/spark/pyspark/sql/streaming/python_streaming_source_runner.py", line 260, in <module>
    main(sock_file, sock_file)
"""
STOPPED = HEADER + READING + RESET + MEANWHILE + HEADER + WRITING + BROKEN
LATE = f"""\
{HEADER}  File "/opt/spark/pyspark/util.py", line 822, in local_connect_and_auth
FileNotFoundError: [Errno 2] No such file or directory
{MEANWHILE}{HEADER}  File "<frozen runpy>", line 88, in _run_code
  File "/spark/pyspark/sql/streaming/python_streaming_source_runner.py", line 313, in <module>
  File "/usr/lib/python3.11/contextlib.py", line 137, in __enter__
    return next(self.gen)
           ^^^^^^^^^^^^^^
  File "/opt/spark/pyspark/util.py", line 828, in local_connect_and_auth
pyspark.errors.exceptions.base.PySparkRuntimeError: [CANNOT_OPEN_SOCKET] Can not open socket: tried\
 to connect to /tmp/.2638.sock, but an error occurred: [Errno 2] No such file or directory.
"""
REAL = f"""\
{HEADER}{DAEMON}  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 3414, in main
    process()
  File "/me/orders.py", line 7, in amount
    return 1 / 0
           ~~^~~
ZeroDivisionError: division by zero
"""


def shown(*chunks: str) -> str:
    """Return what the sieve passes on of the chunks, once Java has started."""
    sieve = Sieve()
    sieve.holds_half_lines = False
    return (b"".join([sieve.sift(each.encode()) for each in chunks]) + sieve.end()).decode()


@pytest.mark.parametrize("noise", [IDLE, FLUSHING, STOPPED, LATE, IDLE + STOPPED + FLUSHING])
def test_known_tracebacks_are_left_out_as_a_whole(noise: str) -> None:
    assert shown(noise) == ""
    assert shown(*noise) == ""
    assert shown(f"before\n{noise}after\n") == "before\nafter\n"
    assert shown(*f"50 %\rbefore\n{noise}after") == "50 %\rbefore\nafter"


@pytest.mark.parametrize("noise", [IDLE, FLUSHING, STOPPED])
def test_one_that_is_cut_off_by_the_end_is_left_out(noise: str) -> None:
    for length in range(len(noise)):
        assert shown(noise[:length]).strip() == "", length


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder short enough for the paths of sockets, which have at most 108 bytes."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        yield Path(name)


def test_what_a_daemon_of_pyspark_tells_of_closed_sockets_is_left_out(short_path: Path) -> None:
    runner = "pyspark.sql.streaming.python_streaming_source_runner"
    settings = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": "."}
    daemon = subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", runner],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=short_path,
        env={**os.environ, **settings, "SPARK_REUSE_WORKER": "1"},
    )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    assert daemon.stderr is not None
    path = daemon.stdout.read(int.from_bytes(daemon.stdout.read(4), "big")).decode()
    told = b""
    for flags in (0, socket.MSG_PEEK):  # If all that came is read, the end is no reset.
        with socket.socket(socket.AF_UNIX) as worker:
            worker.connect(str(short_path / path))
            worker.recv(4, flags)
        while told.count(b"Broken pipe") < 3:
            told += os.read(daemon.stderr.fileno(), 1 << 16)
        told = told.replace(b"Broken pipe", b"broken pipe")
    told += daemon.communicate()[1]
    told = told.replace(b"broken pipe", b"Broken pipe")
    assert told.count(b"Traceback") > 5
    assert b"EOFError" in told
    assert b"ConnectionResetError" in told
    assert shown(told.decode()) == ""


def test_those_of_processes_that_write_at_once_are_left_out() -> None:
    first, second = DAEMON.splitlines(keepends=True), READING.splitlines(keepends=True)
    mixed = [HEADER, *first[:3], HEADER, *second[:3], *first[3:], BROKEN, *second[3:], RESET]
    assert shown(*mixed) == ""


@pytest.mark.parametrize(
    "real",
    [
        REAL,
        # The same way through PySpark, but another error.
        HEADER + DAEMON + "MemoryError\n",
        HEADER + DAEMON + "OSError: [Errno 28] No space left on device\n",
        # A closed socket, but somebody else's.
        f'{HEADER}  File "/me/cometmq/pipeline/wire.py", line 3, in read\n    x()\n{RESET}',
        HEADER + DAEMON + f'  File "/me/orders.py", line 7, in amount\n    x()\n{BROKEN}',
        HEADER + '  File "/a/lib/socket.py", line 7, in send\n    x()\n' + BROKEN,
        # Chained to a traceback that would be noise by itself, and the other way round.
        STOPPED + MEANWHILE + REAL,
        REAL + MEANWHILE + IDLE,
        "    indented\n\n    lines\n",
        f"org.apache.spark.api.python.PythonException: {IDLE}",
        "Traceback (most recent call last): of mine\n",
    ],
)
def test_what_is_real_is_shown_as_it_is(real: str) -> None:
    assert shown(real) == real
    assert shown(*real) == real
    assert shown(IDLE + real) in (real, IDLE + real)
    assert shown(real + "\n" + IDLE + "end").startswith(real + "\n")


def test_a_real_one_among_noise_is_shown_as_a_whole() -> None:
    lines = REAL.splitlines(keepends=True)
    mixed = [*lines[:3], HEADER, *DAEMON.splitlines(keepends=True), BROKEN, *lines[3:]]
    assert [line for line in lines if line not in shown(*mixed)] == []


def test_what_follows_noise_is_shown_though_it_is_indented_or_empty() -> None:
    assert shown(f"{IDLE}    said\n") == "    said\n"
    assert shown(f"{IDLE}\n\nsaid\n") == "\n\nsaid\n"
    assert shown(f"{FLUSHING}\nsaid\n") == "\nsaid\n"


IVY = """\
:: loading settings :: url = jar:file:/spark/ivy-2.5.3.jar!/org/ivysettings.xml
Ivy Default Cache set to: /me/.ivy2.5.2/cache
The jars for the packages stored in: /me/.ivy2.5.2/jars
https://maven.here/repo added as a remote repository with the name: repo-1
io.delta#delta-spark_4.2_2.13 added as a dependency
:: resolving dependencies :: org.apache.spark#spark-submit-parent-4f2b;1.0
\tconfs: [default]
\tfound io.delta#delta-spark_4.2_2.13;4.4.0 in central
downloading https://repo1.maven.org/maven2/io/delta/delta-spark_4.2_2.13-4.4.0.jar ...
\t[SUCCESSFUL ] io.delta#delta-spark_4.2_2.13;4.4.0!delta-spark_4.2_2.13.jar (812ms)
:: resolution report :: resolve 100ms :: artifacts dl 5ms
\t:: modules in use:
\tio.delta#delta-spark_4.2_2.13;4.4.0 from central in [default]
\t:: evicted modules:
\tio.delta#delta-storage;4.3.0 by [io.delta#delta-storage;4.4.0] in [default]
\t---------------------------------------------------------------------
\t|                  |            modules            ||   artifacts   |
\t|       conf       | number| search|dwnlded|evicted|| number|dwnlded|
\t---------------------------------------------------------------------
\t|      default     |   3   |   0   |   0   |   0   ||   3   |   0   |
\t---------------------------------------------------------------------
:: retrieving :: org.apache.spark#spark-submit-parent-4f2b
\tconfs: [default]
\t3 artifacts copied, 0 already retrieved (9123kB/41ms)
"""
MISSING = """\

:: problems summary ::
:::: WARNINGS
\t\tmodule not found: io.delta#nothing;4.4.0
\t==== central: tried
\t  https://repo1.maven.org/maven2/io/delta/nothing-4.4.0.pom
\t\t:: io.delta#nothing;4.4.0: not found
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: not found]
"""
HOSTNAME = """\
26/11/26 02:00:01 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.1.1; using
26/11/26 02:00:01 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
"""
AMAZON = """\
SLF4J: Failed to load class "org.slf4j.impl.StaticLoggerBinder".
SLF4J: Defaulting to no-operation (NOP) logger implementation
SLF4J: See http://www.slf4j.org/codes.html#StaticLoggerBinder for further details.
"""


@pytest.mark.parametrize("is_started", [False, True])
def test_what_jars_that_are_there_say_and_spark_of_its_host_is_left_out(is_started: bool) -> None:
    sieve = Sieve()
    sieve.holds_half_lines = not is_started
    assert sieve.sift((HOSTNAME + IVY + AMAZON).encode()) + sieve.end() == b""


def test_jars_that_are_not_there_are_told() -> None:
    assert shown(IVY + MISSING) == MISSING


def test_nothing_else_waits() -> None:
    sieve = Sieve()
    sieve.holds_half_lines = False
    for half in ("50 %", " done", "\r", "Trace", "d\n", HEADER + DAEMON, "Memory"):
        kept = half in ("Trace", HEADER + DAEMON)
        assert bool(sieve.sift(half.encode())) is not kept
