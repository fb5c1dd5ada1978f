"""Where an Iceberg table is, as `pyiceberg` has it, which reaches S3 by itself, without Hadoop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.table_stores import require_reachable, s3_settings

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.folders import Folder

_LOCAL: Final = "file://"
_UNSAFE: Final = "?#"
"""What the address of a file cannot contain as it is."""
_SETTINGS: Final = (
    "s3.endpoint",
    "s3.region",
    "s3.access-key-id",
    "s3.secret-access-key",
    "s3.session-token",
)
"""What `pyiceberg` calls Hadoop's settings for S3."""


def address(folder: Folder, option: str) -> str:
    """Return the address of the table in a folder, in which nothing is escaped."""
    path = folder.local_path
    require_reachable(folder, option, "an Iceberg table")
    place = folder.of().partition("://")[2] if path is None else path
    if found := [each for each in _UNSAFE if each in place]:
        raise OptionError(
            f"{option}: the path {place} contains {found[0]!r}; choose another folder"
        )
    return f"s3://{place}" if path is None else f"{_LOCAL}{place}"


def path_of(folder: Folder, file: str) -> str:
    """Return the path of a file of the table, as Spark has it, from its address."""
    if folder.local_path is not None:
        return file.removeprefix(_LOCAL)
    return f"{folder.scheme}://{file.partition('://')[2]}"


def settings_of(folder: Folder) -> dict[str, str]:
    """Return how to reach it: S3 as Spark does, and a disk so that files are synced."""
    if folder.local_path is not None:
        return {"py-io-impl": "cometmq.pipeline.jobs.iceberg_files.SyncedFiles"}
    return s3_settings(folder, _SETTINGS)
