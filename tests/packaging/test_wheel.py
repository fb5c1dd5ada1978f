"""The built wheel, installed into a clean environment once for each extra, and used there.

And the sdist, which an installer without wheels takes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

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
    """Run a command; its output, after checking its exit status."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == expected, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from that."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, REPOSITORY)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def pins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lock files as constraints: the same versions, without hashes, which a wheel has not, and
    without extras, which a constraint may not have."""
    text = "".join(
        (REPOSITORY / "requirements" / name).read_text() for name in ("dev.txt", "spark.txt")
    )
    named = {line.removesuffix(" \\") for line in text.splitlines() if "==" in line}
    lines = sorted({re.sub(r"^([\w.-]+)\[[^]]*\]", r"\1", line) for line in named})
    path = tmp_path_factory.mktemp("pins") / "pins.txt"
    path.write_text("\n".join(line for line in lines if re.match(r"[a-z]", line)))
    return path


def installed(wheel: Path, pins: Path, extra: str, folder: Path) -> Path:
    """A new environment with the wheel and one extra in it; its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", pins, what)
    run(python, "-m", "pip", "check")
    return python


@pytest.mark.slow
def test_the_wheel_holds_every_package_typed_and_nothing_else(wheel: Path) -> None:
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    held = [name for name in names if name.parts[0] == "cometmq"]
    assert {name.parts[1] for name in held} == PACKAGES
    assert {name.parts[1] for name in held if name.name == "py.typed"} == PACKAGES
    others = {name.parts[0] for name in names if name not in held}
    # Spark looks for sources in packages whose name begins in that way.
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
def test_the_sdist_installs(dist: Path, pins: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    python = installed(sdist, pins, "", tmp_path / "env")
    run(python, "-c", USE_THE_PROTOCOL)


@pytest.mark.slow
def test_the_bare_install_is_the_sdk_and_its_command_says_what_to_install(
    wheel: Path, pins: Path, tmp_path: Path
) -> None:
    python = installed(wheel, pins, "", tmp_path / "env")
    run(python, "-c", USE_THE_PROTOCOL)
    shown = run(python.parent / "cometmq", "--help", expected=1)
    assert "pip install 'cometmq[broker]'" in shown
    assert "Traceback" not in shown


@pytest.mark.slow
def test_the_broker_extra_brings_the_daemons_and_the_command_line(
    wheel: Path, pins: Path, tmp_path: Path
) -> None:
    python = installed(wheel, pins, "broker", tmp_path / "env")
    run(python, "-c", USE_THE_PROTOCOL)
    run(python, "-c", USE_THE_STORE, tmp_path)
    assert "cometmq, version" in run(python.parent / "cometmq", "--version")


@pytest.mark.slow
def test_the_test_extra_brings_the_broker_for_the_fixture(
    wheel: Path, pins: Path, tmp_path: Path
) -> None:
    python = installed(wheel, pins, "test", tmp_path / "env")
    run(python, "-c", USE_THE_FIXTURE)
    run(python, "-c", USE_THE_STORE, tmp_path)
    tests = tmp_path / "project"
    tests.mkdir()
    (tests / "test_three_lines.py").write_text(THREE_LINES)
    assert "1 passed" in run(python, "-m", "pytest", tests)
    plugins = ["pytest-asyncio", "pytest-trio", "pytest-xdist"]
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", pins, *plugins)
    (tests / "test_async.py").write_text(ASYNC_TESTS)
    (tests / "test_beside.py").write_text(THREE_LINES)
    assert "4 passed" in run(python, "-m", "pytest", "-n", "3", tests)


@pytest.mark.slow
def test_the_spark_extra_brings_spark(wheel: Path, pins: Path, tmp_path: Path) -> None:
    python = installed(wheel, pins, "spark", tmp_path / "env")
    run(python, "-c", USE_THE_PROTOCOL)
    run(python, "-c", USE_SPARK)


@pytest.mark.slow
def test_the_all_extra_brings_everything(wheel: Path, pins: Path, tmp_path: Path) -> None:
    python = installed(wheel, pins, "all", tmp_path / "env")
    run(python, "-c", USE_THE_STORE, tmp_path)
    run(python, "-c", USE_SPARK)
    run(python, "-c", USE_THE_FIXTURE)
