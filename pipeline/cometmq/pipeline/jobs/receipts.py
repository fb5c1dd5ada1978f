"""A file with one line of JSON for each message that was sent again; each is in it once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from cometmq.pipeline.jobs.report import as_json
from cometmq.pipeline.jobs.writable import told_of_file

if TYPE_CHECKING:
    from collections.abc import Iterable

_PLACE: Final = ("group", "broker", "queue_id", "queue_offset", "to_topic", "died")
"""What identifies a receipt; in a recreated topic of dead letters, old places occur again."""


class Receipts:
    """The file; without a path nothing is written."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        is_there = self._path is not None and self._path.is_file()  # Reading a terminal would wait.
        with told_of_file("receipts", path):
            data = self._path.read_bytes() if self._path and is_there else b""
        self._end = data.rpartition(b"\n")[2]
        """What follows the last complete line."""
        # A line that is not text is not a receipt, and stays.
        lines = data.decode("utf-8", "replace").splitlines()
        self._there = {_place(each) for each in map(_read, lines)}

    def write(self, sent: Iterable[dict[str, Any]]) -> None:
        """Add the receipts that are missing, also those of a run that was killed before writing."""
        new = [each for each in sent if _place(each) not in self._there]
        if self._path is None or not new:
            return
        with told_of_file("receipts", str(self._path)), self._path.open("a") as file:
            if self._end.startswith(b"{") and not _read(self._end):
                file.truncate(file.tell() - len(self._end))  # Readers of JSON would stop there.
            elif self._end:
                file.write("\n")
            file.writelines(as_json(each) + "\n" for each in new)
        self._end = b""
        self._there.update(map(_place, new))


def _read(line: str | bytes) -> dict[str, Any]:
    try:
        said: Any = json.loads(line)
    except ValueError:  # Cut off by a kill or a full disk.
        return {}
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _place(receipt: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(_said(receipt.get(name)) for name in _PLACE)


def _said(value: Any) -> Any:
    """Return a value in the form of the file."""
    return json.loads(as_json(value))
