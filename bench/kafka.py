"""A Kafka server to compare Spark's reads and writes with: one node, on the loopback address.

It needs Java 17 and Maven, which downloads the server and Spark's Kafka source (100 MB) from Maven
Central once, into a folder. Kafka writes its log as `cometmq up --flush async` does: nothing waits
for the disk.
"""

from __future__ import annotations

import re
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Final

from bench.servers import Server, free_port

if TYPE_CHECKING:
    from pathlib import Path

SERVER: Final = ("org.apache.kafka", "kafka_2.13", "4.1.0")
SOURCE: Final = ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0")
"""The newest one; there was none for Spark 4.3."""
PARTITIONS: Final = 2
"""The partitions of a topic. Spark makes a task of each; one per core is fastest."""
_IN_SPARK: Final = re.compile(r"(scala|slf4j|hadoop|snappy|lz4|jsr305)")
"""JARs that Spark brings itself, in its own versions."""
_CLUSTER_ID: Final = "Y29tZXRtcS1iZW5jaC0xMg"
_START_SECONDS: Final = 60
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>bench</artifactId><version>1</version>
<dependencies><dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>
</dependency></dependencies></project>
"""
_SETTINGS: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/log
num.partitions={partitions}
offsets.topic.replication.factor=1
"""


def spark_jars(folder: Path) -> str:
    """Return the value of `spark.jars` for the format `kafka`."""
    jars = sorted(_fetched(folder / "source", SOURCE).glob("*.jar"))
    return ",".join(str(each) for each in jars if not _IN_SPARK.match(each.name))


def start_kafka(jars: Path, folder: Path) -> Server:
    """Start a node with an empty log."""
    classes = f"{_fetched(jars / 'server', SERVER)}/*"
    folder.mkdir(parents=True)
    port, controller = free_port(), free_port()
    settings = folder / "server.properties"
    settings.write_text(
        _SETTINGS.format(port=port, controller=controller, folder=folder, partitions=PARTITIONS)
    )
    java = ["java", "-Xmx1g", "-cp", classes]
    with (folder / "server.log").open("w") as log:
        formatting = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings)]
        subprocess.run([*java, *formatting], check=True, stdout=log, stderr=log)
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
    server = Server("Kafka", port, 0, process.pid, (process.pid,))
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as asking:
            if not asking.connect_ex(("127.0.0.1", port)):
                return server
        time.sleep(0.2)
    if process.poll() is None:
        server.stop()
    raise RuntimeError(f"Kafka did not start: {(folder / 'server.log').read_text()}")


def _fetched(folder: Path, what: tuple[str, str, str]) -> Path:
    """Return the folder with an artifact and its dependencies; Maven downloads missing ones."""
    done = folder / f"{what[1]}-{what[2]}.jar"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pom = folder / "pom.xml"
        pom.write_text(_POM.format(*what))
        copying = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        subprocess.run(
            ["mvn", "-q", "-B", "-f", str(pom), *copying, "-DincludeScope=runtime"], check=True
        )
    return folder
