"""What an archive may be beside files of Parquet with manifests: a table of some format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.delta_commits import is_delta
from cometmq.pipeline.jobs.delta_tables import DeltaTable
from cometmq.pipeline.jobs.iceberg_catalogs import is_iceberg
from cometmq.pipeline.jobs.iceberg_tables import IcebergTable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.folders import Folder

PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"
KINDS: Final = {
    PARQUET: "a Parquet archive",
    DELTA: "a Delta table",
    ICEBERG: "an Iceberg table",
}
_TABLES: Final[Mapping[str, Callable[[Folder], bool]]] = {DELTA: is_delta, ICEBERG: is_iceberg}


class Table(Protocol):
    """A table in a folder."""

    def exists(self) -> bool:
        """Whether it has been created; load it if so."""
        ...

    @property
    def identity(self) -> str:
        """What distinguishes it from another table made at its place."""
        ...

    def files(self) -> Mapping[str, range | None]:
        """Return its files, each with the numbers of its batches, if it says which these are."""
        ...

    def read(self, spark: SparkSession, paths: Collection[str]) -> DataFrame:
        """Return the rows of some of its files."""
        ...


def format_of(folder: Folder) -> str:
    """Return the format of the table in a folder; '' without one."""
    return next((name for name, is_there in _TABLES.items() if is_there(folder)), "")


def table_in(folder: Folder) -> Table | None:
    """Return the table in a folder, or `None`; refuse one that was never written to."""
    found = format_of(folder)
    if not found:
        return None
    table: Table = DeltaTable(folder) if found == DELTA else IcebergTable(folder)
    if not table.exists():
        raise OptionError(f"from: {folder.path} is not an archive, or is empty")
    return table


def refuse_table(folder: Folder) -> None:
    """Refuse a table for a job that only knows Parquet."""
    if found := format_of(folder):
        raise OptionError(
            f"archive: {folder.path} is {KINDS[found]}: the engines that know it rewrite"
            " its files, and remove those of its old versions"
        )


def rows_of(spark: SparkSession, table: Table, batch: int | None = None) -> DataFrame:
    """Return what was archived, or one batch; rows that others have inserted are of no batch."""
    files = table.files()
    chosen = [path for path, has in files.items() if None in (batch, has) or batch in (has or ())]
    is_such = "batch IS NOT NULL" if batch is None else f"batch = {batch}"
    rows: DataFrame = table.read(spark, chosen).where(is_such)
    return rows
