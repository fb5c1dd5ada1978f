"""OpenTelemetry: spans for sends and consumptions, joined by W3C trace context in the messages.

::

    from cometmq.client.otel import OpenTelemetry

    mq = Client("127.0.0.1:9876", ClientConfig(hooks=[OpenTelemetry()]))

It needs `pip install 'cometmq[otel]'`, and a tracer provider of the program's choice. A message
carries `traceparent` (and whatever else the program's propagator writes) as properties, which the
instrumentation of other languages also reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry import context as contexts, propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from cometmq.client.hooks import ConsumeWatch, Hook, Sending, SendWatch, Sent, Settled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from cometmq.client.messages import ReceivedMessage

_SYSTEM: Final = "rocketmq"


class OpenTelemetry(Hook):
    """A hook that makes a span for each message that is sent or consumed.

    ::

        mq = Client("127.0.0.1:9876", ClientConfig(hooks=[OpenTelemetry()]))

    Within `async with message`, the message's span is the current one, so spans made there are its
    children. A batch has one span, and its messages carry no context.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("cometmq", tracer_provider=tracer_provider)

    def sending(self, sending: Sending) -> SendWatch:
        """Begin a span, and write its context into the message.

        ::

            watch = hook.sending(sending)
        """
        attributes: dict[str, str | int] = {
            "messaging.system": _SYSTEM,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": sending.topic,
            "messaging.message.id": sending.id,
            "messaging.message.body.size": sending.body_size,
        }
        if sending.count > 1:
            attributes["messaging.batch.message_count"] = sending.count
        _add_names(attributes, sending.tag, sending.keys)
        span = self._tracer.start_span(
            f"send {sending.topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        propagate.inject(sending.properties, context=trace.set_span_in_context(span))
        return _SendSpan(span)

    def consuming(self, message: ReceivedMessage, group: str) -> ConsumeWatch:
        """Begin a span, a child of the one that sent the message.

        ::

            watch = hook.consuming(message, "billing")
        """
        attributes: dict[str, str | int] = {
            "messaging.system": _SYSTEM,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": message.topic,
            "messaging.consumer.group.name": group,
            "messaging.message.id": message.id,
            "messaging.destination.partition.id": str(message.queue.id),
            "messaging.rocketmq.delivery_attempt": message.attempt,
        }
        _add_names(attributes, message.tag, message.keys)
        parent = propagate.extract(message.properties)
        span = self._tracer.start_span(
            f"process {message.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        )
        return _ConsumeSpan(span)


class _SendSpan(SendWatch):
    def __init__(self, span: Span) -> None:
        self._span = span

    def ended(self, result: Sent | BaseException | None) -> None:
        """End the span."""
        if isinstance(result, Sent):
            self._span.set_attribute("messaging.destination.partition.id", str(result.queue.id))
            self._span.set_attribute("server.address", result.broker_address)
        elif result is not None:
            _failed(self._span, result)
        self._span.end()


class _ConsumeSpan(ConsumeWatch):
    def __init__(self, span: Span) -> None:
        self._span = span
        self._token: Token[Context] | None = None

    def entered(self) -> None:
        """Make it the current span."""
        self._token = contexts.attach(trace.set_span_in_context(self._span))

    def left(self) -> None:
        """Restore the previous current span."""
        if self._token is not None:
            contexts.detach(self._token)
            self._token = None

    def ended(self, how: Settled, error: Exception | None) -> None:
        """End the span."""
        self._span.set_attribute("messaging.rocketmq.settled", how)
        if error is not None:
            _failed(self._span, error)
        elif how != "ack":
            self._span.set_status(Status(StatusCode.ERROR, how))
        self._span.end()


def _failed(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))


def _add_names(attributes: dict[str, str | int], tag: str | None, keys: Sequence[str]) -> None:
    if tag is not None:
        attributes["messaging.rocketmq.message.tag"] = tag
    if keys:
        attributes["messaging.rocketmq.message.keys"] = " ".join(keys)


__all__ = ["OpenTelemetry"]
