"""The built wheel is installed into a clean environment for each extra, and works there.

So does the sdist, which an installer without wheels takes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
PACKAGES = {
    "admin", "broker", "client", "nameserver", "net", "pipeline", "proto", "store", "testing",
}  # fmt: skip

USE_THE_PROTOCOL = """
from importlib.metadata import version
import cometmq.proto, cometmq.client, cometmq.net
assert version("cometmq")
"""
USE_THE_STORE = """
import sys
from cometmq.store.disk.filesystem import RealFileSystem
disk = RealFileSystem()
file = disk.open(sys.argv[1] + "/segment", create=True)
file.allocate(4096); file.write(b"stored", 0); file.sync()
assert bytes(file.map().view[:6]) == b"stored"
import cometmq.broker, cometmq.nameserver
import lark, lz4.frame, numpy, prometheus_client, trio, zstandard
"""
USE_SPARK = "import cometmq.pipeline, google.protobuf, pandas, pyarrow, pyspark"
USE_THE_FIXTURE = "import cometmq.testing, pytest"
THREE_LINES = """
def test_a_refund(rocketmq):
    rocketmq.send("orders", b"o-17", delay=3600)
    rocketmq.clock.jump(3600)
    assert rocketmq.sent("orders", count=1, timeout=5)[0].body == b"o-17"
"""
ASYNC_TESTS = """
import pytest
from cometmq.client import Client

async def scenario(rocketmq):
    async with Client(rocketmq.nameserver) as mq:
        await mq.send("orders", b"o-17")
    assert len(await rocketmq.aio.sent("orders", count=1)) == 1

@pytest.mark.asyncio
async def test_with_pytest_asyncio(rocketmq):
    await scenario(rocketmq)

@pytest.mark.trio
async def test_with_pytest_trio(rocketmq):
    await scenario(rocketmq)
"""


def run(*command: str | Path, expected: int = 0) -> str:
    """Run a command, check its exit status and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == expected, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, REPOSITORY)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("*.whl")
    return built


