"""Where targets, seeds and findings are, and how one input is checked."""

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
# One input of that size takes microseconds; so many seconds of it are a finding.
SECONDS_MAX = 5


def target_names() -> list[str]:
    """List the targets there are."""
    return sorted(p.stem for p in (FOLDER / "targets").glob("*.py") if not p.stem.startswith("_"))


def load(name: str) -> Callable[[bytes], None]:
    """Give a target's check."""
    module = importlib.import_module(f"tests.fuzz.targets.{name}")
    return cast("Callable[[bytes], None]", module.check)


def accepts(check: Callable[[bytes], None], data: bytes) -> bool:
    """Whether the data is accepted; what is not a refusal escapes."""
    try:
        check(data)
    except RemoteProtocolError:
        return False
    return True


def seeds(name: str) -> list[bytes]:
    """Read the committed inputs of a target; an empty one where there are none."""
    return [path.read_bytes() for path in sorted((SEEDS / name).glob("*"))] or [b""]


def check_one(name: str, path: str) -> None:
    """Check one file, for looking at a finding: what escapes is shown with its traceback."""
    accepts(load(name), Path(path).read_bytes())
