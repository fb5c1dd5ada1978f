"""Whether a send is retried, where, and after which delay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.client.errors import (
    BusyError,
    ClientError,
    NetworkError,
    NotFoundError,
    OutcomeUnknownError,
    RefusedError,
    UnreachableError,
)
from cometmq.proto.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ELSEWHERE: Final = frozenset(
    int(code)
    for code in (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    )
)
"""Refusals after which another broker may take the message: Apache's list."""

LOST_QUEUE_WAITS: Final[Mapping[int, Sequence[float]]] = {
    ResponseCode.INVALID_PARAMETER: (0, 0.05, 0.2),
    ResponseCode.SYSTEM_ERROR: (0,),
}
"""Codes with which new and older brokers refuse, among other things, a queue that is not in the
topic; and the delays, in seconds, after which the topic's route is fetched to tell these apart."""

_WAIT_SECONDS: Final = 0.05
_WAIT_SECONDS_MAX: Final = 1.0


class Retrying:
    """The attempts of one send.

    An attempt counts only if something may have been sent: connecting is retried until the
    deadline, as a broker that is being restarted comes back within seconds.
    """

    def __init__(self, attempts: int) -> None:
        self.failed: set[str] = set()
        self.may_be_done = False
        """Whether an attempt ended without an answer, so that the message may be stored."""
        self._left = attempts
        self._waits = 0

    def after(
        self,
        error: ClientError,
        broker: str,
        *,
        others: bool,
        reconnect: float,
        is_queue_lost: bool = False,
        is_stored_once: bool = False,
    ) -> float | None:
        """Return how many seconds to wait before the next attempt; None for no further attempt.

        `others` says whether there are brokers that have not failed, `reconnect` for how long this
        broker's address is left alone, `is_queue_lost` whether the topic no longer has the queue,
        so that the next attempt goes to one that it has. A message that `is_stored_once` may be
        sent as often as there is time.
        """
        if isinstance(error, OutcomeUnknownError):
            self.may_be_done = True
        if is_queue_lost:
            self._left -= 1
            return 0 if self._left > 0 else None
        if isinstance(error, RefusedError) and error.code not in ELSEWHERE:
            return None
        if not isinstance(error, NetworkError | RefusedError):
            return None
        if not isinstance(error, UnreachableError) and not is_stored_once:
            self._left -= 1
            if self._left <= 0:
                return None
        self.failed.add(broker)
        if others:
            return 0
        if isinstance(error, RefusedError) and not isinstance(error, BusyError | NotFoundError):
            return None
        self._waits += 1
        return max(reconnect, min(_WAIT_SECONDS * (1 << self._waits - 1), _WAIT_SECONDS_MAX))
