"""A reader for a stream that is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader

if TYPE_CHECKING:
    from cometmq.pipeline.errors import OptionError


class Refused(DataSourceStreamReader):
    """A stream that is refused: it raises the reason when Spark first calls it.

    If the reason were raised earlier, while the reader is made, Spark 4.3 would hide it behind an
    error of its own, as it stops a reader that it does not have.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:  # noqa: N802  # Spark's name
        """Say why."""
        raise self._error

    def latestOffset(self, *_: object) -> NoReturn:  # noqa: N802  # Spark's name
        """Say why."""
        raise self._error

    def getDefaultReadLimit(self) -> NoReturn:  # noqa: N802  # Spark's name
        """Say why."""
        raise self._error

    def partitions(self, *_: object) -> NoReturn:
        """Say why."""
        raise self._error

    def read(self, *_: object) -> NoReturn:
        """Say why."""
        raise self._error
