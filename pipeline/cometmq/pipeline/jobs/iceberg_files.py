"""Files of Iceberg's metadata that are on the disk before the catalog names them.

`pyiceberg` does not sync what it writes, but SQLite does. Without this, a power cut could leave a
catalog that names a file without contents, and so a table that nobody can open.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pyiceberg.io.pyarrow import PyArrowFileIO

from cometmq.pipeline.jobs.durable import sync, sync_name


class SyncedFiles(PyArrowFileIO):
    """Access to local files, as `pyiceberg` wants it."""

    def new_output(self, location: str) -> Any:
        """Return a file to write."""
        output: Any = super().new_output(location)
        create = output.create

        def created(*args: Any, **more: Any) -> _Synced:
            return _Synced(create(*args, **more), Path(urlparse(location).path))

        output.create = created
        return output


class _Synced:
    """An open file that is synced when it is closed."""

    def __init__(self, file: Any, path: Path) -> None:
        self._file, self._path = file, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Synced:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it, and have it on the disk, with its name."""
        self._file.close()
        sync(self._path)
        sync_name(self._path)
