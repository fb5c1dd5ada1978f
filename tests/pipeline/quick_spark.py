"""Starts of Spark that take half as long, because they leave out what tests do not need.

* Java's optimizing compiler: within a few minutes it takes more processor time than it saves.
* Loading Spark's 15,000 classes one by one: all starts but the first take them from an archive,
  made once for all processes of the tests.
* The zip with a second copy of PySpark: each Python process would compile it again, while the copy
  in `site-packages` is compiled already.
* The Java code that Spark generates and compiles for each query, a quarter of a test's time: a few
  rows need none. `make spark-full` has it as users do, by `COMETMQ_SPARK_COMPILES=1`.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_INTERPRETED: Final = """
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
"""

_LEARN: Final = """
import sys
from cometmq.pipeline import session

spark, folder = session(master="local[1]"), sys.argv[1]
spark.createDataFrame([(1, "a"), (2, "b")], "n int, text string").write.parquet(f"{folder}/in")
frame = spark.readStream.schema("n int, text string").parquet(f"{folder}/in")
stream = frame.writeStream.option("checkpointLocation", f"{folder}/at").trigger(availableNow=True)
stream.format("parquet").start(f"{folder}/out").awaitTermination()
spark.read.parquet(f"{folder}/out").groupBy("text").count().collect()
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()
java.wait()  # Which writes the archive now.
"""


def environment(shared: Path) -> dict[str, str]:
    """Return the environment for such starts; `shared` is a folder of all test processes."""
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        return {}
    home, archive = shared / "spark-home", shared / "spark-classes.jsa"
    with Path(shared, "spark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            home.mkdir()
            for part in ("bin", "jars", "sbin"):
                (home / part).symlink_to(Path(pyspark.origin).parent / part)
            if os.environ.get("COMETMQ_SPARK_COMPILES") != "1":
                (home / "conf").mkdir()
                (home / "conf" / "spark-defaults.conf").write_text(_INTERPRETED)
            _make_archive(home, archive)
    options = JAVA_OPTIONS
    if archive.exists():
        options += f" -XX:SharedArchiveFile={archive}"
    return {"SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": options}


def _make_archive(home: Path, archive: Path) -> None:
    """Let one start archive the classes that it loads; it may fail: no test runs without Java."""
    scratch = home.parent / "spark-learns"
    scratch.mkdir()
    subprocess.run(
        [sys.executable, "-c", _LEARN, str(scratch)],
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_SUBMIT_OPTS": f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={archive}",
        },
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=900,
    )
