"""What the garbage collection after each task finds."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")
pytestmark = pytest.mark.spark

WORKER = """
import gc
from cometmq.pipeline import source, store_source
from cometmq.pipeline.settling import settle
import pyarrow as pa

for task in range(4):
    settle()
    pa.array([1])
    print(len(gc.get_objects()))
    kept = [[] for _ in range(1000)]
"""


def test_what_is_imported_on_the_way_is_collected_in_but_one_task() -> None:
    said = subprocess.run(
        [sys.executable, "-c", WORKER], check=True, capture_output=True, text=True, timeout=60
    )
    first, second, third, fourth = map(int, said.stdout.split())
    assert first > 5000  # Arrow looks for pandas.
    assert second < 1000
    assert 1000 < third < 5000  # What a later task leaves is not kept for ever.
    assert 1000 < fourth < 5000
