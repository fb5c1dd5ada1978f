"""Running a job in a Spark session that is started for it and ended after it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.doctor import INSTALL
from cometmq.pipeline.errors import OptionError, PipelineError, SparkStartError
from cometmq.pipeline.jobs.hidden_modules import processes_for
from cometmq.pipeline.jobs.spark_errors import first_line, ours
from cometmq.pipeline.jobs.stopping import heeded, interrupts_kept
from cometmq.pipeline.spark_log import LOG_VARIABLE, SILENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.pipeline.jobs.job import Job, Run
    from cometmq.pipeline.jobs.report import Report

_WAREHOUSE: Final = "spark.sql.warehouse.dir"
"""The folder for tables, of which jobs make none; by itself Spark makes one where the job runs."""
_REPEATING: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark's loggers that repeat a raised error as JSON."""


def run_in_session(
    job: Job, settings: Any, run: Run, master: str, conf: Mapping[str, str], spark_log: str
) -> Report:
    """Start Spark, run a job, end Spark, and return the job's report."""
    if find_spec("pyspark") is None:
        raise OptionError(f"Spark is not installed: {INSTALL}")
    os.environ[LOG_VARIABLE] = spark_log.upper()
    with run.starting():  # Importing it alone takes a while.
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.logger import PySparkLogger

        from cometmq.pipeline.connecting import is_of_connect
        from cometmq.pipeline.java_ended import (
            how_java_ended,
            say_nothing_of_its_end,
            stop_unless_java_ended,
        )
        from cometmq.pipeline.spark_session import open_session

        for name in _REPEATING:
            PySparkLogger.getLogger(name).disabled = True
        if is_of_connect(conf):
            raise OptionError(
                "spark: by SPARK_REMOTE, SPARK_API_MODE or --conf this would be a session of Spark"
                " Connect, which has no JVM here, but jobs need one: leave them out, and give"
                " --master"
            )
        given = {
            "master": master,
            "app_name": f"cometmq {job.name}",
            _WAREHOUSE: Path(gettempdir()).as_uri(),
            **conf,
        }
        try:
            with interrupts_kept(), processes_for(settings):
                spark = open_session(given, apart=True)
        except (PySparkException, Py4JError) as error:
            raise SparkStartError(f"Spark cannot be started: {_of_start(error)}") from error
    if spark_log.upper() == SILENT:
        say_nothing_of_its_end()
    try:
        with heeded(run, spark, has_batches=job.goes_on):
            return job.function(spark, settings, run)
    except (PySparkException, Py4JError, PipelineError, OSError) as error:
        if run.is_stopping and not job.goes_on:
            run.report_so_far(job.name).stopped = True
            raise PipelineError("stopped before it was done") from error
        if ended := how_java_ended():
            raise PipelineError(ended) from error
        if isinstance(error, (PipelineError, OSError)):
            raise
        raise ours(error) from error
    finally:
        stop_unless_java_ended(spark)


def _of_start(error: Exception) -> str:
    """Return why Spark cannot be started."""
    if "JAVA_GATEWAY_EXITED" in str(error):
        return "Java ended as soon as it began; what it printed above, if anything, says why"
    return first_line(ours(error))
