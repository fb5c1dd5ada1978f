"""What holds for all tests."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pathlib import Path

# How long one example takes says more about what else the machine does than about the code.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

# However full the disk is that the tests run on, brokers in processes of their own keep what they
# are given, and take more.
for name in ("FORCE", "MAX"):
    os.environ.setdefault(f"COMETMQ_DISK_USED_PERCENT_{name}", "100")


def pytest_collection_finish() -> None:
    """Have the garbage collections of a test look at what is its own, not at thousands of tests."""
    gc.freeze()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the fronts that guard clusters, with its key in the same file."""
    from tests.pipeline.guarded import make_certificate  # Of few tests alone.

    return make_certificate(tmp_path_factory.mktemp("certificate"))
