"""Hooks, OpenTelemetry included: they hear of each message and may add to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.client.running import Servers, on_every_loop, on_loop, play, play_on

from cometmq.client import (
    Client,
    ClientConfig,
    ConsumeWatch,
    Hook,
    NotFoundError,
    Queue,
    ReceivedMessage,
    Sending,
    SendWatch,
    Sent,
    SyncClient,
    UnreachableError,
)
from cometmq.client.hooks import Settled
from cometmq.client.otel import OpenTelemetry


class Noting(Hook):
    """Records everything that it is told, and adds a property to each message."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def sending(self, sending: Sending) -> SendWatch:
        self.heard.append((sending.topic, sending.kind, sending.count, tuple(sending.keys)))
        sending.properties["seen-by"] = "noting"
        return NotingSend(self.heard)

    def consuming(self, message: ReceivedMessage, group: str) -> ConsumeWatch:
        self.heard.append((group, message.body))
        return NotingConsumption(self.heard)


class NotingSend(SendWatch):
    def __init__(self, heard: list[object]) -> None:
        self.heard = heard

    def ended(self, result: Sent | BaseException | None) -> None:
        self.heard.append(type(result).__name__)


class NotingConsumption(ConsumeWatch):
    def __init__(self, heard: list[object]) -> None:
        self.heard = heard

    def entered(self) -> None:
        self.heard.append("entered")

    def left(self) -> None:
        self.heard.append("left")

    def ended(self, how: Settled, error: Exception | None) -> None:
        self.heard.append((how, error and str(error)))


