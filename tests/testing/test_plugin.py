"""The pytest plugin in a separate pytest: its scopes, and the kinds of tests that it serves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

EVERY_KIND = """
    import pytest
    from cometmq.client import Client

    def test_sync(rocketmq):
        rocketmq.send("orders", b"x", delay=3600)
        rocketmq.clock.jump(3600)
        assert rocketmq.sent("orders", count=1, timeout=2)[0].body == b"x"

    async def scenario(rocketmq):
        async with Client(rocketmq.nameserver) as mq:
            await mq.send("orders", b"x")
        assert len(await rocketmq.aio.sent("orders", count=1)) == 1

    @pytest.mark.anyio
    @pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
    async def test_anyio(rocketmq, anyio_backend):
        await scenario(rocketmq)

    @pytest.mark.trio
    async def test_trio(rocketmq):
        await scenario(rocketmq)

    def test_factory(rocketmq_factory):
        here, there = rocketmq_factory(), rocketmq_factory()
        here.send("orders", b"x")
        assert here.sent("orders", count=1) and not there.sent("orders")
"""
OF_PYTEST_ASYNCIO = """
    import asyncio

    import pytest
    from cometmq.client import Client

    @pytest.mark.asyncio
    async def test_a_cluster_of_the_test(rocketmq):
        async with Client(rocketmq.nameserver) as mq:
            await asyncio.gather(*(mq.send("orders", b"x", delay=3600) for _ in range(3)))
        rocketmq.clock.jump(3600)
        assert len(await rocketmq.aio.sent("orders", count=3)) == 3

    @pytest.mark.asyncio
    async def test_one_of_the_session(rocketmq_session, rocketmq_module):
        await rocketmq_session.aio.send("orders", b"x")
        assert len(await rocketmq_session.aio.sent("orders", count=1)) == 1
        assert not await rocketmq_module.aio.sent("orders")
"""
SCOPES = """
    def test_first(rocketmq_module, rocketmq_session, rocketmq):
        assert len({rocketmq_module.broker, rocketmq_session.broker, rocketmq.broker}) == 3
        rocketmq_module.send("orders", b"x")
        rocketmq.send("orders", b"x")

    def test_second(rocketmq_module, rocketmq_session, rocketmq):
        assert len(rocketmq_module.sent("orders")) == 1
        assert not rocketmq.sent("orders")
        rocketmq_session.send("orders", b"x")
"""
ANOTHER_MODULE = """
    def test_third(rocketmq_module, rocketmq_session):
        assert not rocketmq_module.sent("orders")
        assert len(rocketmq_session.sent("orders")) == 1
"""
NOTHING_HEAVY = """
    import sys

    def test_nothing_of_ours_is_loaded_but_the_plugin():
        assert {name for name in sys.modules if name.startswith("cometmq")} <= {
            "cometmq", "cometmq.testing", "cometmq.testing.plugin"
        }
"""
SIDE_BY_SIDE = """
    import os
    import time
    from pathlib import Path

    import pytest

    @pytest.mark.parametrize("number", range(6))
    def test_a_cluster_is_its_tests_own(number, rocketmq, rocketmq_session):
        worker = os.environ["PYTEST_XDIST_WORKER"]
        Path(f"{worker}-{number}.txt").write_text(f"{rocketmq_session.broker} {rocketmq.broker}")
        deadline = time.monotonic() + 30
        while len({each.name.split("-")[0] for each in Path().glob("gw*.txt")}) < 2:
            assert time.monotonic() < deadline, "the other worker has no cluster"
        body = f"{worker} {number}".encode()
        rocketmq.send("orders", body, delay=3600)
        rocketmq_session.send("orders", body)
        rocketmq.clock.jump(3600)
        assert [each.body for each in rocketmq.sent("orders", count=1)] == [body]
        of_worker = [each.body.decode() for each in rocketmq_session.sent("orders", count=1)]
        assert {each.split()[0] for each in of_worker} == {worker}
