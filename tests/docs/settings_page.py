"""Writes docs/settings.md from the sources: `python -m tests.docs.settings_page`."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.admin.commands.up import SEGMENT_SIZE
from cometmq.admin.daemons import METRICS_PORT, MIB, NAMESERVER_METRICS_PORT
from cometmq.broker.config import BrokerConfig
from cometmq.broker.settings import CHANGEABLE, MAPPED, PART_OF
from cometmq.nameserver import config as names
from cometmq.net import Limits
from cometmq.proto.settings import format_setting
from cometmq.store.config import StoreConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

PAGE: Final = Path(__file__).parents[2] / "docs" / "settings.md"
OF_PROGRAMS: Final[Mapping[tuple[type, str], int]] = {
    (BrokerConfig, "metrics_port"): METRICS_PORT,
    (names.NameServerConfig, "metrics_port"): NAMESERVER_METRICS_PORT,
}
"""Values that the programs set, and that the config of a library's user leaves unset."""
HEAD: Final = f"""\
# Settings

All settings of the broker and the name server, made from the sources by
`python -m tests.docs.settings_page`. [operations.md](operations.md#settings) says where they may be
given: `--set flush=async`, `COMETMQ_FLUSH=async`, `flush = "async"` in the file. Sizes in bytes may
be written as `64MiB`. Those with a \\* may be changed while the daemon runs. The defaults are those
of the programs; `cometmq up` has one other, a `segment_size` of `{SEGMENT_SIZE // MIB}MiB`.
"""
COLUMNS: Final = """
| setting | default | Apache's key | what it is |
|---|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    parts = (("The broker", BrokerConfig), ("Its store", StoreConfig))
    keys = {same.name: key for key, same in MAPPED.items()}
    text = HEAD
    for title, kind in parts:
        text += _table(title, kind, PART_OF, CHANGEABLE, keys)
    text += _table("Its connections", Limits, PART_OF, CHANGEABLE, keys)
    keys = {name: key for key, name in names.APACHE_KEYS.items()}
    return text + _table(
        "The name server",
        names.NameServerConfig,
        names.SETTINGS,
        names.CHANGEABLE,
        keys,
    )


def _table(
    title: str,
    kind: type[BrokerConfig | StoreConfig | Limits | names.NameServerConfig],
    known: Collection[str],
    changeable: Collection[str],
    keys: Mapping[str, str],
) -> str:
    reasons = dict(_docstrings(kind))
    rows: list[str] = []
    for field in fields(kind):
        if field.name not in known:
            continue
        reason = reasons.get(field.name, "")
        if "reason" in field.metadata:
            reason = f"{field.metadata['unit']}: {field.metadata['reason']}"
        mark = "\\*" if field.name in changeable else ""
        value: object = OF_PROGRAMS.get((kind, field.name), field.default)
        default = format_setting(value) or '""'
        key = f"`{keys[field.name]}`" if field.name in keys else ""
        rows.append(f"| `{field.name}`{mark} | `{default}` | {key} | {reason} |\n")
    return f"\n## {title}\n{COLUMNS}{''.join(rows)}"


def _docstrings(kind: type) -> Iterator[tuple[str, str]]:
    """Yield each field of a class with its docstring."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    for field, said in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(said, ast.Expr)
            and isinstance(said.value, ast.Constant)
        ):
            yield field.target.id, inspect.cleandoc(str(said.value.value)).replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page())
