"""The first byte of a connection tells what is not our protocol, before a parser sees any of it.

A frame begins with its length, so its first byte is 0, or 1 for a frame of 16 MiB and more. What
else connects to an open port begins with something else.
"""

from __future__ import annotations

_TLS_HANDSHAKE = 0x16
_KINDS = {
    _TLS_HANDSHAKE: "a TLS handshake, and TLS is not set up here: turn it off in the client",
    ord("P"): "a PROXY protocol preamble: turn it off in the load balancer",
    0x0D: "a PROXY protocol preamble, version 2: turn it off in the load balancer",
    0x15: "an alert of TLS, which is on at the other end only",
    ord("H"): "an HTTP answer: a web server, or a proxy, is there",
    ord("G"): "an HTTP request: this port speaks the RocketMQ remoting protocol",
}


def refusal_of(first: int, frame_size_max: int) -> str | None:
    """Say what a connection is that begins with this byte, or None when it may be ours."""
    if first <= (frame_size_max - 4) >> 24:
        return None
    return f"the connection begins with {_KINDS.get(first, f'the byte {first:#04x}, no frame')}"
