"""Folders for libraries that reach disks and S3 by themselves, without Hadoop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.folders import S3

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.pipeline.jobs.folders import Folder

_SETTINGS: Final = (
    "fs.s3a.endpoint",
    "fs.s3a.endpoint.region",
    "fs.s3a.access.key",
    "fs.s3a.secret.key",
    "fs.s3a.session.token",
)


def require_reachable(folder: Folder, option: str, what: str) -> None:
    """Refuse a folder that such a library, which is to have a table there, does not reach."""
    if folder.local_path is None and folder.scheme not in S3:
        raise OptionError(
            f"{option}: {folder.path} is neither on this machine's disk nor on S3, where {what}"
            " of these may be; use parquet there"
        )


def s3_settings(folder: Folder, names: Sequence[str]) -> dict[str, str]:
    """Return those of Hadoop's settings that are set, in the order above, under a library's names.

    There are none for a folder elsewhere. Without a key, libraries look at AWS's variables.
    """
    if folder.scheme not in S3:
        return {}
    endpoint, *others = map(folder.setting, _SETTINGS)
    if endpoint and "://" not in endpoint:  # As Hadoop takes it.
        endpoint = f"https://{endpoint}"
    given = zip(names, (endpoint, *others), strict=True)
    return {name: value for name, value in given if value}
