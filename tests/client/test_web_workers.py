"""`SyncClient` in Flask, in Django and in plain WSGI: forked workers, a thread for each request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Generator

PATIENCE_SECONDS = 60
WORKERS = 3


class Site:
    """The running application, for requests to it."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self.cluster = cluster
        self._port = port

    def get(self, path: str) -> str:
        """Return the text of a page, even an error page."""
        address = f"http://127.0.0.1:{self._port}/{path}"
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()

    def get_all(self, paths: list[str]) -> list[str]:
        """Return the texts of pages, requested sixteen at a time."""
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(self.get, paths))


@contextmanager
def running(cluster: Cluster, framework: str) -> Generator[Site]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.client.web_program"]
    command += [cluster.nameserver, str(WORKERS), framework]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield Site(cluster, int(process.stdout.readline()))
            process.stdin.close()
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            with suppress(ProcessLookupError):  # This includes any workers that it left.
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module", params=["plain", "flask", "django"])
def site(request: pytest.FixtureRequest) -> Generator[Site]:
    with Cluster() as cluster:
        cluster.admin.create_topic("orders", queues=4)
        cluster.admin.create_topic("noise", queues=4)
        with running(cluster, request.param) as found:
            yield found


def test_requests_send_from_many_workers_and_threads(site: Site) -> None:
    bodies = [f"sent-{number}" for number in range(300)]
    answers = [each.split() for each in site.get_all([f"send/{body}" for body in bodies])]
    assert len({worker for worker, _ in answers}) >= 2
    assert len({message_id for _, message_id in answers}) == len(bodies)
    found = [each.body.decode() for each in site.cluster.sent("orders", count=len(bodies))]
    assert sorted(each for each in found if each.startswith("sent-")) == sorted(bodies)


def test_a_request_may_fork_and_its_child_sends(site: Site) -> None:
    bodies = [f"forked-{number}" for number in range(8)]
    assert site.get_all([f"fork/{body}" for body in bodies]) == ["0"] * 8
    found = [each.body.decode() for each in site.cluster.sent("orders", count=len(bodies))]
    assert sorted(each for each in found if each.startswith("forked-")) == sorted(bodies)


def test_a_worker_consumes_with_a_consumer_of_its_own_and_not_with_the_parents(site: Site) -> None:
    site.cluster.send("orders", b"to-take")
    assert "made before a fork: make another one in the child" in site.get("take-as-the-parent")
    assert site.get("take/shipping")
