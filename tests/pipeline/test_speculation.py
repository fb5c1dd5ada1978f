"""A second attempt of a slow task, which Spark starts beside the first (speculation).

It needs executors on hosts with different names: Spark starts none on the host of the first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.programs import as_users_have_it
from tests.pipeline.workers import standalone

if TYPE_CHECKING:
    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("default")]

ROWS = 4_000
WRITES = ("batch", "stream")
DELIVERIES = ("idempotent", "at-least-once")

# Two attempts of one task send at the same time, after rows that the first has sent alone.
DRIVER = """
import os, sys, time
from cometmq.client import SyncClient
from cometmq.pipeline import session

master, nameserver, folder, rows = sys.argv[1:]
spark = session(master=master, app_name="speculation", **{
    "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1", "spark.locality.wait": "0",
    "spark.speculation": "true", "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms", "spark.speculation.efficiency.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
    "spark.eventLog.dir": f"file://{folder}/events"})
tracker = spark.sparkContext._jsc.sc().statusTracker()
deadline = time.monotonic() + 60
while len(tracker.getExecutorInfos()) < 3 and time.monotonic() < deadline:  # One is the driver.
    time.sleep(0.1)
given = {"nameserver": nameserver}

def slowed(frame, name, columns):
    # Each attempt of the second task waits until the other has sent some of its rows.
    def sent(attempt):
        try:
            with open(f"{folder}/{name}-attempt-{attempt}") as note:
                return len(note.readlines())
        except FileNotFoundError:
            return 0
    def wait_for(attempt):
        deadline = time.monotonic() + 60
        while sent(attempt) < 10 and time.monotonic() < deadline:
            time.sleep(0.05)
    def slowly(batches):
        from pyspark import TaskContext
        context = TaskContext.get()
        number, attempt = context.partitionId(), context.attemptNumber()
        if number == 1 and attempt:
            wait_for(0)
        for count, batch in enumerate(batches, 1):
            yield batch
            if number == 1:
                with open(f"{folder}/{name}-attempt-{attempt}", "a") as note:
                    note.write(f"{batch.num_rows}\\n")
                if not attempt and count == 10:
                    wait_for(1)
                time.sleep(0.02 if attempt else 0.2)
    return frame.mapInArrow(slowly, columns)

def told(name):
    read = spark.read.format("cometmq").options(topic=name, columns="body", **given).load()
    print(name, read.count(), read.distinct().count())

body = "concat(cast(id AS string), repeat('x', 1000)) AS body"
ids = spark.range(0, int(rows), 1, 2).selectExpr(body, "id")
for delivery in ("idempotent", "at-least-once"):
    name = f"batch-{delivery}"
    frame = slowed(ids, name, "body string, id long")
    more = {"dedupKey": "id"} if delivery == "idempotent" else {}
    frame = frame if more else frame.drop("id")
    to = {"topic": name, "delivery": delivery, "batchBytes": "64k", **more, **given}
    frame.write.format("cometmq").mode("append").options(**to).save()
    told(name)

with SyncClient(nameserver) as client:
    client.admin.create_topic("slow-source", queues=2)
    for queue in client.queues("slow-source"):
        for first in range(0, int(rows) // 2, 100):
            bodies = [b"%d/%d " % (queue.id, first + n) + b"x" * 1000 for n in range(100)]
            client.send_batch("slow-source", bodies, queue=queue)
columns = "topic string, broker string, queue_id int, queue_offset long, store_time timestamp"
columns += ", body binary"
for delivery in ("idempotent", "at-least-once"):
    name = f"stream-{delivery}"
    options = {"topic": "slow-source", "startingOffsets": "earliest", "inOrder": "true", **given}
    options |= {"minPartitions": "2"}
    read = spark.readStream.format("cometmq").schema(columns).options(**options).load()
    read = slowed(read, name, columns)
    read = read.selectExpr("*", f"'{name}' AS to_topic")
    to = {"delivery": delivery, "batchBytes": "64k", "inOrder": "true", **given}
    to["checkpointLocation"] = f"{folder}/checkpoint-{name}"
    query = read.writeStream.format("cometmq").options(**to).trigger(availableNow=True).start()
    query.awaitTermination()
    told(name)
spark.stop()
"""


def of_second_attempts(folder: Path) -> list[str]:
    """Return how second attempts ended, according to Spark's event log."""
    ends: list[str] = []
    for path in folder.rglob("*"):
        for line in path.read_text().splitlines() if path.is_file() else ():
            if '"Event":"SparkListenerTaskEnd"' in line and '"Speculative":true' in line:
                event: dict[str, Any] = json.loads(line)
                ends.append(event["Task End Reason"]["Reason"])
    return ends


def sent_by(folder: Path, name: str, attempt: int) -> int:
    """Return how many rows an attempt of the slow task gave to the sink."""
    return sum(map(int, (folder / f"{name}-attempt-{attempt}").read_text().split()))


def test_a_second_attempt_beside_the_first_doubles_nothing_that_is_stored_once(
    rocketmq_session: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "driver.py").write_text(DRIVER)
    arguments = [rocketmq_session.nameserver, str(tmp_path), str(ROWS)]
    with standalone(tmp_path, "127.0.0.1", "127.0.0.2") as master:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(tmp_path / "driver.py"), master, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            env={
                **as_users_have_it(),
                "PYTHONPATH": os.pathsep.join(sys.path),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )
    assert done.returncode == 0, done.stderr[-3000:]
    said = {
        name: (int(rows), int(distinct))
        for name, rows, distinct in map(str.split, done.stdout.splitlines())
    }
    assert of_second_attempts(tmp_path / "events").count("Success") >= len(said)
    for write in WRITES:
        for delivery in DELIVERIES:
            first, second = (sent_by(tmp_path, f"{write}-{delivery}", each) for each in (0, 1))
            assert first >= 1_000
            assert second == ROWS // 2
        assert said[f"{write}-idempotent"] == (ROWS, ROWS)
        rows, distinct = said[f"{write}-at-least-once"]
        assert rows > distinct == ROWS
