"""Hooks: called for each message that is sent or consumed; they may add properties to sends.

A hook is called when a send or a consumption begins, and returns an object that is told the end::

    class Counting(Hook):
        def sending(self, sending: Sending) -> SendWatch:
            sends[sending.topic] += 1
            return SendWatch()

    mq = Client("127.0.0.1:9876", ClientConfig(hooks=[Counting()]))

Hooks run on the client's loop, so they must be quick. They must not raise; if one does, its
exception is logged and the message is not affected. Only `entered` and `left` are called where the
message's block runs: with a `SyncClient`, on a thread of the caller. `cometmq.client.otel` is a
hook for OpenTelemetry; `ClientConfig.trace` turns on another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.client._core.queues import Queue
    from cometmq.client.messages import ReceivedMessage

SendKind = Literal["normal", "delayed", "ordered", "transaction", "batch"]
Settled = Literal["ack", "retry", "reject", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """A send that begins.

    ::

        sending.properties["traceparent"] = "00-..."

    Properties added to `properties` are sent with the message, but not with a batch.
    """

    topic: str
    id: str
    kind: SendKind
    body_size: int
    keys: Sequence[str] = ()
    tag: str | None = None
    count: int = 1
    properties: dict[str, str] = field(default_factory=dict[str, str])


class Sent(NamedTuple):
    """Where a message was stored.

    ::

        print(sent.queue, sent.offset, sent.broker_address)
    """

    queue: Queue
    offset: int
    offset_id: str
    broker_address: str


class SendWatch:
    """Watches one send, and is told how it ended.

    ::

        class Timed(SendWatch):
            def ended(self, result: Sent | BaseException | None) -> None:
                print(result)
    """

    def ended(self, result: Sent | BaseException | None) -> None:
        """Handle the result: where it was stored, its exception, or None for a one-way send.

        ::

            watch.ended(None)
        """


class ConsumeWatch:
    """Watches one message that was handed out, and is told what becomes of it.

    ::

        class Timed(ConsumeWatch):
            def ended(self, how: Settled, error: Exception | None) -> None:
                print(how)
    """

    def entered(self) -> None:
        """Handle the start of `async with message`.

        ::

            watch.entered()
        """

    def left(self) -> None:
        """Handle its end, in the same task or thread.

        ::

            watch.left()
        """

    def ended(self, how: Settled, error: Exception | None) -> None:
        """Handle how it was settled, and the exception for which it was given back, if any.

        ::

            watch.ended("retry", ValueError("no such order"))
        """


class Hook:
    """The base of hooks, which are told what a client does; override the methods you need.

    ::

        class Logging(Hook):
            def consuming(self, message: ReceivedMessage, group: str) -> ConsumeWatch:
                print(message)
                return ConsumeWatch()
    """

    def sending(self, sending: Sending) -> SendWatch:  # noqa: ARG002  # For those who override it.
        """Handle the start of a send.

        ::

            watch = hook.sending(sending)
        """
        return SendWatch()

    def consuming(self, message: ReceivedMessage, group: str) -> ConsumeWatch:  # noqa: ARG002  # As above.
        """Handle a message that is handed out.

        ::

            watch = hook.consuming(message, "billing")
        """
        return ConsumeWatch()


__all__ = ["ConsumeWatch", "Hook", "SendKind", "SendWatch", "Sending", "Sent", "Settled"]
