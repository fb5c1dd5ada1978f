"""Where a Delta table is, as `deltalake` has it, which reaches S3 by itself, without Hadoop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.table_stores import require_reachable, s3_settings

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.folders import Folder

_UNSAFE: Final = "%\\"
"""What `deltalake` takes for the number of a character, or for the end of a folder's name."""
_SETTINGS: Final = (
    "aws_endpoint",
    "aws_region",
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
)
"""What `deltalake` calls Hadoop's settings for S3."""


def address(folder: Folder, option: str) -> str:
    """Return the address of the table in a folder."""
    require_reachable(folder, option, "a Delta table")
    path = folder.local_path
    if path is None:
        return "s3://" + folder.path.partition("://")[2]
    if found := [each for each in _UNSAFE if each in path]:
        raise OptionError(f"{option}: the path {path} contains {found[0]!r}; choose another folder")
    return Path(path).as_uri()


def settings_of(folder: Folder) -> dict[str, str]:
    """Return how to reach it, as Spark does."""
    settings = s3_settings(folder, _SETTINGS)
    if settings.get("aws_endpoint", "").startswith("http:"):
        settings["aws_allow_http"] = "true"
    return settings
