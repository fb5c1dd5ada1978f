"""A file with a line of JSON for each message that was sent again; each is in it once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from cometmq.pipeline.jobs.report import as_json
from cometmq.pipeline.jobs.writable import told_of_file

if TYPE_CHECKING:
    from collections.abc import Iterable

_PLACE: Final = ("group", "broker", "queue_id", "queue_offset", "to_topic", "died")
"""What tells one from another: a topic of dead letters that was made anew has old places again."""


class Receipts:
    """The file; without a path nothing is written."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        is_there = self._path is not None and self._path.is_file()  # To read a terminal is to wait.
        with told_of_file("receipts", path):
            data = self._path.read_bytes() if self._path and is_there else b""
        self._end = data.rpartition(b"\n")[2]
        """Behind the last line that is whole."""
        # What is no text is no receipt, and stays.
        lines = data.decode("utf-8", "replace").splitlines()
        self._there = {_place(each) for each in map(_read, lines)}

    def write(self, sent: Iterable[dict[str, Any]]) -> None:
        """Add those that are not there, as of a run that was killed before it wrote them."""
        new = [each for each in sent if _place(each) not in self._there]
        if self._path is None or not new:
            return
        with told_of_file("receipts", str(self._path)), self._path.open("a") as file:
            if self._end.startswith(b"{") and not _read(self._end):
                file.truncate(file.tell() - len(self._end))  # Who reads lines of JSON stops there.
            elif self._end:
                file.write("\n")
            file.writelines(as_json(each) + "\n" for each in new)
        self._end = b""
        self._there.update(map(_place, new))


def _read(line: str | bytes) -> dict[str, Any]:
    try:
        said: Any = json.loads(line)
    except ValueError:  # The end of a run that was killed, or whose disk was full.
        return {}
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _place(receipt: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(_said(receipt.get(name)) for name in _PLACE)


def _said(value: Any) -> Any:
    """Return a value as the file has it."""
    return json.loads(as_json(value))
