"""What the programs of official clients share: the servers that they talk to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.interop.target import Target, running_target

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def java_starts_quickly() -> Iterator[None]:
    """Leave out Java's better compiler: it makes code for an hour, and these programs take seconds.

    For a module, not for all: Java says on its stderr that it was told so.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running_target(tmp_path_factory.mktemp("servers")) as running:
        yield running
