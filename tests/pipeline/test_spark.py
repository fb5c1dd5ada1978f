"""Spark as `make install-spark` leaves it: the ground that the pipeline will stand on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
print("rows", spark.range(10).where("id > 6").count())
spark.stop()
"""


@pytest.mark.spark
def test_a_local_session_counts_rows(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNT],
        cwd=tmp_path,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "rows 3" in done.stdout, done.stdout + done.stderr
