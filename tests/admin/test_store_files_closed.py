"""Commands on a store close every file that they open, so many can run in one process."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from tests.store.damaged_stores import SMALL, flip, open_in, write_small_store

from cometmq.admin.commands.store_commands import store
from cometmq.store.disk.filesystem import RealFileSystem

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = (
    "stat",
    "verify",
    "dump",
    "dump --limit 1",
    "dump --physical 5",
    "repair",
    "repair --dry-run",
    "repair --yes",
    "rebuild",
)
FIRST_BODY_AT = 31


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_file_of_the_store_stays_open(command: str, is_damaged: bool, tmp_path: Path) -> None:
    write_small_store(RealFileSystem(), str(tmp_path), SMALL)
    if is_damaged:
        flip(RealFileSystem(), str(tmp_path / "commitlog" / f"{0:020d}"), FIRST_BODY_AT)
    gc.collect()
    gc.disable()
    try:
        result = CliRunner().invoke(store, [*command.split(), str(tmp_path)])
        assert isinstance(result.exception, SystemExit | None), result.exception
        assert open_in(tmp_path) == []
    finally:
        gc.enable()
