"""Recognition of foreign protocols by the first byte of a connection, before any parsing.

A frame begins with its length, so its first byte is 0, or 1 for a frame of 16 MiB and more. Other
protocols that connect to an open port begin with another byte.
"""

from __future__ import annotations

_TLS_HANDSHAKE = 0x16
_KINDS = {
    _TLS_HANDSHAKE: "a TLS handshake, and TLS is not set up here: turn it off in the client",
    ord("P"): "a PROXY protocol preamble: turn it off in the load balancer",
    0x0D: "a PROXY protocol preamble, version 2: turn it off in the load balancer",
    0x15: "a TLS alert: only the other end uses TLS",
    ord("H"): "an HTTP answer: a web server or a proxy listens there",
    ord("G"): "an HTTP request: this port speaks the RocketMQ remoting protocol",
}


def refusal_of(first: int, frame_size_max: int) -> str | None:
    """Describe a connection that begins with this byte; None if it may be our protocol."""
    if first <= (frame_size_max - 4) >> 24:
        return None
    return f"the connection begins with {_KINDS.get(first, f'the byte {first:#04x}, not a frame')}"
