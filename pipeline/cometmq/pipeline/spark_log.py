"""How much of Spark's log is shown: known before PySpark is imported, which takes a while."""

from __future__ import annotations

from typing import Final

LOG_VARIABLE: Final = "COMETMQ_SPARK_LOG"
"""The level, in the environment."""
QUIET: Final = "ERROR"
"""The level without it."""
SILENT: Final = "FATAL"
"""The level of jobs: what Spark calls an error and ends the job is told at its end; any other it
has got over."""
