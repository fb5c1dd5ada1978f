"""The two drivers of a connection: loop protocols (uvloop, asyncio) and trio streams.

They know sockets, but no request codes. Importing this package imports neither trio nor uvloop;
what needs these is in `cometmq.net.trio_streams` and `cometmq.net.guest`.
"""

from cometmq.net.address import exposure, parse_address, parse_addresses
from cometmq.net.errors import (
    AddressError,
    AnswerTimeoutError,
    ConnectError,
    ConnectionLostError,
    ListenError,
    NetError,
)
from cometmq.net.limits import Limits
from cometmq.net.listener import address_of, listen_on
from cometmq.net.loop import LoopPeer, LoopServer, connect, serve
from cometmq.net.owner import LATER, Frame, Later, Owner
from cometmq.net.peer import Peer
from cometmq.net.peers import Peers
from cometmq.net.turn import Turn

__all__ = [
    "LATER",
    "AddressError",
    "AnswerTimeoutError",
    "ConnectError",
    "ConnectionLostError",
    "Frame",
    "Later",
    "Limits",
    "ListenError",
    "LoopPeer",
    "LoopServer",
    "NetError",
    "Owner",
    "Peer",
    "Peers",
    "Turn",
    "address_of",
    "connect",
    "exposure",
    "listen_on",
    "parse_address",
    "parse_addresses",
    "serve",
]
