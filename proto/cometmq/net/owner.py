"""What the owner of connections (a broker, a name server, a client) gives to the drivers."""

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
"""A whole frame that was made elsewhere, in the buffers that it is written from."""


class Owner(Protocol):
    """Four plain functions, all called on the loop's thread, none of which may wait."""

    def handle(self, request: Command, peer: Peer) -> Command | Frame | Later:
        """Answer one request, or say LATER and call `peer.answer` when there is an answer.

        Requests of a connection come in their order. The answer leaves at the end of the loop's
        turn, behind `end_turn`; it may be a `Frame` where the connection `takes_frames`. What is
        returned for a one-way request goes nowhere. An exception is a bug: it is logged, and
        answered with code 1.
        """
        ...

    def end_turn(self) -> None:
        """Finish what the requests of this turn began: one write for all of them.

        Called behind the last request of each turn, and when answers given outside a turn are
        about to leave: so often with nothing to do. It may give answers, to any peer.
        """
        ...

    def opened(self, peer: Peer) -> None:
        """Learn of a new connection, before its first request."""
        ...

    def closed(self, peer: Peer) -> None:
        """Learn that a connection that was opened is gone, whoever ended it. Comes last."""
        ...
