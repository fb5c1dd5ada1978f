"""The frames under tests/vectors/wire, captured from a live Apache RocketMQ 5.5.0."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent.parent / "vectors" / "wire"


class Vector(NamedTuple):
    """One captured frame and its description in the capture."""

    where: str
    frame: bytes
    said: dict[str, Any]

    @property
    def header(self) -> dict[str, Any]:
        """The decoded header."""
        found: dict[str, Any] = self.said["header"]
        return found

    @property
    def ext_fields(self) -> dict[str, str]:
        """The decoded fields, empty when there are none."""
        return self.header.get("extFields") or {}

    @property
    def codec(self) -> str:
        """JSON or ROCKETMQ."""
        return str(self.said["headerCodec"])


def _frame(said: dict[str, Any]) -> bytes | None:
    if "frameHex" in said:
        return bytes.fromhex(said["frameHex"])
    return base64.b64decode(said["frameBase64"]) if "frameBase64" in said else None


def read_vectors(file: Path) -> list[Vector]:
    """Read the vectors of one file that have a whole frame."""
    found: list[Vector] = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        said = json.loads(line)
        if (frame := _frame(said)) is not None:
            found.append(Vector(f"{file.name}:{number}", frame, said))
    return found


MALFORMED = read_vectors(FOLDER / "malformed.jsonl")
VECTORS = [
    vector
    for file in sorted(FOLDER.glob("*.jsonl"))
    if file.name != "malformed.jsonl"
    for vector in read_vectors(file)
]
