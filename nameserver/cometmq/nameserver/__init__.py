"""The name server: it knows which brokers serve which topic."""

from __future__ import annotations

from cometmq.nameserver.config import NameServerConfig, configured
from cometmq.nameserver.errors import ConfigError, NameServerError, RequestError
from cometmq.nameserver.nameserver import NameServer

__all__ = [
    "ConfigError",
    "NameServer",
    "NameServerConfig",
    "NameServerError",
    "RequestError",
    "configured",
]
