"""Where the settings of a daemon come from: flags, then the environment, then a file.

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

A file is TOML when its name ends with `.toml`, and Java properties otherwise. In a `broker.conf`
without `flushDiskType`, the flush is asynchronous: that is what it means to Apache's broker. One
without `storePathRootDir` means a store in the home folder there, so it begins no new one here.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cometmq.proto.bodies import decode_settings
from cometmq.proto.errors import BodyError
from cometmq.proto.settings import unknown_setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BROKER: Final = "broker"
NAMESERVER: Final = "nameserver"
_PREFIX: Final = "COMETMQ_"


@dataclass(slots=True)
class Settings:
    """Settings by daemon and key; of two sources the one that was added later counts."""

    main: str
    """The daemon that keys without a daemon's name are for."""
    of: dict[str, dict[str, object]] = field(default_factory=lambda: {BROKER: {}, NAMESERVER: {}})
    warnings: list[str] = field(default_factory=list[str])
    broker_conf: str | None = None
    """The file where it is Apache's `broker.conf`."""

    def add(self, daemon: str, settings: Mapping[str, object]) -> None:
        """Add the settings of one source."""
        known = self.of[daemon]
        for key, value in settings.items():
            known.pop(key, None)  # Last in the order, too: it may be there by another name.
            known[key] = value

    def add_file(self, path: str) -> None:
        """Add those of a file; a `UsageError` when it cannot be read."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise click.UsageError(f"--config {path}: {error.strerror}") from error
        try:
            if path.endswith(".toml"):
                self._add_toml(path, tomllib.loads(content.decode()))
            else:
                self._add_properties(path, decode_settings(content))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, BodyError) as error:
            raise click.UsageError(f"--config {path}: {error}") from error

    def _add_toml(self, path: str, tree: Mapping[str, object]) -> None:
        self.add(self.main, {k: v for k, v in tree.items() if not isinstance(v, dict)})
        tables: dict[str, dict[str, object]] = {
            name: table for name, table in tree.items() if isinstance(table, dict)
        }
        for name, table in tables.items():
            if name not in self.of:
                raise click.UsageError(f"--config {path}: table {unknown_setting(name, self.of)}")
            self.add(name, table)

    def _add_properties(self, path: str, properties: Mapping[str, str]) -> None:
        if self.main == BROKER:
            self.broker_conf = path
            self.add(BROKER, {"flushDiskType": "ASYNC_FLUSH"})
        self.add(self.main, properties)

    def add_environment(
        self, environ: Mapping[str, str], known: Mapping[str, Iterable[str]]
    ) -> None:
        """Add those of the environment; names that mean nothing are told, and passed over."""
        for name, value in environ.items():
            if not name.startswith(_PREFIX):
                continue
            daemon, key = BROKER, name.removeprefix(_PREFIX).lower()
            if key.startswith(f"{NAMESERVER}_"):
                daemon, key = NAMESERVER, key.removeprefix(f"{NAMESERVER}_")
            # A container's platform sets names of its own that begin like ours.
            if key in known[daemon]:
                self.add(daemon, {key: value})
            else:
                self.warnings.append(f"environment: {name}: {unknown_setting(key, known[daemon])}")

    def add_pairs(self, pairs: Iterable[str]) -> None:
        """Add those of `--set`."""
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals:
                raise click.UsageError(f"--set {pair}: must be key=value")
            daemon, dot, rest = key.strip().partition(".")
            if dot and daemon in self.of:
                self.add(daemon, {rest: value})
            else:
                self.add(self.main, {key.strip(): value})
