"""Fixtures for the programs of official clients: the servers that they talk to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.interop.target import Target, running_target

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def java_starts_quickly() -> Iterator[None]:
    """Turn off Java's optimizing compiler, which costs more processor time than it saves here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running_target(tmp_path_factory.mktemp("servers")) as running:
        yield running
