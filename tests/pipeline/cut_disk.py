"""A folder of a real disk that loses, at a power cut, what nobody has synced.

Each name in a folder, and the contents of each file, are on the disk when they are synced. Of what
is not, a power cut leaves anything: a new name or the old one, a removed file or none, an empty
file, one of zeros, or all of it. What is renamed is in one of both places. Some file systems lose
changes of names only together with all later ones: so does this one at some power cuts, or at all.
SQLite syncs its files by itself, unseen.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

_Names = dict[str, int]
"""What the names in a folder stand for, by the numbers of inodes."""


class _State(NamedTuple):
    """The contents of a file, as far as a change of them shows."""

    size: int
    modified_ns: int


class CutDisk:
    """What is on the disk of a folder, whose parent is all there."""

    def __init__(self, root: Path, kept: Path, random: Random, *, in_order: bool = False) -> None:
        self._root = root
        self._kept = kept
        self._random = random
        self._folders: dict[int, int] = {}
        """Open descriptors of all folders that were ever here: so no number is used again."""
        self._in_order = in_order
        self._history: list[dict[int, _Names]] = []
        """The names in all folders, as they were one after the other since the last sync of one."""
        self._names: dict[int, _Names] = {}
        self._states: dict[int, _State] = {}
        kept.mkdir()

    def close(self) -> None:
        """Forget everything."""
        for descriptor in self._folders.values():
            os.close(descriptor)
        self._folders.clear()
        shutil.rmtree(self._kept)

    def fsync(self, descriptor: int) -> None:
        """Note what is on the disk now of a file or a folder."""
        self._look()
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = _names(descriptor)
            del self._history[:-1]
        else:
            self._states[found.st_ino] = _state(found)

    def cut(self) -> None:
        """Cut the power: leave what is on the disk, and something of the rest."""
        self._look()
        root = self._root.stat().st_ino
        is_in_order = self._in_order or self._random.random() < 0.5
        chosen = self._random.choice(self._history) if is_in_order else self._chosen()
        after = self._root.with_name(f"{self._root.name}-after")
        self._make(root, after, chosen)
        shutil.rmtree(self._root)
        after.rename(self._root)
        self._all_synced()

    def _all_synced(self) -> None:
        """Take all for synced, as it is after half a minute."""
        self._look()
        for path in (self._root, *self._root.rglob("*")):
            found = path.stat()
            if stat.S_ISDIR(found.st_mode):
                self._names[found.st_ino] = _names(self._folders[found.st_ino])
            else:
                self._states[found.st_ino] = _state(found)
        del self._history[:-1]

    def _look(self) -> None:
        """Keep what is here: a power cut may bring it back."""
        for path in (self._root, *self._root.rglob("*")):
            try:
                number = path.stat().st_ino
                if path.is_dir():
                    if number not in self._folders:
                        self._folders[number] = os.open(path, os.O_RDONLY)
                elif not (kept := self._kept / str(number)).exists():
                    os.link(path, kept)
            except FileNotFoundError:  # Spark has its own threads.
                continue
        now = {number: _names(descriptor) for number, descriptor in self._folders.items()}
        if [now] != self._history[-1:]:
            self._history.append(now)

    def _chosen(self) -> dict[int, _Names]:
        """Choose what each folder has after a power cut."""
        chosen: dict[int, _Names] = {}
        places: dict[int, list[tuple[int, str]]] = {}
        settled: set[tuple[int, str]] = set()
        for folder, descriptor in self._folders.items():
            synced, now = self._names.get(folder, {}), _names(descriptor)
            chosen[folder] = here = {}
            for name in sorted({*synced, *now}):
                old, new = synced.get(name), now.get(name)
                for number in {each for each in (old, new) if each is not None}:
                    places.setdefault(number, []).append((folder, name))
                if old == new or _is_of_sqlite(name):
                    old = new
                    settled.add((folder, name))
                else:
                    old, new = self._random.sample((old, new), 2)
                if old is not None:
                    here[name] = old
        for number, possible in places.items():
            if len(possible) > 1:  # Renamed.
                sure = [each for each in possible if each in settled]
                there, called = self._random.choice(sure or possible)
                for folder, name in possible:
                    if chosen[folder].get(name) == number:
                        del chosen[folder][name]
                chosen[there][called] = number
        return chosen

    def _make(self, number: int, path: Path, chosen: dict[int, _Names]) -> None:
        if number in self._folders:
            path.mkdir()
            for name, each in sorted(chosen[number].items()):
                self._make(each, path / name, chosen)
            return
        contents = (self._kept / str(number)).read_bytes()
        is_synced = _is_of_sqlite(path.name) or self._states.get(number) == _state(
            (self._kept / str(number)).stat()
        )
        if not is_synced:
            contents = self._random.choice((b"", bytes(len(contents)), contents))
        path.write_bytes(contents)


def _is_of_sqlite(name: str) -> bool:
    return name.endswith((".db", ".db-journal"))


def _names(descriptor: int) -> _Names:
    found: _Names = {}
    for name in os.listdir(descriptor):
        try:
            found[name] = os.stat(name, dir_fd=descriptor).st_ino
        except FileNotFoundError:
            continue
    return found


def _state(found: os.stat_result) -> _State:
    return _State(found.st_size, found.st_mtime_ns)
