"""What is known of a file of a Delta table: by its path, and by its own last bytes.

A file is in folders that are named after its values of the columns by which the table is divided,
and does not contain these columns.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow.parquet as pq

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_UNTIL_NEXT: Final = timedelta(microseconds=999)
"""Delta's statistics have milliseconds, so that a maximum is rounded up."""


def values_in(path: str) -> dict[str, str | None]:
    """Return the values that the folders of a file are named after."""
    named = (each.partition("=") for each in path.split("/")[:-1])
    return {name: None if value == _NULL else unquote(value) for name, _, value in named}


def statistics_of(path: Path) -> dict[str, Any]:
    """Return how many rows a file has, and the range of each column of numbers or times.

    By these, readers leave out files in which there cannot be what they look for.
    """
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    said: dict[str, Any] = {"numRecords": footer.num_rows}
    names = [footer.schema.column(number).path for number in range(footer.num_columns)]
    for number, name in enumerate(names):
        # Parts of a value are left out: Python does not have all dates that Spark has.
        if "." not in name and (found := _range_of(footer, number)):
            low, high, nulls = found
            said.setdefault("minValues", {})[name] = low
            said.setdefault("maxValues", {})[name] = high
            said.setdefault("nullCount", {})[name] = nulls
    return said


def _range_of(footer: pq.FileMetaData, number: int) -> tuple[Any, Any, int] | None:
    """Return the lowest and highest value of a column, and how many are null, if it tells."""
    groups = range(footer.num_row_groups)
    said = [footer.row_group(each).column(number).statistics for each in groups]
    if not all(each and (each.has_min_max or not each.num_values) for each in said):
        return None
    ranges = [(each.min, each.max) for each in said if each.has_min_max]
    if not ranges:
        return None
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    if not isinstance(low, int | date) or isinstance(low, bool):
        return None
    return _text(low), _text(high, _UNTIL_NEXT), sum(each.null_count for each in said)


def _text(value: Any, until_next: timedelta = timedelta()) -> Any:
    """Return a value as Delta writes it."""
    if isinstance(value, datetime):
        at = (value + until_next).astimezone(UTC).replace(tzinfo=None)
        return f"{at.isoformat(timespec='milliseconds')}Z"
    return value.isoformat() if isinstance(value, date) else value
