"""What a peer is told if its request has no answer, or none that can be sent or that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from cometmq.proto.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.proto.command import Command
    from cometmq.proto.errors import LocalProtocolError


def failure(request: Command, error: Exception) -> Command:
    """Answer a request whose handler raised. The details go to our log, not to the peer."""
    return request.answer(
        ResponseCode.SYSTEM_ERROR,
        remark=f"{type(error).__name__} in the handler of request {request.code}:"
        " an error of the server; its log has the details",
    )


def overload(request: Command, in_flight_max: int) -> Command:
    """Refuse a request of a peer that has too many unanswered requests."""
    return request.answer(
        ResponseCode.SYSTEM_BUSY,
        remark=f"in_flight_max {in_flight_max} requests of this connection are not answered yet",
    )


def unsayable(response: Command, error: LocalProtocolError) -> Command:
    """Make the answer that says that the real answer cannot be sent."""
    return replace(
        response,
        code=ResponseCode.SYSTEM_ERROR,
        fields=None,
        remark=f"the answer cannot be sent: {error}",
        body=None,
        parts=(),
        extras=None,
    )


def unread(unsent: int, unsent_bytes_max: int) -> str | None:
    """Return why a peer that leaves this much unread is dropped; None if that is allowed."""
    if unsent <= unsent_bytes_max:
        return None
    return f"{unsent} bytes unread by the peer exceed unsent_bytes_max {unsent_bytes_max}"


def unfinished(size: int, receiving_bytes_max: int) -> str:
    """Return why a peer is dropped: its unfinished frame and those of others are too large."""
    return (
        f"{size} bytes of an unfinished frame, which together with those of other connections"
        f" exceed receiving_bytes_max {receiving_bytes_max}"
    )
