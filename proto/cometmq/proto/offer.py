"""How two peers find out that both read MessagePack headers (`docs/protocol-extensions.md`).

A frame with an unknown header type makes Apache close the connection, so neither side may just try.
The side that asks first puts a field into its first request (`Offering`); the other side looks for
it there, and puts it into the answer (`Accepting`). Each half is over after its one exchange, and
the connection then drops it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cometmq.proto.errors import FieldError
from cometmq.proto.header_msgpack import MESSAGEPACK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.proto.command import Command

# In a request, this field says which header types above 1 its sender reads; in the answer, which of
# them the answering side reads.
OFFER_FIELD: Final = "cometmqHeaders"
OFFER: Final[Mapping[str, str]] = {OFFER_FIELD: str(MESSAGEPACK.serialize_type)}
NO_OFFER: Final[Mapping[str, str]] = {}


class Offering:
    """The half for the side that asks first, until its offer is answered."""

    def __init__(self) -> None:
        self._opaque: int | None = None  # of the request that made the offer

    @property
    def extras(self) -> Mapping[str, str]:
        """The extras for our next request; none once an offer has been sent."""
        return OFFER if self._opaque is None else NO_OFFER

    def sent(self, request: Command) -> None:
        """Note a request of ours that waits for an answer; it may carry the offer."""
        if request.extras is not None and OFFER_FIELD in request.extras:
            self._opaque = request.opaque

    def is_answered_by(self, response: Command) -> bool:
        """Whether this is the answer to the offer, accepted or not."""
        return response.opaque == self._opaque


class Accepting:
    """The half for the side that is asked, from the first request to its answer.

    The first request that wants an answer decides, and no other.
    """

    def __init__(self) -> None:
        self._is_decided = False
        self._opaque: int | None = None  # of the request whose answer shall accept

    @property
    def is_over(self) -> bool:
        """Whether the exchange is over."""
        return self._is_decided and self._opaque is None

    def see(self, request: Command) -> bool:
        """Look at a request; return whether it shows that its sender reads MessagePack headers."""
        if self._is_decided or request.is_oneway:
            return False
        self._is_decided = True
        if request.codec is MESSAGEPACK:
            return True
        if not reads_messagepack(request):
            return False
        self._opaque = request.opaque
        return True

    def add_to(self, response: Command) -> Command:
        """Accept the offer in a response, if that is the answer to it."""
        if response.opaque != self._opaque:
            return response
        self._opaque = None
        return replace(response, extras={**(response.extras or {}), **OFFER})


def reads_messagepack(command: Command) -> bool:
    """Whether a command says that its sender reads MessagePack headers."""
    try:
        said = command.ext_fields.get(OFFER_FIELD, "")
    except FieldError:
        # The code that needs the fields will report this.
        return False
    return OFFER[OFFER_FIELD] in said.split(",")
