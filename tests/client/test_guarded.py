"""Clients of a cluster that uses TLS and answers only signed requests."""

from __future__ import annotations

import asyncio
import base64
import hmac
import random
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import uvloop
from tests.client.running import on_every_loop
from tests.pipeline.guarded import Guarded, guarded, make_certificate

from cometmq.client import Client, ClientConfig, ClientError, SyncClient, UsageError
from cometmq.client._access import access_of
from cometmq.proto.command import Command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from cometmq.testing import Cluster

SECRET = "hush-hush"
RUNNERS: dict[str, Callable[[Callable[[], Awaitable[None]]], object]] = {
    "asyncio": lambda scenario: asyncio.run(_coroutine(scenario)),
    "uvloop": lambda scenario: uvloop.run(_coroutine(scenario)),
    "trio": trio.run,
}


async def _coroutine(scenario: Callable[[], Awaitable[None]]) -> None:
    await scenario()


@pytest.fixture
def there(rocketmq_session: Cluster, certificate: Path) -> Iterator[Guarded]:
    with guarded(rocketmq_session, certificate, SECRET) as found:
        yield found


@on_every_loop
def test_messages_are_sent_and_consumed_in_a_guarded_cluster(there: Guarded, loop: str) -> None:
    topic = f"guarded-{loop}"
    large = random.Random(7).randbytes(300_000)

    async def scenario() -> None:
        async with Client(there.nameserver, there.credentials.client_config()) as mq:
            for body in (b"1", large):
                await mq.send(topic, body, key="k")
            async with mq.consume(topic, group=topic, start="first") as messages:
                found: set[bytes] = set()
                async for message in messages:
                    async with message:
                        found.add(message.body)
                    if found == {b"1", large}:
                        break

    RUNNERS[loop](scenario)
    assert there.codes
    assert there.refused == []


@on_every_loop
def test_who_connects_otherwise_is_told_why(there: Guarded, loop: str, tmp_path: Path) -> None:
    # One attempt only, as the last of many may have no time left to learn the reason.
    given = replace(there.credentials.client_config(), reconnect_delay=60, reconnect_delay_max=60)
    said = {
        replace(given, tls=False, tls_ca=""): "no name server answers",
        replace(given, tls_ca=str(make_certificate(tmp_path))): "certificate verify failed",
        replace(given, secret_key="another-secret"): "16",
        replace(given, tls_ca=""): "",  # The server is not verified.
    }

    for config, why in said.items():

        async def scenario(config: ClientConfig = config) -> None:
            async with Client(there.nameserver, config) as mq:
                await mq.admin.topics()

        with pytest.raises(ClientError, match=why) if why else nullcontext():
            RUNNERS[loop](scenario)


def test_the_client_without_async_gets_in_too(there: Guarded) -> None:
    with SyncClient(there.nameserver, there.credentials.client_config()) as mq:
        assert mq.send("guarded-sync", b"1")
    assert there.refused == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"access_key": "me"}, "secret_key: is missing, but access_key is set"),
        ({"secret_key": SECRET}, "access_key: is missing, but secret_key is set"),
        ({"tls_ca": "ca.pem"}, "tls_ca: needs tls; without it nothing is encrypted"),
        ({"tls": True, "tls_ca": "no-such.pem"}, "tls_ca: no-such.pem: no such file"),
    ],
)
def test_credentials_that_cannot_be_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ClientConfig(**given)


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("none")
    config = ClientConfig(tls=True, tls_ca=str(tmp_path / "ca.pem"))
    with pytest.raises(UsageError, match=r"tls_ca: .*ca\.pem: no PEM certificates in it"):
        access_of(config)


def test_a_secret_is_shown_nowhere() -> None:
    config = ClientConfig(access_key="me", secret_key=SECRET)
    assert SECRET not in repr(config) + repr(Client("127.0.0.1:9876", config))


def test_a_signature_is_that_of_apaches_clients() -> None:
    sign = access_of(ClientConfig(access_key="rocketmq2", secret_key="12345678")).sign
    assert sign is not None
    found = [sign(Command.request(1, {"topic": "T"}, body=body)) for body in (None, b"{}")]
    both = base64.b64encode(hmac.digest(b"12345678", b"rocketmq2T{}", "sha1")).decode()
    signatures = [each.ext_fields["Signature"] for each in found]
    assert signatures == ["msA2HLu5rmWfLoIZzBCi0WKUq2o=", both]
