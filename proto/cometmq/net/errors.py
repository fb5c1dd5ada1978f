"""What can go wrong with sockets and peers, and whose fault it is.

::

    NetError
    ├── AddressError        ours: a text that is no address
    ├── ListenError         ours: the port is taken, the address is not this machine's, ...
    ├── ConnectError        theirs: nobody listens there, or does not take us in time
    ├── ConnectionLostError theirs: the connection ended while a request of ours was pending
    └── AnswerTimeoutError  theirs: no answer within the time that the caller gave

What a peer's bytes can be wrong about is `cometmq.proto.errors`.
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
    """No connection came about; the error names the address, and a cause where there is one."""


class ConnectionLostError(NetError):
    """The connection ended before the answer came. The request may have been carried out."""


class AnswerTimeoutError(NetError):
    """The answer did not come in time. The request may have been, or may yet be, carried out."""


def reason_of(error: OSError) -> str:
    """Say in the system's words what failed; asyncio and trio hide them behind their own."""
    attempts: Iterable[object] = getattr(error.__cause__, "exceptions", ())
    if causes := [cause for cause in attempts if isinstance(cause, OSError)]:
        return ", ".join(dict.fromkeys(map(reason_of, causes)))
    if error.errno is None or isinstance(error, socket.gaierror | ssl.SSLError):
        # Of a peer that leaves in the middle of TLS' handshake asyncio says nothing at all.
        return error.strerror or str(error) or "the connection ended"
    return os.strerror(error.errno)
