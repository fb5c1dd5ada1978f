"""The pytest plugin. It is loaded on each start of pytest, so it imports nothing until it is used.

Its fixtures are plain functions: they work in sync tests, and under pytest-asyncio, anyio and
pytest-trio in whichever mode.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from cometmq.testing.cluster import Cluster


def _cluster_class() -> type[Cluster]:
    try:
        from cometmq.testing.cluster import Cluster
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("cometmq"):
            raise
        reason = f"a broker needs {error.name}, which the bare SDK leaves out"
        pytest.fail(f"{reason}. Install it with:  pip install 'cometmq[test]'", pytrace=False)
    return Cluster


def _cluster() -> Generator[Cluster]:
    with _cluster_class()() as cluster:
        yield cluster


@pytest.fixture
def rocketmq() -> Generator[Cluster]:
    """A RocketMQ name server and broker in this process, new for each test.
    Connect to rocketmq.nameserver; look with rocketmq.sent(topic, count=1) and dead_letters(group);
    rocketmq.clock.jump(3600) moves the broker's time. More with pytest --fixtures -v.

    Real sockets on free ports, so clients of any language can connect; an empty store. A
    `cometmq.testing.Cluster`:

        def test_refund(rocketmq):
            app = start_my_app(nameserver=rocketmq.nameserver)
            rocketmq.send("orders", b"o-17", delay=3600)
            rocketmq.clock.jump(3600)  # the broker's clock: delays, retries, checks follow
            assert rocketmq.sent("refunds", count=1, timeout=2)[0].body == b"o-17"
            assert not rocketmq.dead_letters("billing")

    In an async test: await rocketmq.aio.sent(...). See rocketmq_module, rocketmq_session and
    rocketmq_factory, too.
    """
    yield from _cluster()


@pytest.fixture(scope="module")
def rocketmq_module() -> Generator[Cluster]:
    """As rocketmq, but one for all tests of a module: use topics of each test's own."""
    yield from _cluster()


@pytest.fixture(scope="session")
def rocketmq_session() -> Generator[Cluster]:
    """As rocketmq, but one for the whole session (with pytest-xdist, for each worker)."""
    yield from _cluster()


@pytest.fixture
def rocketmq_factory() -> Generator[Callable[..., Cluster]]:
    """Makes as many clusters as a test wants, each with its own settings of the broker.

        def test_two(rocketmq_factory):
            here, there = rocketmq_factory(), rocketmq_factory(auto_create_topic_enable=False)

    Settings are those of `cometmq up --set`.
    """
    with ExitStack() as stack:

        def make(**settings: object) -> Cluster:
            return stack.enter_context(_cluster_class()(**settings))

        yield make
