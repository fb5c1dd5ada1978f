"""The catalogs of archives that are Iceberg tables: one in the archive's folder, or the user's own.

A table without a name is on this machine's disk, and its catalog is a database of SQLite beside it.
A named one is in a catalog that `pyiceberg` is configured for; a note in its folder has the name.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.full_disks import told_if_full
from cometmq.pipeline.jobs.iceberg_stores import address, settings_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from cometmq.pipeline.jobs.folders import Folder

_DATABASE: Final = ("_cometmq", "iceberg.db")
_NOTE: Final = ("_cometmq", "iceberg.json")
_NAMESPACE: Final = "cometmq"
_TABLE: Final = "archive"
_PARTS: Final = 3
"""A catalog, at least one namespace, and a table."""


def is_iceberg(folder: Folder) -> bool:
    """Whether a folder is such a table."""
    return folder.exists(*_DATABASE) or folder.exists(*_NOTE)


def require_name(name: str) -> None:
    """Refuse what does not name a table in a catalog."""
    parts = name.split(".")
    if len(parts) < _PARTS or not all(parts):
        raise OptionError(f"table: {name!r} is not CATALOG.NAMESPACE.TABLE")


def catalog_of(folder: Folder, option: str, name: str = "") -> Catalog:
    """Return the catalog of the table in a folder, which may have this name."""
    noted = ""
    if folder.exists(*_NOTE):
        said = folder.read_json(*_NOTE, if_damaged="put it back from a copy", fields=("table",))
        noted = said["table"]
    elif name and folder.exists(*_DATABASE):
        raise OptionError(
            f"table: {folder.path} has a catalog of its own; leave the name out, or choose another"
            " folder"
        )
    if name and noted not in ("", name):
        raise OptionError(f"table: {folder.path} is {noted}; choose another folder")
    return _Named(folder, option, name or noted) if name or noted else _Own(folder, option)


class Catalog(ABC):
    """A catalog, as far as one table is concerned."""

    _name: str
    """What it calls the table."""

    def __init__(self, folder: Folder, option: str) -> None:
        self.place = address(folder, option)
        """The address of the table."""
        self._folder = folder
        self._option = option
        self._opened: Any = None

    def table(self) -> Any:
        """Return the table; `None` if there is none."""
        from pyiceberg.exceptions import NoSuchTableError

        with self.told():
            try:
                table = self._connected().load_table(self._name)
            except NoSuchTableError:
                return None
        if table.location().rstrip("/") != self.place:
            raise OptionError(self._is_elsewhere(table.location()))
        return table

    def creating(self, schema: Any, properties: dict[str, str]) -> Any:
        """Return a transaction that creates the table."""
        self._prepare()
        return self._connected().create_table_transaction(
            self._name, schema=schema, location=self.place, properties=properties
        )

    @abstractmethod
    def keep_name(self) -> None:
        """Have the table's folder say which table it is, unless its catalog is there."""

    @contextmanager
    def told(self) -> Generator[None]:
        """Say of errors whose they are."""
        from pyiceberg.exceptions import CommitFailedException

        try:
            with told_if_full(self._folder.path):
                yield
        except (PipelineError, CommitFailedException):
            raise
        except Exception as error:
            if (told := self._about(error)) is None:
                raise
            raise told from error

    def _connected(self) -> Any:
        self._opened = self._opened or self._open()
        return self._opened

    @abstractmethod
    def _open(self) -> Any:
        """Connect to it."""

    @abstractmethod
    def _prepare(self) -> None:
        """Prepare for the creation of the table."""

    @abstractmethod
    def _is_elsewhere(self, place: str) -> str:
        """Say that the table is elsewhere than in its folder."""

    @abstractmethod
    def _about(self, error: Exception) -> PipelineError | None:
        """Return what to raise in an error's place, if it is the catalog's."""


