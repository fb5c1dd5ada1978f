"""How much of Spark's log is shown; known without importing PySpark, which takes a while."""

from __future__ import annotations

from typing import Final

LOG_VARIABLE: Final = "COMETMQ_SPARK_LOG"
"""The environment variable with the level."""
QUIET: Final = "ERROR"
"""The default level."""
SILENT: Final = "FATAL"
"""The level for jobs: if one of Spark's errors ends a job, the job reports it at its end; from any
other, Spark has recovered."""
