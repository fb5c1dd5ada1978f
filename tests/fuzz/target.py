"""The places of targets, seeds and findings, and the check of one input."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cometmq.proto.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent
SEEDS = FOLDER / "seeds"
CORPUS = FOLDER / "corpus"
FINDINGS = CORPUS / "findings"

INPUT_SIZE_MAX = 8192
# An input of that size takes microseconds, so this many seconds are a finding.
SECONDS_MAX = 5


def target_names() -> list[str]:
    """Return the names of all targets."""
    return sorted(p.stem for p in (FOLDER / "targets").glob("*.py") if not p.stem.startswith("_"))


def load(name: str) -> Callable[[bytes], None]:
    """Return a target's check."""
    module = importlib.import_module(f"tests.fuzz.targets.{name}")
    return cast("Callable[[bytes], None]", module.check)


def accepts(check: Callable[[bytes], None], data: bytes) -> bool:
    """Return whether the data is accepted. Exceptions other than refusals escape."""
    try:
        check(data)
    except RemoteProtocolError:
        return False
    return True


def seeds(name: str) -> list[bytes]:
    """Read the committed inputs of a target, or return one empty input if there are none."""
    return [path.read_bytes() for path in sorted((SEEDS / name).glob("*"))] or [b""]


def check_one(name: str, path: str) -> None:
    """Check one file, to show a finding's exception with its traceback."""
    accepts(load(name), Path(path).read_bytes())
