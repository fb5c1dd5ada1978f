"""The pytest plugin. Each start of pytest loads it, so it imports nothing until it is used.

Its fixtures are plain functions: they work in sync tests and, in any mode, under pytest-asyncio,
anyio and pytest-trio.
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
    Connect to rocketmq.nameserver; check with rocketmq.sent(topic, count=1) and
    dead_letters(group); rocketmq.clock.jump(3600) moves the broker's time. More with
    pytest --fixtures -v.

    It has an empty store and real sockets on free ports, so clients in any language can connect. It
    is a `cometmq.testing.Cluster`:

        def test_refund(rocketmq):
            app = start_my_app(nameserver=rocketmq.nameserver)
            rocketmq.send("orders", b"o-17", delay=3600)
            rocketmq.clock.jump(3600)  # the broker's clock: delays, retries, checks follow
            assert rocketmq.sent("refunds", count=1, timeout=2)[0].body == b"o-17"
            assert not rocketmq.dead_letters("billing")

    In an async test: await rocketmq.aio.sent(...). See also rocketmq_module, rocketmq_session and
    rocketmq_factory.
    """
    yield from _cluster()


@pytest.fixture(scope="module")
def rocketmq_module() -> Generator[Cluster]:
    """Like rocketmq, but shared by all tests of a module: use different topics in each test."""
    yield from _cluster()


@pytest.fixture(scope="session")
def rocketmq_session() -> Generator[Cluster]:
    """Like rocketmq, but shared by the whole session (with pytest-xdist, by each worker)."""
    yield from _cluster()


@pytest.fixture
def rocketmq_factory() -> Generator[Callable[..., Cluster]]:
    """A factory that starts any number of clusters, each with its own broker settings.

        def test_two(rocketmq_factory):
            here, there = rocketmq_factory(), rocketmq_factory(auto_create_topic_enable=False)

    The settings are those of `cometmq up --set`.
    """
    with ExitStack() as stack:

        def make(**settings: object) -> Cluster:
            return stack.enter_context(_cluster_class()(**settings))

        yield make
