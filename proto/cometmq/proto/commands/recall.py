"""Recalling a message that has a delivery time, by the handle in the answer to its send.

A handle is a text that is opaque to the client: padded base64 with the URL alphabet, of five words
with a blank between each::

    v1 <topic> <broker name> <delivery time, ms> <unique key>
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

from cometmq.proto.errors import FieldError, LocalProtocolError
from cometmq.proto.header import Header, wire

_TEXT = re.compile(r"[A-Za-z0-9_-]*={0,2}", re.ASCII)
_WORDS = re.compile(r"v1 ([^ ]+) ([^ ]+) ([0-9]{1,19}) ([^ ]+)", re.ASCII)
_TIME_MAX = 2**63 - 1


class RecallMessage(Header):
    """370 RECALL_MESSAGE: take back a message that has not been delivered yet."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponse(Header):
    """The recalled message."""

    msg_id: str  # The unique key.
    region_id: str | None = wire("MSG_REGION", default=None)


class RecallMessageRefusal(Header):
    """The fields in the answer to a refused recall."""

    region_id: str | None = wire("MSG_REGION", default=None)


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """The parts of a recall handle: which message it is, and where it waits."""

    topic: str
    broker_name: str
    deliver_timestamp: int
    unique_key: str

    def encode(self) -> str:
        """Write the handle; its words must not be empty or contain a blank."""
        words = f"v1 {self.topic} {self.broker_name} {self.deliver_timestamp} {self.unique_key}"
        if not _WORDS.fullmatch(words) or self.deliver_timestamp > _TIME_MAX:
            raise LocalProtocolError(f"{self} cannot be written as text")
        try:
            return urlsafe_b64encode(words.encode()).decode()
        except UnicodeEncodeError:  # Half of a surrogate pair.
            raise LocalProtocolError(f"{self!a} cannot be written as text") from None

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Read a handle, with or without its padding."""
        match = _WORDS.fullmatch(_plain(text))
        if match is None:
            raise _invalid("does not name a message")
        topic, broker_name, timestamp, unique_key = match.groups()
        if int(timestamp) > _TIME_MAX:
            raise _invalid("has an impossible delivery time")
        return cls(topic, broker_name, int(timestamp), unique_key)


def _plain(text: str) -> str:
    if not _TEXT.fullmatch(text):
        raise _invalid("is not base64")
    try:
        return urlsafe_b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)).decode()
    except ValueError:  # A length that base64 cannot have, or bytes that are not UTF-8.
        raise _invalid("is not base64 of UTF-8 text") from None


def _invalid(problem: str) -> FieldError:
    return FieldError("RECALL_MESSAGE", "recallHandle", problem)
