"""The SDK and the pipeline against a live Apache RocketMQ 5.5.0 that serves TLS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.client.consuming import take
from tests.client.running import on_loop
from tests.interop.apache_broker import ApacheBroker
from tests.pipeline.guarded import make_certificate

from cometmq.client import Client, ClientConfig, NetworkError

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.slow

TOPIC = "by-tls"


@dataclass
class Served:
    nameserver: str
    by_tls: ClientConfig
    mode: str


@pytest.fixture(scope="module", params=["enforcing", "permissive"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("apache")
    certificate = make_certificate(folder, "127.0.0.1")
    key = folder / "key.pem"
    (folder / "tls.properties").write_text(
        f"tls.server.certPath={certificate}\ntls.server.keyPath={key}\n"
        "tls.server.need.client.auth=none\ntls.server.authClient=false\n"
    )
    settings = {
        "tls.server.mode": request.param,
        "tls.test.mode.enable": "false",
        "tls.config.file": folder / "tls.properties",
    }
    with pytest.MonkeyPatch.context() as patched:
        options = " ".join(f"-D{name}={value}" for name, value in settings.items())
        patched.setenv("JAVA_TOOL_OPTIONS", options)
        by_tls = ClientConfig(timeout=15, tls=True, tls_ca=str(certificate))
        with ApacheBroker(folder, {}, known_by=by_tls) as broker:
            yield Served(broker.nameserver, by_tls, request.param)


def test_what_is_sent_by_tls_is_consumed_by_tls(served: Served) -> None:
    async def scenario() -> None:
        async with Client(served.nameserver, served.by_tls) as mq:
            await mq.admin.create_topic(TOPIC, queues=2)
            for index in range(10):
                await mq.send(TOPIC, b"%d" % index)
            async with mq.consume(TOPIC, group="tls-group", start="first") as consumer:
                assert sorted(await take(consumer, 10)) == [b"%d" % index for index in range(10)]

    on_loop("asyncio", scenario)


def test_who_does_not_speak_it_is_let_in_as_the_mode_says(served: Served) -> None:
    async def scenario() -> None:
        async with Client(served.nameserver, ClientConfig(timeout=3)) as mq:
            await mq.admin.brokers()

    if served.mode == "permissive":
        on_loop("asyncio", scenario)
    else:
        with pytest.raises(NetworkError):
            on_loop("asyncio", scenario)


def test_the_pipeline_reads_and_writes_by_tls(served: Served) -> None:
    pytest.importorskip("pyarrow", reason="the extra cometmq[spark] is not installed")
    from tests.interop.test_pipeline_apache import read, rows, write

    from cometmq.pipeline.cluster import Cluster
    from cometmq.pipeline.wire import Settings

    settings = Settings(timeout=15.0, tls=True, tls_ca=served.by_tls.tls_ca)
    cluster = Cluster([served.nameserver], settings)
    bodies = write(cluster, "spark-by-tls", rows(50))
    assert sorted(read(cluster, "spark-by-tls", 50)) == sorted(bodies)
