"""The settings of a client: a frozen dataclass; each field has a default, a unit and a reason."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.client._core.checking import check_seconds, check_whole
from cometmq.client._core.names import check_group, check_namespace
from cometmq.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.client.hooks import Hook

_KIB = 1024
_MIB = 1024 * _KIB
_LEAST: Final = {"attempts": 1, "queues": 1, "bytes": 0}
"""The minimum of a setting, by its unit."""


def _setting(default: Any, unit: str, reason: str) -> Any:
    metadata = {"unit": unit, "reason": reason}
    return field(default=default, repr=unit != "secret", metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The settings of a client. Defaults are those of Apache's Java client where it has them.

    ::

        mq = Client("127.0.0.1:9876", ClientConfig(timeout=10, producer_group="billing"))

    Times are in seconds. A wrong value raises a `UsageError` that names the setting.
    """

    timeout: float = _setting(
        3.0, "seconds", "the deadline of a call with all its retries, unless the call gives its own"
    )
    connect_timeout: float = _setting(3.0, "seconds", "of one attempt to connect")
    send_attempts: int = _setting(3, "attempts", "of a send; failures to connect do not count")
    idempotent: bool = _setting(
        True, "flag", "CometMQ's brokers store a message once, however often it must be sent"
    )
    producer_group: str = _setting(
        "cometmq-client", "name", "under which brokers list this producer"
    )
    namespace: str = _setting(
        "", "name", "put before topics and groups as Java's clients do: namespace%topic"
    )
    instance: str = _setting(
        "", "name", "a part of the client's id; if empty, made up and unique for each client"
    )
    body_size_max: int = _setting(4 * _MIB, "bytes", "of a body, or a batch: Apache's default")
    inflated_size_max: int = _setting(
        64 * _MIB, "bytes", "of a received body after decompression, against bombs"
    )
    compress_from: int = _setting(
        4 * _KIB, "bytes", "a larger body is compressed with zlib, if it gets smaller; 0 is never"
    )
    template_queue_count: int = _setting(
        4, "queues", "of a topic that the first send to it creates"
    )
    avoid_slow_brokers: bool = _setting(
        True, "flag", "leave a broker alone for a while after it failed or was slow"
    )
    route_interval: float = _setting(30.0, "seconds", "between looks for changed routes")
    heartbeat_interval: float = _setting(30.0, "seconds", "brokers forget a client after 120 s")
    reconnect_delay: float = _setting(
        0.1, "seconds", "before the second attempt to connect; doubled for each that follows"
    )
    reconnect_delay_max: float = _setting(
        5.0, "seconds", "the most that reconnect_delay is doubled to"
    )
    offer_messagepack: bool = _setting(
        True, "flag", "CometMQ's servers accept the shorter header; Apache's ignore the offer"
    )
    access_key: str = _setting(
        "", "name", "whose signature requests carry, for Apache's clusters that require one"
    )
    secret_key: str = _setting("", "secret", "that signs; it is shown nowhere")
    tls: bool = _setting(False, "flag", "connect by TLS")
    tls_ca: str = _setting(
        "", "path", "of certificates to trust, as PEM; without any, servers are not verified"
    )
    redelivery_delay: float = _setting(
        5.0, "seconds", "until a message that failed and cannot be sent back is delivered again"
    )
    broadcast_folder: str = _setting(
        "", "path", "where broadcast consumers keep their offsets; empty is ~/.rocketmq_offsets"
    )

    trace: bool = _setting(
        False, "flag", "write what is sent and consumed into RMQ_SYS_TRACE_TOPIC, as Java's does"
    )
    hooks: Sequence[Hook] = _setting(
        (), "hooks", "told of each message sent and consumed: OpenTelemetry's, or your own"
    )

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        check_group(self.producer_group, "producer_group")
        check_namespace(self.namespace)
        self._check_access()
        for each in fields(self):
            value = getattr(self, each.name)
            if each.metadata["unit"] == "seconds":
                check_seconds(each.name, value, above_zero=True)
            elif (least := _LEAST.get(each.metadata["unit"])) is not None:
                check_whole(each.name, value, least)

    def _check_access(self) -> None:
        for one, other in (("access_key", "secret_key"), ("secret_key", "access_key")):
            if getattr(self, one) and not getattr(self, other):
                raise UsageError(f"{other}: is missing, but {one} is set")
        if self.tls and self.tls_ca and not Path(self.tls_ca).is_file():
            raise UsageError(f"tls_ca: {self.tls_ca}: no such file")
        if self.tls_ca and not self.tls:
            raise UsageError("tls_ca: needs tls; without it nothing is encrypted or verified")


def local_address() -> str:
    """Find the address under which others see this machine, without sending anything."""
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                address: str = probe.getsockname()[0]
                return address
        except OSError:
            continue
    return "127.0.0.1"


def default_nameservers() -> str:
    """Return the name servers of the environment, as Apache's clients do."""
    found = os.environ.get("NAMESRV_ADDR", "")
    if not found:
        raise UsageError(
            'no name server: give one, Client("127.0.0.1:9876"), or set NAMESRV_ADDR=host:port'
        )
    return found
