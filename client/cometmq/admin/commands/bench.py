"""`cometmq bench`: a load generator, for any broker that speaks the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cometmq.admin import bench_end_to_end, bench_load, bench_processes
from cometmq.admin.bench_load import BenchError, Load
from cometmq.admin.options import options
from cometmq.admin.parameters import NumberParameter
from cometmq.admin.render import show_facts, show_json
from cometmq.net import AddressError, parse_address
from cometmq.proto.codes import ResponseCode, response_name

if TYPE_CHECKING:
    from array import array

_PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


@click.group(short_help="Measure how fast a broker is, ours or another.")
def bench() -> None:
    """Measure a broker: ours, or any other that speaks the protocol.

    The topic is made by the first send, with as many queues as are asked for, and its messages
    stay: give it a name of its own. Rates are of this machine with everything that runs on it.

    \b
    Examples:
      cometmq bench send
      cometmq bench send --connections 8 --in-flight 32 --seconds 10
      cometmq bench batch --batch 32
      cometmq bench pull --connections 4
      cometmq bench e2e --rate 1000 --json
    """


_COMMON = options(
    click.option(
        "-b",
        "--broker",
        default="127.0.0.1:10911",
        show_default=True,
        help="The broker to measure, as HOST:PORT.",
    ),
    click.option("--topic", default="CometMQBench", show_default=True),
    click.option("--queues", default=4, show_default=True, type=click.IntRange(1, 1024)),
    click.option("--seconds", default=5.0, show_default=True, type=NumberParameter(0.1)),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
)
_SIZE = click.option(
    "--size",
    default=1024,
    show_default=True,
    type=click.IntRange(19, 4 << 20),
    help="Bytes of a body.",
)
_BATCH = click.option(
    "--batch",
    default=32,
    show_default=True,
    type=click.IntRange(1, 1024),
    help="Messages per batch.",
)
_TOPICS = click.option(
    "--topics",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="How many topics; if several, their names end with a number.",
)
_CONNECTIONS = click.option(
    "--connections", default=8, show_default=True, type=click.IntRange(1, 10_000)
)
_IN_FLIGHT = click.option(
    "--in-flight",
    default=32,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Requests that each connection has under way.",
)
_PROCESSES = click.option(
    "--processes",
    default=1,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Processes that send; use more if one cannot keep the broker busy.",
)


@bench.command()
@options(_CONNECTIONS, _IN_FLIGHT, _TOPICS, _SIZE, _PROCESSES, _COMMON)
def send(processes: int, as_json: bool, **settings: Any) -> None:
    """Send messages, each in a request of its own."""
    _run(_load("send", **settings), processes, as_json=as_json)


@bench.command()
@options(_CONNECTIONS, _IN_FLIGHT, _TOPICS, _SIZE, _BATCH, _PROCESSES, _COMMON)
def batch(processes: int, as_json: bool, **settings: Any) -> None:
    """Send messages in batches."""
    _run(_load("batch", **settings), processes, as_json=as_json)


@bench.command(short_help="Pull what is in the topic, again and again.")
@options(_CONNECTIONS, _BATCH, _PROCESSES, _COMMON)
def pull(processes: int, as_json: bool, **settings: Any) -> None:
    """Pull what is in the topic, from the beginning of each queue, again and again.

    A connection has one pull in flight and queues of its own, so no more connections are busy than
    there are queues.
    """
    _run(_load("pull", **settings), processes, as_json=as_json)


@bench.command(short_help="Send at a steady rate, and see how long messages take.")
@options(
    click.option("--rate", default=1000.0, show_default=True, type=NumberParameter(1)),
    _SIZE,
    _COMMON,
)
def e2e(rate: float, as_json: bool, **settings: Any) -> None:
    """Send at a steady rate to consumers that wait, and see how long messages are under way."""
    load = _load("send", **settings)
    try:
        with bench_load.interruptible() as interrupt:
            # Creates the topic: a pull from a topic that does not exist would be refused.
            bench_load.run(load._replace(seconds=0.1), interrupt)
            passed = bench_end_to_end.run(load, rate, interrupt)
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    lost = passed.sent - passed.refused - passed.received
    document = {
        "sent": passed.sent,
        "received": passed.received,
        "refused": passed.refused,
        "messages_per_second": round(passed.sent / passed.seconds, 1),
        "accepted_us": _percentiles(passed.accepted_us),
        "received_us": _percentiles(passed.received_us),
    }
    if as_json:
        show_json(document)
    else:
        show_facts(
            [
                ("messages", f"{passed.sent:,} sent, {passed.received:,} received"),
                ("rate", f"{passed.sent / passed.seconds:,.0f} messages/s of {rate:,.0f}"),
                ("send to its answer", _times(passed.accepted_us)),
                ("send to the consumer", _times(passed.received_us)),
            ]
        )
    if lost or passed.refused:
        raise click.ClickException(f"{passed.refused} sends were refused, {lost} did not arrive")


def _load(
    kind: str,
    *,
    broker: str,
    topic: str,
    queues: int,
    seconds: float,
    connections: int = 1,
    in_flight: int = 1,
    size: int = 1024,
    batch: int = 32,
    topics: int = 1,
) -> Load:
    try:
        host = parse_address(broker, default_port=10911)
    except AddressError as error:
        raise click.UsageError(f"--broker: {error}") from error
    return Load(
        kind,
        host.address,
        host.port,
        topic,
        connections,
        in_flight,
        seconds,
        size,
        queues,
        batch,
        topics,
    )


def _run(load: Load, processes: int, *, as_json: bool) -> None:
    try:
        done = bench_processes.run_in_processes(load, min(processes, load.connections))
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        show_json(
            {
                "messages": done.messages,
                "requests": done.requests,
                "seconds": round(done.seconds, 3),
                "messages_per_second": round(done.rate, 1),
                "latency_us": _percentiles(done.latencies_us),
                "refused": {str(code): many for code, many in sorted(done.refused.items())},
            }
        )
    else:
        show_facts(
            [
                ("messages", f"{done.messages:,} in {done.seconds:.1f} s"),
                ("rate", f"{done.rate:,.0f} messages/s, {done.requests / done.seconds:,.0f} req/s"),
                ("bodies", f"{done.rate * load.size / 1e6:,.1f} MB/s"),
                ("latency", _times(done.latencies_us)),
            ]
        )
    if done.refused:
        codes = "; ".join(
            f"{many} with {response_name(code)} ({code}): {done.remarks.get(code, '')}"
            for code, many in done.refused.items()
        )
        hint = ""
        if ResponseCode.REQUEST_CODE_NOT_SUPPORTED in done.refused:
            hint = f"\nIs {load.host}:{load.port} a broker? A name server takes no messages."
        raise click.ClickException(f"requests were refused: {codes}{hint}")
    if not done.messages:
        hint = f"; `cometmq bench send --topic {load.topic}` puts some there"
        raise click.ClickException(f"nothing was done{hint if load.kind == 'pull' else ''}")


def _percentiles(values_us: array[float]) -> dict[str, float]:
    ordered = sorted(values_us)
    return {
        name: round(ordered[min(int(len(ordered) * part), len(ordered) - 1)], 1) if ordered else 0.0
        for name, part in _PARTS.items()
    }


def _times(values_us: array[float]) -> str:
    return ", ".join(f"{name} {each:,.0f} µs" for name, each in _percentiles(values_us).items())
