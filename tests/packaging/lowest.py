"""`python -m tests.packaging.lowest`: the oldest versions that `pyproject.toml` allows, for pip.

Spark is left out, as it is large. What tests need beside these stays as the lock has it.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

PROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"
EXTRAS: Final = ("broker", "otel")
ALIKE: Final = ("opentelemetry-sdk", "pyarrow")
"""What only tests and Spark need, and what must fit, or is tested without Spark."""


def lowest(text: str) -> list[str]:
    """Return what pip is to install, by the text of a `pyproject.toml`."""
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(each for name in EXTRAS for each in extras[name])]
    found = [Requirement(line) for line in lines]
    found += [each for each in map(Requirement, extras["dev"]) if each.name in ALIKE]
    return [
        f"{each.name}=={bound.version}"
        for each in found
        if each.marker is None or each.marker.evaluate()
        for bound in each.specifier
        if bound.operator == ">="
    ]


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest(PROJECT.read_text())) + "\n")
