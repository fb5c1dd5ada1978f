"""`python -m bench [NAME...]`: measure what docs/performance.md states, or parts of it."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from bench.measure import figures, table

PARTS = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if "CASES" in p.read_text())


def main() -> None:
    """Run the parts that were asked for and print a table of each."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", nargs="*", help=f"of {', '.join(PARTS)}; all when none is named")
    for name in parser.parse_args().name or PARTS:
        print(f"\n{name}\n")
        print(table(figures(importlib.import_module(f"bench.{name}").CASES)))


if __name__ == "__main__":
    main()
