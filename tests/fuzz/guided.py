"""One target under atheris: `python -m tests.fuzz.guided TARGET LIBFUZZER-ARGUMENTS...`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tests.fuzz.target import accepts, load

# Atheris has no types, and no build for newer Pythons.
atheris: Any = importlib.import_module("atheris")


def main() -> None:
    """Instrument the target's imports, and fuzz until libFuzzer ends the process."""
    name = sys.argv[1]
    with atheris.instrument_imports(include=["cometmq"]):
        check = load(name)

    def one_input(data: bytes) -> None:
        accepts(check, data)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
