"""A standalone Spark cluster: a master, and workers with one core each."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from tests.pipeline.kills import free_port
from tests.pipeline.programs import as_users_have_it

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def standalone(folder: Path, *hosts: str) -> Generator[str]:
    """Start a master, and a worker on each host; the workers' folders are `work-0`, `work-1`, …"""
    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    environment = {**as_users_have_it(), "SPARK_LOCAL_IP": "127.0.0.1"}
    url = f"spark://127.0.0.1:{free_port()}"
    deploy = "org.apache.spark.deploy"
    port = url.rpartition(":")[2]
    listening = ["--host", "127.0.0.1", "--port", port, "--webui-port", str(free_port())]
    commands = [[launcher, f"{deploy}.master.Master", *listening]]
    for number, host in enumerate(hosts):
        work = ["--work-dir", str(folder / f"work-{number}")]
        options = ["--host", host, "--cores", "1", "--memory", "600m", *work]
        commands.append([launcher, f"{deploy}.worker.Worker", *options, url])
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            log = stack.enter_context((folder / f"{number}.log").open("w"))
            process = stack.enter_context(
                subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            )
            stack.callback(process.terminate)
        yield url
