"""Read and write topics, and read store directories, with Spark; only PySpark is needed.

::

    from cometmq.pipeline import session

    spark = session()
    reading = spark.read.format("cometmq").option("nameserver", "127.0.0.1:9876")
    reading.option("topic", "orders").load().groupBy("tag").count().show()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.pipeline.spark_session import register as register, session as session
    from cometmq.pipeline.waiting import until_stopped as until_stopped

__all__ = ["register", "session", "until_stopped"]


def __getattr__(name: str) -> object:
    """Import PySpark only on demand: programs that only read records do not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "until_stopped":
        from cometmq.pipeline.waiting import until_stopped

        return until_stopped
    try:
        from cometmq.pipeline import spark_session
    except ModuleNotFoundError as error:
        from cometmq.pipeline.doctor import INSTALL

        raise ModuleNotFoundError(f"{error.msg}: {INSTALL}", name=error.name) from None

    return getattr(spark_session, name)