def wanted_by_extras(wheel: Path) -> dict[str, set[tuple[str, str]]]:
    """Return the requirements of each extra, with the environment markers under which they hold."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = archive.read(path).decode()
    line = r"^Requires-Dist: (.+); (?:\((.+)\) and )?extra == '(\w+)'$"
    found: dict[str, set[tuple[str, str]]] = {}
    for name, where, extra in re.findall(line, metadata, re.MULTILINE):
        found.setdefault(extra, set()).add((name, where))
    return found


class Installer(NamedTuple):
    """Makes environments that share one pip: installing pip takes longer than most extras."""

    pip: Path
    """The interpreter that has pip."""
    pins: Path
    """The lock files as constraints: the same versions without the hashes, which our wheel does not
    have, and without the extras, which constraints must not have."""

    def environment(self, folder: Path, what: str) -> Path:
        """Make an environment with this installed and return its interpreter."""
        venv.create(folder)
        python = folder / "bin" / "python"
        self.install(python, what)
        return python

    def install(self, python: Path, *what: str) -> None:
        pip = (self.pip, "-m", "pip", "--python", python, "--disable-pip-version-check")
        run(*pip, "install", "-q", "-c", self.pins, *what)
        run(*pip, "check")


@pytest.fixture(scope="module")
def installer(tmp_path_factory: pytest.TempPathFactory) -> Installer:
    text = "".join(
        (REPOSITORY / "requirements" / name).read_text() for name in ("dev.txt", "spark.txt")
    )
    named = {line.removesuffix(" \\") for line in text.splitlines() if "==" in line}
    lines = sorted({re.sub(r"^([\w.-]+)\[[^]]*\]", r"\1", line) for line in named})
    folder = tmp_path_factory.mktemp("installer")
    pins = folder / "pins.txt"
    pins.write_text("\n".join(line for line in lines if re.match(r"[a-z]", line)))
    venv.create(folder / "pip", with_pip=True)
    return Installer(folder / "pip" / "bin" / "python", pins)


@pytest.fixture(scope="module")
def with_spark(wheel: Path, installer: Installer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installer.environment(tmp_path_factory.mktemp("spark") / "env", f"{wheel}[spark]")


@pytest.mark.slow
def test_the_wheel_holds_every_package_typed_and_nothing_else(wheel: Path) -> None:
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    held = [name for name in names if name.parts[0] == "cometmq"]
    assert {name.parts[1] for name in held} == PACKAGES
    assert {name.parts[1] for name in held if name.name == "py.typed"} == PACKAGES
    others = {name.parts[0] for name in names if name not in held}
    # Spark looks for data sources in packages whose names begin like this.
    found = {name for name in others if not name.endswith(".dist-info")}
    assert found == {"pyspark_cometmq", "pyspark_cometmq_store"}
    assert Path("cometmq/__init__.py") not in names


@pytest.mark.slow
def test_the_sdist_holds_what_is_tracked_and_nothing_else(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {Path(*Path(name).parts[1:]).as_posix() for name in archive.getnames()}
    tracked = run("git", "-C", REPOSITORY, "ls-files").splitlines()
    assert set(tracked) - held == set()
    assert held - set(tracked) == {"PKG-INFO"}


@pytest.mark.slow
def test_the_sdist_installs(dist: Path, installer: Installer, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    python = installer.environment(tmp_path / "env", str(sdist))
    run(python, "-c", USE_THE_PROTOCOL)


@pytest.mark.slow
def test_the_bare_install_is_the_sdk_and_its_command_says_what_to_install(
    wheel: Path, installer: Installer, tmp_path: Path
) -> None:
    python = installer.environment(tmp_path / "env", str(wheel))
    run(python, "-c", USE_THE_PROTOCOL)
    shown = run(python.parent / "cometmq", "--help", expected=1)
    assert "pip install 'cometmq[broker]'" in shown
    assert "Traceback" not in shown


@pytest.mark.slow
def test_the_broker_extra_brings_the_daemons_and_the_command_line(
    wheel: Path, installer: Installer, tmp_path: Path
) -> None:
    python = installer.environment(tmp_path / "env", f"{wheel}[broker]")
    run(python, "-c", USE_THE_PROTOCOL)
    run(python, "-c", USE_THE_STORE, tmp_path)
    assert "cometmq, version" in run(python.parent / "cometmq", "--version")


@pytest.mark.slow
def test_the_test_extra_brings_the_broker_for_the_fixture(
    wheel: Path, installer: Installer, tmp_path: Path
) -> None:
    python = installer.environment(tmp_path / "env", f"{wheel}[test]")
    run(python, "-c", USE_THE_FIXTURE)
    run(python, "-c", USE_THE_STORE, tmp_path)
    tests = tmp_path / "project"
    tests.mkdir()
    (tests / "test_three_lines.py").write_text(THREE_LINES)
    assert "1 passed" in run(python, "-m", "pytest", tests)
    installer.install(python, "pytest-asyncio", "pytest-trio", "pytest-xdist")
    (tests / "test_async.py").write_text(ASYNC_TESTS)
    (tests / "test_beside.py").write_text(THREE_LINES)
    assert "4 passed" in run(python, "-m", "pytest", "-n", "3", tests)


@pytest.mark.slow
def test_the_spark_extra_brings_spark(with_spark: Path) -> None:
    run(with_spark, "-c", USE_THE_PROTOCOL)
    run(with_spark, "-c", USE_SPARK)


@pytest.mark.slow
def test_the_all_extra_is_the_others_and_they_go_together(
    wheel: Path, installer: Installer, with_spark: Path, tmp_path: Path
) -> None:
    wanted = wanted_by_extras(wheel)
    assert wanted["all"] == set().union(
        *(wanted[each] for each in ("broker", "delta", "iceberg", "otel", "spark", "test"))
    )
    python = with_spark  # Installing Spark takes longer than all other extras together.
    installer.install(python, f"{wheel}[all]")
    run(python, "-c", USE_THE_STORE, tmp_path)
    run(python, "-c", USE_SPARK)
    run(python, "-c", USE_THE_FIXTURE)
