"""The errors of sockets and peers, and whose fault each is.

::

    NetError
    ├── AddressError        ours: a text that is not an address
    ├── ListenError         ours: the port is taken, the address is not this machine's, ...
    ├── ConnectError        theirs: nobody listens there, or does not take us in time
    ├── ConnectionLostError theirs: the connection ended while a request of ours was pending
    └── AnswerTimeoutError  theirs: no answer within the time that the caller gave

For errors in the bytes of a peer see `cometmq.proto.errors`.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class NetError(Exception):
    """The root of this tree."""


class AddressError(NetError, ValueError):
    """A text that should be `host:port` is not; the error quotes it."""


class ListenError(NetError):
    """We cannot listen; the error names the address and the port."""


class ConnectError(NetError):
    """No connection was made; the error names the address, and a cause if there is one."""


class ConnectionLostError(NetError):
    """The connection ended before the answer came. The request may have been carried out."""


class AnswerTimeoutError(NetError):
    """The answer did not come in time. The request may have been, or may yet be, carried out."""


def reason_of(error: OSError) -> str:
    """Return the system's words for a failure, which asyncio and trio replace by their own."""
    attempts: Iterable[object] = getattr(error.__cause__, "exceptions", ())
    if causes := [cause for cause in attempts if isinstance(cause, OSError)]:
        return ", ".join(dict.fromkeys(map(reason_of, causes)))
    if error.errno is None or isinstance(error, socket.gaierror | ssl.SSLError):
        # If a peer leaves in the middle of a TLS handshake, asyncio gives no text at all.
        return error.strerror or str(error) or "the connection ended"
    return os.strerror(error.errno)