"""
FAILING = """
    def test_waits_in_vain(rocketmq):
        rocketmq.sent("orders", count=1, timeout=0.01)
"""
WITHOUT_THE_EXTRA = """
    import sys

    sys.modules["trio"] = None
"""
BOTH_WAYS = """
    def test_one(rocketmq): ...

    def test_another(rocketmq_factory):
        rocketmq_factory()
"""


def pytest_in(folder: Path, *options: str, **modules: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on these modules without any settings, as in a user's project."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(dedent(text))
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider"]
    # pytest-asyncio warns if its setting is missing.
    command += ["-p", "no:asyncio", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_it_serves_sync_asyncio_and_trio_tests_without_a_setting(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, test_kinds=EVERY_KIND)
    assert "5 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_it_serves_tests_of_pytest_asyncio_in_either_mode(mode: str, tmp_path: Path) -> None:
    options = ["-p", "asyncio", f"--asyncio-mode={mode}"]
    options += ["-o", "asyncio_default_fixture_loop_scope=function"]
    text = OF_PYTEST_ASYNCIO
    if mode == "auto":
        text = text.replace("    @pytest.mark.asyncio\n", "")
    done = pytest_in(tmp_path, *options, test_asyncio=text)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_where_only_the_sdk_is_installed_a_line_says_what_to_install(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, conftest=WITHOUT_THE_EXTRA, test_both=BOTH_WAYS)
    assert "1 failed, 1 error" in done.stdout, done.stdout + done.stderr
    told = "a broker needs trio, which the bare SDK leaves out. Install it with:  pip install"
    assert len(re.findall(rf"^{told} 'cometmq\[test\]'$", done.stdout, re.MULTILINE)) == 2
    assert "Traceback" not in done.stdout
    assert "import trio" not in done.stdout


def test_scopes_are_what_they_say(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, test_a=SCOPES, test_b=ANOTHER_MODULE)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_each_worker_of_xdist_has_clusters_of_its_own(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "-n", "2", test_parallel=SIDE_BY_SIDE)
    assert "6 passed" in done.stdout, done.stdout + done.stderr
    of_session: dict[str, set[str]] = {}
    of_tests: list[str] = []
    for file in tmp_path.glob("gw*.txt"):
        session, own = file.read_text().split()
        of_session.setdefault(file.name.split("-")[0], set()).add(session)
        of_tests.append(own)
    assert sorted(of_session) == ["gw0", "gw1"]
    assert [len(each) for each in of_session.values()] == [1, 1]
    assert not of_session["gw0"] & of_session["gw1"]
    assert len(of_tests) == 6


def test_until_a_fixture_is_used_nothing_is_imported(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, test_light=NOTHING_HEAVY)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_tests_that_the_page_shows_pass(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    tests = [each for each in examples if "def test_" in each]
    modules = {f"test_{number}": each for number, each in enumerate(tests)}
    done = pytest_in(tmp_path, **modules)
    assert f"{len(tests) + 1} passed" in done.stdout, done.stdout  # One runs on two loops.


def test_a_wait_in_vain_is_shown_as_a_failed_assertion(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, test_failing=FAILING)
    assert "MissingMessagesError: orders: 0 of 1 messages within 0.01 s" in done.stdout
    assert "1 failed" in done.stdout


def test_pytest_lists_the_fixtures_with_what_they_are(tmp_path: Path) -> None:
    shown = pytest_in(tmp_path, "--fixtures", "-v").stdout
    for name in (
        "rocketmq ",
        "rocketmq_module [module scope]",
        "rocketmq_session [session scope]",
        "rocketmq_factory ",
    ):
        assert f"\n{name}" in shown
    assert "A RocketMQ name server and broker in this process, new for each test." in shown
    assert "rocketmq.clock.jump(3600)  # the broker's clock" in shown
