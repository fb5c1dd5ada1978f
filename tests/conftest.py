"""Settings and fixtures for all tests."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pathlib import Path

# How long one example takes depends more on the machine's other load than on the code.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

# Brokers in separate processes keep their messages and accept new ones, however full the disk is
# that the tests run on.
for name in ("FORCE", "MAX"):
    os.environ.setdefault(f"COMETMQ_DISK_USED_PERCENT_{name}", "100")


def pytest_collection_finish() -> None:
    """Exempt the thousands of collected tests from the garbage collections during each test."""
    gc.freeze()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate of the fronts that guard clusters, with its key in the same file."""
    from tests.pipeline.guarded import make_certificate  # Only a few tests need it.

    return make_certificate(tmp_path_factory.mktemp("certificate"))
