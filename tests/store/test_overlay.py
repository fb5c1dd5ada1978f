"""Changes to an overlay look as if they were made to the disk, which stays as it is."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.damaged_stores import contents

from cometmq.store.disk.overlay import Overlay

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import FileSystem

FOLDERS = ("/s/a", "/s/b")
NAMES = ("1", "2", "3")


def begun() -> SimulatedFileSystem:
    disk = SimulatedFileSystem()
    for folder in FOLDERS:
        disk.make_directories(folder)
        for name in NAMES[:2]:
            file = disk.open(f"{folder}/{name}", create=True)
            file.write(f"{folder}{name}".encode() * 5, 0)
            file.resize(80)
            file.close()
    return disk


def change(filesystem: FileSystem, random: Random) -> object:
    """Do something to one file; return what it answers."""
    path = f"{random.choice(FOLDERS)}/{random.choice(NAMES)}"
    verb, place, size = random.randrange(7), random.randrange(120), random.randrange(120)
    data = random.randbytes(size)
    try:
        if verb == 0:
            filesystem.remove(path)
            return filesystem.exists(path)
        if verb == 1:
            file = filesystem.open("/s/new", create=True)
            file.write(data, 0)
            file.close()
            filesystem.rename("/s/new", path)
            return filesystem.list("/s")
        file = filesystem.open(path, create=verb == 2)
    except FileNotFoundError:
        return "not there"
    try:
        if verb == 3:
            file.resize(size)
        elif verb == 4:
            file.resize(place)
            file.resize(place + size)
            assert not file.is_blank(place) or not any(file.read(file.size(), place))
        elif verb == 5:
            file.write(data, place)
        return file.read(size, place), file.size()
    finally:
        file.close()


@pytest.mark.parametrize("seed", range(40))
def test_it_answers_as_the_disk_would(seed: int) -> None:
    below, changed = begun(), begun()
    before, operations = contents(below), below.operations
    overlay = Overlay(below)
    randoms = Random(seed), Random(seed)
    for _ in range(60):
        assert change(overlay, randoms[0]) == change(changed, randoms[1])
        for folder in ("/s", *FOLDERS):
            assert overlay.list(folder) == changed.list(folder)
    assert contents(overlay, "/s") == contents(changed, "/s")
    assert (contents(below), below.operations) == (before, operations)


def test_folders_are_made_and_go_in_memory() -> None:
    below = begun()
    operations = below.operations
    overlay = Overlay(below)
    overlay.make_directories("/s/c/0")
    assert [entry.name for entry in overlay.list("/s")] == ["a", "b", "c"]
    assert [entry.is_directory for entry in overlay.list("/s/c")] == [True]
    for name in NAMES[:2]:
        overlay.remove(f"/s/a/{name}")
    overlay.remove_directory("/s/a")
    assert not overlay.exists("/s/a")
    with pytest.raises(FileNotFoundError):
        overlay.remove("/s/a/1")
    with pytest.raises(FileNotFoundError):
        overlay.open("/s/a/1")
    assert below.operations == operations
