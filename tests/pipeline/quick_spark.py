"""Starts of Spark that take half as long: what a test has nothing of is left out of each.

Java's better compiler, which takes more of the processor than it saves in some minutes; the reading
of Spark's 15,000 classes, which all but the first start take from an archive, made once for all
processes of the tests; the zip that PySpark is in a second time: its processes would compile that
anew, each of them, while the same lies compiled in `site-packages`; and the Java that Spark writes
and compiles for each query, a quarter of the time of a test: it reckons some rows without as well.
`make spark-full` has that as users have it, by `COMETMQ_SPARK_COMPILES=1`.
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
    """Return what starts Spark so; `shared` is a folder of all processes of these tests."""
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
    """Have one start write down the classes that it read; without Java there are no tests."""
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