class _Own(Catalog):
    """A catalog in the table's folder."""

    _name = f"{_NAMESPACE}.{_TABLE}"

    def __init__(self, folder: Folder, option: str) -> None:
        if folder.local_path is None:
            raise OptionError(
                f"{option}: {folder.path} is not on this machine's disk, where an Iceberg table has"
                " a catalog of its own; name a table in a catalog of yours by --table"
            )
        super().__init__(folder, option)

    def table(self) -> Any:
        """Return the table; `None` if there is none: to look for it creates no database."""
        return super().table() if self._folder.exists(*_DATABASE) else None

    def _open(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog
        from sqlalchemy.engine import URL

        where = URL.create("sqlite", database=str(self._database))
        return SqlCatalog(
            _NAMESPACE,
            uri=where.render_as_string(),
            warehouse=self.place,
            **settings_of(self._folder),
        )

    @property
    def _database(self) -> Path:
        return Path(str(self._folder.local_path)).joinpath(*_DATABASE)

    def _prepare(self) -> None:
        self._database.parent.mkdir(parents=True, exist_ok=True)
        self._connected().create_namespace_if_not_exists(_NAMESPACE)

    def keep_name(self) -> None:
        """Leave it at that: the database says it."""

    def _is_elsewhere(self, place: str) -> str:
        return (
            f"{self._option}: {self._folder.path} is a copy of the table at {place}, whose files"
            " it names; Iceberg's tables stay where they were made"
        )

    def _about(self, error: Exception) -> PipelineError | None:
        from sqlalchemy.exc import SQLAlchemyError

        if not isinstance(error, SQLAlchemyError):
            return None
        said = _first_line(getattr(error, "orig", None) or error)
        return PipelineError(
            f"{self._folder.of(*_DATABASE)}: {said}. If another program uses it, start this again"
            " when that has ended; if it is damaged, put it back from a copy"
        )


class _Named(Catalog):
    """A catalog of the user's."""

    def __init__(self, folder: Folder, option: str, name: str) -> None:
        super().__init__(folder, option)
        self._whole_name = name
        self._catalog, _, self._name = name.partition(".")

    def _open(self) -> Any:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.utils.config import Config

        if not (known := Config().get_catalog_config(self._catalog)):
            variable = f"PYICEBERG_CATALOG__{self._catalog.upper()}__URI"
            raise OptionError(
                f"table: PyIceberg knows no catalog {self._catalog!r}: describe it in"
                f" ~/.pyiceberg.yaml, or by the variable {variable} and others"
            )
        return load_catalog(self._catalog, **{**settings_of(self._folder), **known})

    def keep_name(self) -> None:
        """Have the table's folder say which table it is."""
        if not self._folder.exists(*_NOTE):
            self._folder.write(json.dumps({"table": self._whole_name}) + "\n", *_NOTE)

    def table(self) -> Any:
        """Return the table; `None` if there is none, though its namespace is there."""
        if (table := super().table()) is None:
            with self.told():
                self._connected().load_namespace_properties(self._name.rpartition(".")[0])
        return table

    def _prepare(self) -> None:
        """Leave namespaces to the user, who may want them somewhere."""

    def _is_elsewhere(self, place: str) -> str:
        return (
            f"{self._option}: {self._whole_name} is at {place}, and not at {self.place}: it was"
            " archived to another folder, or its catalog itself chooses where tables are, which"
            " an archive cannot have"
        )

    def _about(self, error: Exception) -> PipelineError:
        from pyiceberg.exceptions import NoSuchNamespaceError, NotInstalledError

        said = _first_line(error)
        if isinstance(error, NoSuchNamespaceError):
            said = f"its namespace does not exist; create it ({said})"
        elif not isinstance(error, NotInstalledError | ValueError):
            kind = type(error).__name__
            return PipelineError(f"the catalog of {self._whole_name} failed: {kind}: {said}")
        return OptionError(f"table: {self._whole_name}: {said}")


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
