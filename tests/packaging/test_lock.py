"""The lock files pin everything that the distributions require of each other, extras included."""

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).parents[2] / "requirements"


def locked(name: str) -> dict[str, set[str]]:
    """The distributions of a lock file, each with the extras that it is pinned with."""
    pins = re.findall(
        r"^([\w.-]+)(?:\[([^]]*)\])?==", (REQUIREMENTS / name).read_text(), re.MULTILINE
    )
    return {canonicalize_name(pin): set(extras.split(",")) - {""} for pin, extras in pins}


@pytest.mark.parametrize("name", ["dev.txt", "spark.txt"])
def test_each_extra_that_a_distribution_asks_for_is_pinned(name: str) -> None:
    """A pip of 2023 does not take `coverage==1` as a pin of `coverage[toml]`. It takes the newest,
    and so from the day of the next release it refuses it for lack of a hash."""
    lock = locked(name)
    assert lock
    missing: set[str] = set()
    for holder, chosen in lock.items():
        try:
            wanted = [Requirement(line) for line in requires(holder) or []]
        except PackageNotFoundError:  # For another system, or of an extra that isn't installed.
            continue
        for want in wanted:
            contexts = [{"extra": extra} for extra in chosen or {""}]
            if want.marker is None or any(want.marker.evaluate(context) for context in contexts):
                absent = want.extras - lock.get(canonicalize_name(want.name), set())
                missing |= {f"{holder} asks for {want.name}[{extra}]" for extra in absent}
    assert not missing
