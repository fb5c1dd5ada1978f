"""The sources of a daemon's settings: flags, then the environment, then a file.

Each source names settings of the broker, of the name server, or of both:

===================  ============================================  ================================
source               the broker's                                  the name server's
===================  ============================================  ================================
flags                as each command declares them
`--set`              `key=value`                                   `nameserver.key=value`; for
                                                                   `cometmq nameserver` plain, too
environment          `COMETMQ_KEY`                                 `COMETMQ_NAMESERVER_KEY`
file in TOML         table `[broker]`, or no table                 table `[nameserver]`; for
                                                                   `cometmq nameserver` no table
file of Apache's     `broker.conf`                                 `namesrv.conf`
===================  ============================================  ================================

A file is TOML if its name ends with `.toml`, and Java properties otherwise. A `broker.conf` without
`flushDiskType` means an asynchronous flush, as it does for Apache's broker. Without
`storePathRootDir` it means a store in the home folder there, so no new store is begun here.
"""

from __future__ import annotations

import re
import tomllib
from codecs import BOM_UTF8
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cometmq.proto.bodies import decode_settings, lines_of_settings
from cometmq.proto.errors import BodyError
from cometmq.proto.settings import unknown_setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BROKER: Final = "broker"
NAMESERVER: Final = "nameserver"
_PREFIX: Final = "COMETMQ_"
_OF_OTHERS: Final = ("_access_key", "_secret_key", "_spark_log")
"""The ends of names that clients and the pipeline read; daemons ignore them without a warning."""
_TOML_TABLE: Final = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_TOML_KEY: Final = re.compile(r"""\s*(["']?)([\w-]+)\1\s*=""")


@dataclass(slots=True)
class Settings:
    """Settings by daemon and key; a source that is added later overrides earlier ones."""

    main: str
    """The daemon to which keys without a daemon's name belong."""
    of: dict[str, dict[str, object]] = field(default_factory=lambda: {BROKER: {}, NAMESERVER: {}})
    warnings: list[str] = field(default_factory=list[str])
    broker_conf: str | None = None
    """The file, if it is Apache's `broker.conf`."""
    _places: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """Where a setting that is not from a flag was written, as a prefix of error texts."""

    def add(
        self, daemon: str, settings: Mapping[str, object], places: Mapping[str, str] | None = None
    ) -> None:
        """Add the settings of one source; `places` says where each is written."""
        known = self.of[daemon]
        for key, value in settings.items():
            known.pop(key, None)  # Also move it to the end: it may be there under another name.
            known[key] = value
            self._places[daemon, key] = (places or {}).get(key, "")

    def place_of(self, daemon: str, name: str, own_names: Mapping[str, str]) -> str:
        """Return where a setting is written, by its key or our name; '' if it is from a flag.

        `own_names` maps Apache's keys to our names.
        """
        for key in reversed(self.of[daemon]):  # Of two names, the later one counts.
            if name in (key, own_names.get(key)):
                return self._places.get((daemon, key), "")
        return ""

    def refusal(
        self, daemon: str, problem: Exception, own_names: Mapping[str, str]
    ) -> click.UsageError:
        """Make the error for a problem, whose text begins with a setting, with that one's place."""
        text = str(problem)
        return click.UsageError(self.place_of(daemon, text.partition(":")[0], own_names) + text)

    def add_file(self, path: str) -> None:
        """Add the settings of a file; a `UsageError` if it cannot be read."""
        try:
            content = Path(path).read_bytes().removeprefix(BOM_UTF8)  # Windows editors write it.
        except OSError as error:
            raise click.UsageError(f"--config {path}: {error.strerror}") from error
        try:
            if path.endswith(".toml"):
                self._add_toml(path, content.decode())
            else:
                self._add_properties(path, content)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, BodyError) as error:
            hint = "; a text needs quotes in TOML" if "Invalid value" in str(error) else ""
            raise click.UsageError(f"--config {path}: {error}{hint}") from error

    def _add_toml(self, path: str, text: str) -> None:
        tree: Mapping[str, object] = tomllib.loads(text)
        lines = _lines_of_toml(text)
        plain = {k: v for k, v in tree.items() if not isinstance(v, dict)}
        self.add(self.main, plain, {key: _in_file(path, lines.get(("", key))) for key in plain})
        tables: dict[str, dict[str, object]] = {
            name: table for name, table in tree.items() if isinstance(table, dict)
        }
        for name, table in tables.items():
            if name not in self.of:
                raise click.UsageError(f"--config {path}: table {unknown_setting(name, self.of)}")
            places = {key: _in_file(path, lines.get((name, key))) for key in table}
            self.add(name, table, places)

    def _add_properties(self, path: str, content: bytes) -> None:
        properties = decode_settings(content)
        lines = lines_of_settings(content)
        if self.main == BROKER:
            self.broker_conf = path
            self.add(BROKER, {"flushDiskType": "ASYNC_FLUSH"})
        self.add(self.main, properties, {key: _in_file(path, lines[key]) for key in properties})

    def add_environment(
        self, environ: Mapping[str, str], known: Mapping[str, Iterable[str]]
    ) -> None:
        """Add the settings of the environment; ignore unknown names with a warning."""
        for name, value in environ.items():
            if not name.startswith(_PREFIX) or name.lower().endswith(_OF_OTHERS):
                continue
            daemon, key = BROKER, name.removeprefix(_PREFIX).lower()
            if key.startswith(f"{NAMESERVER}_"):
                daemon, key = NAMESERVER, key.removeprefix(f"{NAMESERVER}_")
            # Container platforms set other names that begin like ours.
            if key in known[daemon]:
                self.add(daemon, {key: value}, {key: f"environment: {name}: "})
            else:
                self.warnings.append(f"environment: {name}: {unknown_setting(key, known[daemon])}")

    def add_pairs(self, pairs: Iterable[str]) -> None:
        """Add the settings of `--set`."""
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals:
                raise click.UsageError(f"--set {pair}: must be key=value")
            daemon, dot, rest = key.strip().partition(".")
            if dot and daemon in self.of:
                self.add(daemon, {rest: value}, {rest: f"--set {daemon}."})
            else:
                self.add(self.main, {key.strip(): value}, {key.strip(): "--set "})


def _in_file(path: str, line: int | None) -> str:
    return f"--config {path}: " if line is None else f"--config {path}, line {line}: "


def _lines_of_toml(text: str) -> dict[tuple[str, str], int]:
    """Return the line of each key of each table that is written as `key = value`."""
    table = ""
    lines: dict[tuple[str, str], int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if found := _TOML_TABLE.match(line):
            table = found[1]
        elif found := _TOML_KEY.match(line):
            lines.setdefault((table, found[2]), number)
    return lines
