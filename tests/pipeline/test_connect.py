"""Sessions of Spark Connect: a client whose Spark is in another process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")
pytest.importorskip("grpc", reason="pyspark[connect] is not installed")

from cometmq.admin.program import program
from cometmq.pipeline import session
from cometmq.pipeline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

SERVER = """
import sys
from cometmq.pipeline import session
session(master="local[2]", **{
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": sys.argv[1],
    "spark.sql.shuffle.partitions": 1,
})
print("up", flush=True)
sys.stdin.read()
"""

CLIENT = """
import pathlib, sys
from cometmq.pipeline import session, until_stopped
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive

nameserver, checkpoints = sys.argv[1], pathlib.Path(sys.argv[2])
spark = session()
print("one", type(spark).__module__, session() is spark)
cluster = {"nameserver": nameserver}

def read(topic, **more):
    return spark.read.format("cometmq").options(topic=topic, **cluster, **more).load()

def lines(query):
    until_stopped(query)
    return read("connected-out").count()

print("read", read("connected", filterPushdown="true").where("tag = 't'").count())

def stream():
    frame = spark.readStream.format("cometmq").options(
        topic="connected", startingOffsets="earliest", **cluster).load()
    writer = frame.writeStream.trigger(availableNow=True)
    return writer.option("checkpointLocation", str(checkpoints / "stream"))

def copied():
    return lines(stream().format("cometmq").options(topic="connected-out", **cluster).start())

print("stream", copied())
for done in (checkpoints / "stream" / "commits").iterdir():  # As after a kill.
    done.unlink()
print("again", copied())

rows = read("connected").write.format("cometmq").mode("append")
rows = rows.options(topic="connected-out", delivery="idempotent", **cluster)
try:
    rows.save()
except Exception as error:
    print("unnamed", "sinkId: is required" in str(error))
for _ in range(2):
    rows.option("sinkId", "a name").save()
print("named", read("connected-out").count())
try:
    archive(spark, ArchiveSettings(topic="connected", to=str(checkpoints / "to"), **cluster))
except OptionError as error:
    print("job", error)
"""


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server of Spark Connect."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def test_a_client_reads_and_writes_as_a_session_of_its_own_would(
    rocketmq_session: Cluster, server: str, tmp_path: Path
) -> None:
    for n in range(20):
        rocketmq_session.send("connected", b"%d" % n, tag="tu"[n % 2])
    rocketmq_session.admin.create_topic("connected-out")
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, rocketmq_session.nameserver, str(tmp_path)],
        env={**os.environ, "SPARK_REMOTE": server},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    *said, job = done.stdout.splitlines() or [""]
    assert said == [
        "one pyspark.sql.connect.session True",
        "read 10",
        "stream 20",
        "again 20",
        "unnamed True",
        "named 40",
    ], done.stderr
    assert job.startswith("job spark: a session of Spark Connect has no JVM here, but jobs need")
    assert "Warning" not in done.stderr


def test_a_job_of_the_command_line_says_that_it_needs_a_spark_of_its_own(
    rocketmq_session: Cluster, tmp_path: Path
) -> None:
    rocketmq_session.send("connected-not", b"0")
    to = ["--topic", "connected-not", "--to", str(tmp_path), "-n", rocketmq_session.nameserver]
    given = ["pipeline", "archive", *to, "--conf", "spark.api.mode=connect"]
    result = CliRunner().invoke(program, given)
    assert result.exit_code == 2
    assert "would be a session of Spark Connect" in result.output


def test_a_master_and_a_server_of_spark_connect_are_not_both_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with pytest.raises(
        OptionError, match=r"a master and .by SPARK_REMOTE or spark.remote. a server .* are given"
    ):
        session(master="local[2]")
