"""The interface that the owner of connections (a broker, name server, client) gives to drivers."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from cometmq.net.peer import Peer
    from cometmq.proto.buffer import Buffer
    from cometmq.proto.command import Command


class Later(Enum):
    """The type of LATER."""

    LATER = "later"


LATER: Final = Later.LATER

Frame: TypeAlias = "list[Buffer]"
"""A whole frame that was made elsewhere, as the buffers from which it is written."""


class Owner(Protocol):
    """Four plain functions, all called on the loop's thread. None of them may wait."""

    def handle(self, request: Command, peer: Peer) -> Command | Frame | Later:
        """Answer a request, or return LATER and call `peer.answer` once there is an answer.

        Requests of a connection come in order. The answer leaves at the end of the loop's turn,
        after `end_turn`; it may be a `Frame` if the connection `takes_frames`. The result for a
        one-way request is dropped. An exception is a bug: it is logged, and answered with code 1.
        """
        ...

    def end_turn(self) -> None:
        """Finish what the requests of this turn began, with one write for all of them.

        Called after the last request of each turn, and when answers given outside a turn are about
        to leave, so often there is nothing to do. It may give answers, to any peer.
        """
        ...

    def opened(self, peer: Peer) -> None:
        """Take note of a new connection, before its first request."""
        ...

    def closed(self, peer: Peer) -> None:
        """Take note that an opened connection is gone, whoever ended it. This is the last call."""
        ...