@on_every_loop
def test_a_hook_hears_of_every_send_and_may_add_to_its_message(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        hook = Noting()
        async with Client(servers.nameserver, ClientConfig(hooks=[hook])) as mq:
            receipt = await mq.send("orders", b"x", key="o-17")
            (message,) = (await mq.pull(receipt.queue, 0)).messages
            assert message.user_properties["seen-by"] == "noting"
            await mq.send("orders", b"x", delay=5)
            await mq.send("orders", b"x", sharding_key="c")
            await mq.send_batch("orders", [b"x", b"y"])
            await mq.send_oneway("orders", b"x")
            with pytest.raises(NotFoundError):
                await mq.send("orders", b"x", queue=Queue("orders", receipt.queue.broker, 99))
        assert hook.heard == [
            ("orders", "normal", 1, ("o-17",)), "Sent",
            ("orders", "delayed", 1, ()), "Sent",
            ("orders", "ordered", 1, ()), "Sent",
            ("orders", "batch", 2, ()), "Sent",
            ("orders", "normal", 1, ()), "NoneType",
            ("orders", "normal", 1, ()), "NotFoundError",
        ]  # fmt: skip

    play_on(loop, tmp_path, scenario)


class Raising(Hook):
    """Raises whenever it is told something, either at once or in the watch that it returns."""

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once

    def sending(self, sending: Sending) -> SendWatch:
        if self._at_once:
            raise KeyError(sending.id)
        return RaisingSend()

    def consuming(self, message: ReceivedMessage, group: str) -> ConsumeWatch:
        if self._at_once:
            raise KeyError(group, message)
        return RaisingConsumption()


class RaisingSend(SendWatch):
    def ended(self, result: Sent | BaseException | None) -> None:
        raise KeyError(result)


class RaisingConsumption(ConsumeWatch):
    def entered(self) -> None:
        raise KeyError("entered")

    def left(self) -> None:
        raise KeyError("left")

    def ended(self, how: Settled, error: Exception | None) -> None:
        raise KeyError(how, error)


@pytest.mark.parametrize("at_once", [True, False])
@on_every_loop
def test_a_hook_that_raises_is_logged_and_costs_no_message(
    loop: str, at_once: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(servers: Servers) -> None:
        others = Noting()
        config = ClientConfig(hooks=[Raising(at_once=at_once), others])
        async with Client(servers.nameserver, config) as mq:
            await mq.send("orders", b"x", sharding_key="c")
            await mq.send_batch("orders", [b"y", b"z"])
            await mq.send_oneway("orders", b"one-way")
            with pytest.raises(NotFoundError):
                await mq.send("orders", b"x", queue=Queue("orders", "broker-a", 99))
            consumer = mq.consume("orders", group="billing", start="first")
            for _ in range(4):
                async with await anext(consumer):
                    pass
            assert consumer.in_hand == 0
            assert await consumer.drain(timeout=0)
        assert others.heard.count(("ack", None)) == 4, "the next hook is told of it"

    play_on(loop, tmp_path, scenario)
    assert "raised an error, which hooks must not" in caplog.text


@on_every_loop
def test_a_hook_hears_what_becomes_of_every_message(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        hook = Noting()
        async with Client(servers.nameserver) as sender:
            for body in (b"good", b"bad", b"worse"):
                await sender.send("orders", body, sharding_key="c")
        async with Client(servers.nameserver, ClientConfig(hooks=[hook])) as mq:
            consumer = mq.consume("orders", group="billing", start="first")
            for _ in range(3):
                async with await anext(consumer) as message:
                    if message.body == b"bad":
                        raise ValueError("no such order")
                    if message.body == b"worse":
                        await message.reject()
            await consumer.drain()
        assert hook.heard == [
            ("billing", b"good"), "entered", "left", ("ack", None),
            ("billing", b"bad"), "entered", "left", ("retry", "no such order"),
            ("billing", b"worse"), "entered", ("reject", None), "left",
        ]  # fmt: skip

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_spans_of_sends_and_consumptions_are_one_trace(loop: str, tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def scenario(servers: Servers) -> None:
        config = ClientConfig(hooks=[OpenTelemetry(provider)])
        async with Client(servers.nameserver, config) as mq:
            receipt = await mq.send("orders", b"x", key="o-17", tag="paid")
            (message,) = (await mq.pull(receipt.queue, 0)).messages
            assert re.fullmatch(
                "00-[0-9a-f]{32}-[0-9a-f]{16}-0[13]", message.properties["traceparent"]
            )
            consumer = mq.consume("orders", group="billing", start="first")
            async with await anext(consumer):
                with provider.get_tracer("app").start_as_current_span("charge the card"):
                    pass
                raise ValueError("no such order")
            await consumer.drain()
            assert not trace.get_current_span().get_span_context().is_valid

    play_on(loop, tmp_path, scenario)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    sent, processed = spans["send orders"], spans["process orders"]
    assert parent_of(processed) == span_id(sent)
    assert parent_of(spans["charge the card"]) == span_id(processed)
    assert attributes(sent)["messaging.rocketmq.message.keys"] == "o-17"
    assert attributes(sent)["server.address"] != ""
    assert attributes(processed)["messaging.consumer.group.name"] == "billing"
    assert attributes(processed)["messaging.rocketmq.message.tag"] == "paid"
    assert attributes(processed)["messaging.rocketmq.settled"] == "retry"
    assert processed.status.description == "no such order"
    assert sent.status.is_ok


def test_without_async_a_messages_span_is_the_current_one_of_its_block(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def scenario(servers: Servers) -> None:
        config = ClientConfig(hooks=[OpenTelemetry(provider)])
        tracer = provider.get_tracer("app")
        with SyncClient(servers.nameserver, config) as mq:
            with tracer.start_as_current_span("order"):
                mq.send_batch("orders", [b"x"])
                mq.send("orders", b"x")
            consumer = mq.consume("orders", group="billing", start="first")
            for name in ("charge", "fail"):
                with next(consumer), tracer.start_as_current_span(name):
                    assert name == "charge"
            assert not trace.get_current_span().get_span_context().is_valid

    play(tmp_path, scenario)
    spans = exporter.get_finished_spans()
    by_id = {span_id(span): span for span in spans}
    named = {span.name: span for span in spans}
    assert parent_of(named["send orders"]) == span_id(named["order"])
    for name in ("charge", "fail"):
        parent = parent_of(named[name])
        assert parent is not None
        assert by_id[parent].name == "process orders"


@on_every_loop
def test_a_hook_hears_of_a_one_way_send_that_went_nowhere(loop: str) -> None:
    async def scenario() -> None:
        hook = Noting()
        async with Client("127.0.0.1:1", ClientConfig(hooks=[hook], timeout=0.1)) as mq:
            with pytest.raises(UnreachableError):
                await mq.send_oneway("orders", b"x")
        assert hook.heard == [("orders", "normal", 1, ()), "UnreachableError"]

    on_loop(loop, scenario)


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def span_id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    assert span.attributes is not None
    return span.attributes
