"""Addresses as people write them: `host:port`, `[::1]:9876`, and lists `a:9876;b:9876`."""

from __future__ import annotations

import ipaddress
import re

from cometmq.net.errors import AddressError
from cometmq.proto.host import Host

PORT_MAX = 65535
_SHOWN_MAX = 80
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_NAME = re.compile(r"[^\s:/\[\]@;,]+")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[^\s\]]+)?", re.ASCII)


def parse_address(text: str, *, default_port: int | None = None) -> Host:
    """Read `host:port`; the host is a name, an IPv4 address or an IPv6 address in brackets.

    The port may be left out if there is a default. An AddressError quotes the text and says what is
    wrong with it. Port 0 is valid: listening on it takes any free port.
    """
    found = text.strip()
    if found.startswith("["):
        host, closed, port = found[1:].partition("]")
        if not closed or not _IPV6.fullmatch(host):
            raise _refuse(text, "has no IPv6 address in its brackets")
        if port and not port.startswith(":"):
            raise _refuse(text, "has something other than a port after the bracket")
        return Host(host, _port(text, port[1:] if port else None, default_port))
    if found.count(":") > 1:
        if "//" in found:
            raise _refuse(text, "is a URL; remove everything before the host")
        raise _refuse(text, "has several colons; put an IPv6 address into brackets: [::1]:9876")
    host, colon, port = found.partition(":")
    if not _NAME.fullmatch(host) or not _is_name(host):
        raise _refuse(
            text, "has no host" if not host else f"has an invalid host, {host[:_SHOWN_MAX]!r}"
        )
    return Host(host, _port(text, port if colon else None, default_port))


def parse_addresses(text: str) -> list[Host]:
    """Read a list, separated by semicolons, in order; a repeated address counts once.

    A semicolon at the end is fine, as for Apache's clients; an empty list is an error.
    """
    items = text.split(";")
    while items and not items[-1].strip():
        items.pop()
    if not items:
        raise _refuse(text, "lists no address")
    return list(dict.fromkeys(map(parse_address, items)))


def exposure(address: str, *, insecure: bool) -> str | None:
    """Return why an address must not be listened on; None if it may.

    As long as there is no authentication, only this machine may connect, unless `insecure`.
    """
    try:
        found = ipaddress.ip_address("127.0.0.1" if address == "localhost" else address)
    except ValueError:
        return f"{address!r} is not a numeric address"
    if found.is_loopback or insecure:
        return None
    return (
        f"others could reach {address}, and there is no authentication yet: use 127.0.0.1, or give"
        " --insecure (insecure = true) if everyone who reaches it may read and write everything"
    )


def _is_name(host: str) -> bool:
    """Whether a name can be looked up; sockets would raise something that is not an OSError."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _port(text: str, port: str | None, default: int | None) -> int:
    if port is None:
        if default is None:
            raise _refuse(text, "has no port")
        return default
    if not _PORT.fullmatch(port) or int(port) > PORT_MAX:
        raise _refuse(
            text, f"has an invalid port, {port!r}: a port is a number from 0 to {PORT_MAX}"
        )
    return int(port)


def _refuse(text: str, problem: str) -> AddressError:
    shown = repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}…"
    return AddressError(f"address {shown} {problem}")
