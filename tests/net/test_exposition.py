"""The metrics page: how families are rendered, in pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator

import trio
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.net.test_pages import asked

from cometmq.net import alone, listen_on
from cometmq.net.exposition import (
    SAMPLES_A_PIECE,
    Exposition,
    Family,
    Scribe,
    render,
)
from cometmq.proto.durations import Durations
from cometmq.proto.host import Host

COUNTER = Family("things_total", "counter", "Things.")
GAUGE = Family("size", "gauge", "A size.")
HISTOGRAM = Family("time_seconds", "histogram", "A time.")


def rendered(*metrics: Iterator[Metric]) -> str:
    return b"".join(render(piece for each in metrics for piece in each)).decode()


def test_a_family_in_many_pieces_has_one_head() -> None:
    samples = [({"n": str(number)}, number) for number in range(3 * SAMPLES_A_PIECE + 1)]
    scribe = Scribe(where="here")
    text = rendered(scribe.family(COUNTER, samples), scribe.single(GAUGE, 1.5, of="it"))
    assert text.count("# HELP things_total Things.\n") == 1
    assert text.count("# TYPE things_total counter\n") == 1
    found = {family.name: family for family in text_string_to_metric_families(text)}
    things = found["things"].samples
    assert [(each.labels, each.value) for each in things] == [
        ({"n": labels["n"], "where": "here"}, value) for labels, value in samples
    ]
    assert found["size"].samples[0].labels == {"of": "it", "where": "here"}


def test_a_family_without_samples_is_not_there() -> None:
    assert rendered(Scribe().family(COUNTER, [])) == ""


def test_durations_are_cumulative_buckets_in_seconds() -> None:
    durations = Durations()
    durations.add(3)
    durations.add(100, 2)
    durations.add(1 << 30)
    text = rendered(Scribe().durations(HISTOGRAM, [({"k": "v"}, durations)]))
    (family,) = text_string_to_metric_families(text)
    buckets = {
        each.labels["le"]: each.value for each in family.samples if each.name.endswith("_bucket")
    }
    ends = list(buckets)
    assert ends[-1] == "+Inf"
    assert list(map(float, ends)) == sorted(map(float, ends))
    assert buckets["1.6e-05"] == 1
    assert (buckets["6.4e-05"], buckets["0.000128"]) == (1, 3)
    assert (buckets["8.388608"], buckets["+Inf"]) == (3, 4)
    others = {each.name: each.value for each in family.samples[-2:]}
    assert others == {"time_seconds_sum": 203e-6 + (1 << 30) / 1e6, "time_seconds_count": 4}


def test_a_piece_takes_less_than_a_slice() -> None:
    """Takes the processor time of the slowest of many pieces, in the best of some runs."""
    samples = [({"topic": f"a-topic-{n}", "group": f"a-group-{n}"}, n) for n in range(500)]
    best_ns = min(slowest(samples) for _ in range(5))
    assert best_ns < 2_000_000


def slowest(samples: list[tuple[dict[str, str], int]]) -> int:
    pieces = render(Scribe(cluster="c", node="n").family(COUNTER, samples))
    longest = 0
    while True:
        begun = time.thread_time_ns()
        if next(pieces, None) is None:
            return longest
        longest = max(longest, time.thread_time_ns() - begun)


class Thing:
    """A source that may have a problem."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.prepared = 0

    async def prepare(self) -> None:
        await trio.lowlevel.checkpoint()
        self.prepared += 1

    def collect(self) -> Iterator[Metric]:
        yield from Scribe().single(GAUGE, 42)

    def problems(self) -> list[str]:
        return self.wrong


async def test_the_pages_say_how_the_process_is() -> None:
    (listening,) = listen_on([Host("127.0.0.1", 0)])
    exposition = Exposition(alone.repeat)

    async def got(path: str) -> str:
        return (await asked(address, f"GET {path} HTTP/1.1\r\n\r\n".encode())).decode()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(exposition.serve, listening)
            assert "503" in (starting := await got("/readyz"))
            assert starting.endswith("it is starting\n")
            assert (await got("/healthz")).endswith("ok\n")
            thing = Thing()
            exposition.add(thing)
            assert (await got("/readyz")).endswith("ready\n")
            thing.wrong = ["it is broken"]
            assert (refused := await got("/readyz")).endswith("it is broken\n")
            assert "503" in refused
            page = await got("/metrics")
            nursery.cancel_scope.cancel()
    assert thing.prepared == 1
    assert "Content-Type: text/plain; version=" in page
    names = {f.name for f in text_string_to_metric_families(page.partition("\r\n\r\n")[2])}
    assert {"cometmq_build_info", "process_cpu_seconds", "cometmq_gc_pause_seconds"} <= names
    assert "size" in names
