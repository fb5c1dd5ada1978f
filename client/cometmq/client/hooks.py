"""Hooks: who wants to know of each message that is sent and consumed, and to add to it.

A hook is told when a send or a consumption begins, and gives an object that is told of its end::

    class Counting(Hook):
        def sending(self, sending: Sending) -> SendWatch:
            sends[sending.topic] += 1
            return SendWatch()

    mq = Client("127.0.0.1:9876", ClientConfig(hooks=[Counting()]))

They are called on the client's loop, between what it does itself: they must be quick, and must not
raise; what they raise is logged, and the message goes its way. Only `entered` and `left` come from
where the message's block is: of a `SyncClient`, from a thread of its caller's.
`cometmq.client.otel` has one for OpenTelemetry; `ClientConfig.trace` is another.
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

    What is put into `properties` goes with the message; with a batch nothing does.
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
    """Where a message went.

    ::

        print(sent.queue, sent.offset, sent.broker_address)
    """

    queue: Queue
    offset: int
    offset_id: str
    broker_address: str


class SendWatch:
    """Is told of the end of one send.

    ::

        class Timed(SendWatch):
            def ended(self, result: Sent | BaseException | None) -> None:
                print(result)
    """

    def ended(self, result: Sent | BaseException | None) -> None:
        """Learn where it went, or what it failed with; None of a one-way send, which nobody knows.

        ::

            watch.ended(None)
        """


class ConsumeWatch:
    """Is told of what becomes of one message that was handed out.

    ::

        class Timed(ConsumeWatch):
            def ended(self, how: Settled, error: Exception | None) -> None:
                print(how)
    """

    def entered(self) -> None:
        """Learn that `async with message` begins.

        ::

            watch.entered()
        """

    def left(self) -> None:
        """Learn that it ends, in the same task or thread.

        ::

            watch.left()
        """

    def ended(self, how: Settled, error: Exception | None) -> None:
        """Learn how it was settled, and of the exception that it was given back for.

        ::

            watch.ended("retry", ValueError("no such order"))
        """


class Hook:
    """Is told of what a client does; it overrides what it wants to know.

    ::

        class Logging(Hook):
            def consuming(self, message: ReceivedMessage, group: str) -> ConsumeWatch:
                print(message)
                return ConsumeWatch()
    """

    def sending(self, sending: Sending) -> SendWatch:  # noqa: ARG002  # For those who override it.
        """Learn of a send that begins.

        ::

            watch = hook.sending(sending)
        """
        return SendWatch()

    def consuming(self, message: ReceivedMessage, group: str) -> ConsumeWatch:  # noqa: ARG002  # As above.
        """Learn of a message that is handed out.

        ::

            watch = hook.consuming(message, "billing")
        """
        return ConsumeWatch()


__all__ = ["ConsumeWatch", "Hook", "SendKind", "SendWatch", "Sending", "Sent", "Settled"]
