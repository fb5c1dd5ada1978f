"""The errors of a client's calls, whose fault they are, and whether a retry may help.

::

    ClientError
    ├── UsageError             ours: a wrong argument or state; nothing was sent
    │   ├── ClosedError        the client, or the consumer, is closed
    │   └── SettledError       this message is acknowledged, or given back, already
    ├── NetworkError           nobody's: it may work in a moment
    │   ├── UnreachableError   no connection could be made, so nothing was sent
    │   └── OutcomeUnknownError    it may have been done: no answer came, or none that tells
    │       ├── ConnectionEndedError   the connection ended before the answer
    │       └── DeadlineError          the timeout passed before the answer
    └── RefusedError           theirs: the server said no; `code`, `remark` and `address` say why
        ├── NotFoundError      the topic, group, message or offset does not exist
        ├── ForbiddenError     there is no permission for it
        ├── BusyError          the server has too much to do, or cannot write at the moment
        └── ProtocolViolationError   the answer is not what the protocol says

Every error has `whose` and `can_retry`::

    try:
        await mq.send("orders", b"...")
    except ClientError as error:
        if not error.can_retry:
            raise
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from cometmq.proto.codes import ResponseCode, response_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cometmq.client.messages import Receipt

E = TypeVar("E", bound="ClientError")
Whose = Literal["ours", "theirs", "network"]


class ClientError(Exception):
    """The base of all errors of the client.

    `whose` says who can fix it: "ours" is the calling program, "theirs" the server, "network"
    neither. `can_retry` says whether the same call may succeed later without a change.

    `stored` has the receipts of the messages that `send_batch` had stored before it failed: the
    first ones of the batch, if it was sent in several requests; otherwise it is empty::

        except ClientError as error:
            rest = messages[len(error.stored) :]
    """

    whose: Whose = "ours"
    can_retry: bool = False
    stored: Sequence[Receipt] = ()

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle it whatever its `__init__` takes: it may come from another process."""
        return _made_again, (type(self), self.args, vars(self))

    def __str__(self) -> str:
        text = super().__str__()
        if not self.stored:
            return text
        return f"{text} (messages of the batch stored before: {len(self.stored)})"


class UsageError(ClientError, ValueError):
    """The call cannot work: the text says which argument is wrong and what would be right.

    Nothing was sent. For example, ``await mq.send("orders", "text")``: a body must be bytes.
    """


class ClosedError(UsageError):
    """The client or the consumer is closed, or was never opened: use `async with`."""


class SettledError(UsageError):
    """The message has already been acknowledged or given back."""


class NetworkError(ClientError):
    """The network failed or a server is down; a retry can help."""

    whose: Whose = "network"
    can_retry = True


class UnreachableError(NetworkError):
    """No connection could be made. Nothing was sent, so a retry does nothing twice."""


class OutcomeUnknownError(NetworkError):
    """The request may have been carried out, so a retry may do it twice.

    No answer came; or the broker's disk failed after the message was written, so that the broker
    itself does not know.
    """


class ConnectionEndedError(OutcomeUnknownError):
    """The connection ended before the answer came. The request may have been carried out."""


class DeadlineError(OutcomeUnknownError, TimeoutError):
    """The answer did not come in time. The request may have been carried out, or may still be.

    Also a `TimeoutError`, for code that only handles that.
    """


class RefusedError(ClientError):
    """The server said no.

    `code` and `name` are the protocol's, `remark` is the server's text, `address` is the server's.
    """

    whose: Whose = "theirs"
    _verb = "refuses with"

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        self.code = code
        self.name = response_name(code)
        self.remark = remark or ""
        self.address = address
        said = f": {remark.strip()}" if remark and remark.strip() else ""
        super().__init__(f"{address} {self._verb} {self.name} ({code}){said}")


class NotFoundError(RefusedError):
    """The topic, group, message or offset of the call does not exist there."""


class ForbiddenError(RefusedError):
    """There is no permission: because of a topic's `perm`, a closed topic or a disabled group."""


class BusyError(RefusedError):
    """The server is overloaded or cannot write at the moment; a retry can help."""

    can_retry = True


class ProtocolViolationError(RefusedError):
    """The answer violates the protocol.

    One of the two programs has a bug or, if it concerns a message, the broker's disk has damaged
    the message.
    """

    _verb = "violates the protocol in its answer"


_KINDS: Final[Mapping[int, type[RefusedError]]] = {
    ResponseCode.SYSTEM_BUSY: BusyError,
    ResponseCode.SERVICE_NOT_AVAILABLE: BusyError,
    ResponseCode.FLOW_CONTROL: BusyError,
    ResponseCode.GO_AWAY: BusyError,
    ResponseCode.NO_PERMISSION: ForbiddenError,
    ResponseCode.TOPIC_NOT_EXIST: NotFoundError,
    ResponseCode.QUERY_NOT_FOUND: NotFoundError,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: NotFoundError,
    ResponseCode.CONSUMER_NOT_ONLINE: NotFoundError,
}


def with_stored(error: E, stored: Sequence[Receipt]) -> E:
    """Return a copy of an error, which others may share, with the receipts of stored messages."""
    copied = copy(error)
    copied.stored = tuple(stored)
    return copied


def _made_again(kind: type[E], args: tuple[object, ...], members: Mapping[str, object]) -> E:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(members)
    return error


def unreadable(code: int, place: str, problem: object, address: object) -> ProtocolViolationError:
    """Make the error for messages that cannot be read because a broker's disk has damaged them."""
    error = ProtocolViolationError(code, str(problem), str(address))
    error.args = (
        f"{place}: {address} has no readable message there ({problem}), so its store is damaged:"
        " `cometmq store verify DIR` on its machine says where, and what to do",
    )
    return error


def refusal(code: int, remark: str | None, address: object) -> RefusedError:
    """Make the error for an answer's code."""
    return _KINDS.get(code, RefusedError)(code, remark, str(address))
