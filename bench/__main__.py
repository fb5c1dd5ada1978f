"""Measure the figures of docs/performance.md: all quick parts, or the named ones.

    python -m bench [NAME...]

A part that has settings is run by itself with them: `python -m bench.store_queues --help`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# A part is a module with `main(arguments)`, whose docstring's first line says what it measures. A
# quick part takes at most a minute and needs nothing but Python.
QUICK: Final = ("proto", "messages")
LONG: Final = (
    *("broker", "transactions", "kinds", "client", "path", "scale"),
    *("nameserver", "net", "spark", "spark_columns", "spark_partitions", "spark_store"),
    *("store", "store_appends", "store_queues"),
)
_WIDTH: Final = max(map(len, QUICK + LONG)) + 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"quick parts:\n{_listed(QUICK)}\n\nlong parts:\n{_listed(LONG)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="*", help="a part; the quick ones when none is named")
    names: list[str] = parser.parse_args(arguments).name
    if unknown := [name for name in names if name not in QUICK + LONG]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(QUICK + LONG)}")
    for name in names or QUICK:
        print(f"\n{name}\n")
        importlib.import_module(f"bench.{name}").main([])
    if not names:
        print(f"\nNot run, for they take minutes: python -m bench {' '.join(LONG)}")


def _listed(names: Sequence[str]) -> str:
    return "\n".join(f"  {name:<{_WIDTH}}{summary_of(name)}" for name in names)


def summary_of(name: str) -> str:
    """Return the line that says what a part measures, without importing the part."""
    source = Path(__file__).with_name(f"{name}.py").read_text()
    line = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return line.rpartition("`: ")[2]


if __name__ == "__main__":
    main()
