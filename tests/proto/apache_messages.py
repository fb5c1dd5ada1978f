"""Messages written by Apache RocketMQ 5.5.0, in captured frames and in the logs of its stores."""

from __future__ import annotations

import base64
import functools
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cometmq.proto.message import StoredMessage, read_message
from cometmq.proto.record import MAGIC_BLANK

if TYPE_CHECKING:
    from collections.abc import Iterator

VECTORS = Path(__file__).parent.parent / "vectors"
STORES = ("clean", "killed", "ext")


class Captured(NamedTuple):
    """The body of a captured frame, and the vector's description of it."""

    name: str
    header: dict[str, Any]
    messages: list[dict[str, Any]]
    body: bytes


def captured_bodies(code: int) -> list[Captured]:
    (path,) = (VECTORS / "wire").glob(f"{code:06}_*.jsonl")
    found: list[Captured] = []
    for line in path.read_text().splitlines():
        vector = json.loads(line)
        if vector.get("bodyLength") and ("frameHex" in vector or "frameBase64" in vector):
            frame = (
                bytes.fromhex(vector["frameHex"])
                if "frameHex" in vector
                else base64.b64decode(vector["frameBase64"])
            )
            found.append(
                Captured(
                    vector["name"],
                    vector["header"],
                    vector.get("bodyMessages", []),
                    frame[-vector["bodyLength"] :],
                )
            )
    return found


def captured_messages() -> list[Captured]:
    codes = (11, 12, 33, 39, 361, 200050, 200052)
    return [found for code in codes for found in captured_bodies(code) if found.messages]


@functools.cache
def manifest(store: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((VECTORS / "store" / f"{store}.manifest.json").read_text())
    return loaded


@functools.cache
def commit_log(store: str) -> dict[int, bytes]:
    """Return the files of a store's log by their offset."""
    files: dict[int, bytes] = {}
    with tarfile.open(VECTORS / "store" / f"{store}.tar.xz") as archive:
        for member in archive:
            path = Path(member.name)
            if path.parent.name == "commitlog" and member.isfile():
                opened = archive.extractfile(member)
                assert opened is not None
                files[int(path.name)] = opened.read()
    return files


def stored_messages(store: str) -> Iterator[tuple[int, StoredMessage]]:
    """Yield each record of a store's log with its physical offset."""
    for base, content in commit_log(store).items():
        start = 0
        while content[start + 4 : start + 8] not in (MAGIC_BLANK.to_bytes(4), bytes(4)):
            message = read_message(content, start)
            yield base + start, message
            start = message.end
