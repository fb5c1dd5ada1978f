"""How a client gets into a guarded cluster: signed requests and TLS connections.

The signature is Apache's: HMAC-SHA1 of the values of a request's fields, in the order of their
names, and of its body. Whoever checks it sees the fields as texts, so signed requests keep to the
JSON header.
"""

from __future__ import annotations

import base64
import hmac
import ssl
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from cometmq.client.errors import UsageError
from cometmq.net.errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.client.config import ClientConfig
    from cometmq.proto.command import Command


class Access(NamedTuple):
    """What each connection of a client needs: TLS and signatures."""

    offer_messagepack: bool
    sign: Callable[[Command], Command] | None
    """Returns a request with its signature."""
    tls: ssl.SSLContext | None


def access_of(config: ClientConfig) -> Access:
    """Read the certificates, and keep the secret."""
    return Access(
        config.offer_messagepack and not config.access_key,
        _signing(config.access_key, config.secret_key) if config.access_key else None,
        _tls(config.tls_ca) if config.tls else None,
    )


def _signing(access_key: str, secret_key: str) -> Callable[[Command], Command]:
    def sign(request: Command) -> Command:
        named = {**(request.extras or {}), "AccessKey": access_key}
        fields = request.ext_fields | named
        mac = hmac.new(secret_key.encode(), digestmod="sha1")
        for name in sorted(fields):
            mac.update(fields[name].encode())
        for part in (request.body, *request.parts):
            if part is not None:
                mac.update(part)
        signature = base64.b64encode(mac.digest()).decode()
        return replace(request, extras={**named, "Signature": signature})

    return sign


def _tls(trusted: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=trusted or None)
    except OSError as error:  # Includes the errors of ssl.
        raise UsageError(
            f"tls_ca: {trusted}: no PEM certificates in it: {reason_of(error)}"
        ) from None
    if not trusted:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
