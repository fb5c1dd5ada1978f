"""A Spark session with the settings on which the rest of the pipeline relies."""

from __future__ import annotations

import os
import sys
from locale import CODESET, nl_langinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from cometmq.pipeline.columns import SELDOM_TWICE
from cometmq.pipeline.connecting import builder_of_connect, is_of_connect, jvm_of
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.java import find_java
from cometmq.pipeline.java_process import start_java
from cometmq.pipeline.options import PUSHDOWN
from cometmq.pipeline.shipping import temporary_wheel
from cometmq.pipeline.source import CometMQSource
from cometmq.pipeline.spark_log import LOG_VARIABLE, QUIET
from cometmq.pipeline.spark_settings import REMOTE, refuse_shortened
from cometmq.pipeline.store_source import StoreSource

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_EXECUTOR_PATH: Final = "spark.executorEnv.PYTHONPATH"

_ARROW_UNCHECKED: Final = (
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
"""Arrow's switches to skip checks of bounds and nulls for every value that Spark takes."""

DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Needed by the option `filterPushdown`.
    PUSHDOWN: "true",
    # A task costs a third less than over TCP, a small micro-batch half as much.
    "spark.python.unix.domain.socket.enabled": "true",
    # Needed by transformWithState, and keeps state off the heap.
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    # Safe, as Spark checks for null before it takes a value, and the data was made by Arrow in a
    # worker. These come before a user's own `extraJavaOptions`, which stay.
    "spark.driver.defaultJavaOptions": _ARROW_UNCHECKED,
    "spark.executor.defaultJavaOptions": _ARROW_UNCHECKED,
    # Parquet would look up each value among all earlier ones, until it finds too few duplicates.
    **{f"spark.hadoop.parquet.enable.dictionary#{name}": "false" for name in SELDOM_TWICE},
}
"""The default settings; the number of shuffle partitions and the master also have defaults."""


def session(**conf: object) -> SparkSession:
    """Return a Spark session that knows the formats `cometmq` and `cometmq-store`.

    ::

        spark = session(master="local[2]", app_name="orders")
        spark = session(**{"spark.sql.shuffle.partitions": 8})

    `conf` are Spark's settings, plus `master` and `app_name`; an underscore in a name stands for a
    dot (`spark_driver_memory="4g"`). The rest comes from `DEFAULTS` and, without a `master`,
    `local[*]` on the loopback address. The executors of a cluster are sent what they need
    (`shipping`). A `JavaError` says what to do if there is no Java. An existing session is reused,
    with these settings as far as it accepts them; each thread that writes should call this once. If
    Spark would return a Spark Connect session, as with `SPARK_REMOTE`, that is returned; jobs do
    not run in it.
    """
    return open_session(conf)


def open_session(conf: Mapping[str, object], *, apart: bool = False) -> SparkSession:
    """Return a session as `session` does; with `apart`, shielded from signals to our group."""
    given = {_setting(name): _text(value) for name, value in conf.items()}
    if is_of_connect(given):
        return _connected(given)
    master = given.setdefault("spark.master", os.environ.get("SPARK_MASTER", "local[*]"))
    given.setdefault("spark.app.name", "cometmq")
    settings = {**DEFAULTS, **_by_cores(master), **given}
    _prepare_environment(master)
    wheel = "" if master.startswith("local") else temporary_wheel()
    if wheel:
        # Spark sends files to executors and tells RDDs where they are, but not data sources. So the
        # wheel is found by its name in an executor's working folder.
        paths = (Path(wheel).name, settings.get(_EXECUTOR_PATH, ""))
        settings[_EXECUTOR_PATH] = ":".join(filter(None, paths))
    stderr = start_java(settings, apart=apart)
    spark = _made(settings, SparkSession.builder)
    spark.sparkContext.setLogLevel(os.environ.get(LOG_VARIABLE, QUIET))
    if stderr is not None:
        stderr.started()
    if wheel:
        spark.sparkContext.addPyFile(wheel)
    register(spark)
    make_active(spark)
    return spark


def _connected(given: Mapping[str, str]) -> SparkSession:
    """Return a Spark Connect session, with the settings that a client may set."""
    address = given.get("spark.remote", os.environ.get(REMOTE, ""))
    is_elsewhere = is_remote() or address.startswith("sc:")
    if not is_elsewhere:  # Its server is started here.
        _prepare_environment("local")
    defaults = {
        name: value
        for name, value in DEFAULTS.items()
        if not is_elsewhere or name.startswith("spark.sql.")
    }
    spark = _made({**defaults, **given}, builder_of_connect())
    register(spark)
    return spark


def _made(settings: Mapping[str, str], builder: Any) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def register(spark: SparkSession) -> None:
    """Register the formats in a session that does not find them by itself."""
    spark.dataSource.register(CometMQSource)
    spark.dataSource.register(StoreSource)


def make_active(spark: SparkSession) -> None:
    """Have this thread find the formats for writing.

    Spark looks them up in the thread's active session, and a new thread has none.
    """
    jvm_of(spark).SparkSession.setActiveSession(spark._jsparkSession)


def _setting(name: str) -> str:
    if name == "master":
        return "spark.master"
    if name == "app_name":
        return "spark.app.name"
    if "." in name:
        refuse_shortened(name, "session: ")
        return name
    if not name.startswith("spark_"):  # Spark would keep it and ignore it.
        raise OptionError(
            f"session: {name}: is not a setting of Spark, such as spark_driver_memory, nor master"
            " or app_name"
        )
    return name.replace("_", ".")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _by_cores(master: str) -> dict[str, str]:
    cores = os.cpu_count() or 1
    if not master.startswith("local"):
        return {"spark.sql.shuffle.partitions": str(2 * cores)}
    count = master.partition("[")[2].partition("]")[0].partition(",")[0]
    if count.isdigit():
        cores = int(count)
    return {
        # The default of 200 is for a cluster: a small job would spend nearly all its time on it.
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }


def _prepare_environment(master: str) -> None:
    """Set the environment for a JVM that is to be started."""
    java = find_java()
    if java.home:
        os.environ["JAVA_HOME"] = java.home
    # Otherwise the first python3 on the path would be used, which may not have our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # In the locale C, Python takes names of files as UTF-8, and Java would write `?` for letters.
    if sys.getfilesystemencoding() == "utf-8" and nl_langinfo(CODESET).upper() != "UTF-8":
        os.environ["LC_ALL"] = "C.UTF-8"
