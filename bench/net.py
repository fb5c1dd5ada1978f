"""`python -m bench.net`: the upper limit of a broker: sends are read and answered, without a store.

The driver and the whole protocol stack do their work: each SEND_MESSAGE_V2 is parsed, its fields
are read, it waits for the end of the turn, and its answer has all the fields of a real one. The
load comes from mqload.c over loopback; server and client share the machine. The CPU time is the
server's, as charged by the scheduler, which a busy machine disturbs less than the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio
import uvloop

from bench import mqload
from bench.compiled import compiled
from bench.mqload import Load
from cometmq.net import LATER, Peers, listen_on, serve, trio_streams
from cometmq.proto.codes import RequestCode
from cometmq.proto.commands import SendMessageResponse, SendMessageV2
from cometmq.proto.header_typed import RequestReader
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.net import Later, Peer
    from cometmq.proto.command import Command

LOOPS = ("uvloop", "asyncio", "trio")
LOADS = (Load("send", 64, 1), Load("send", 8, 32), Load("send", 1, 1))
RUN_SECONDS = 2


class AcknowledgingOwner:
    """Answers each send at the end of its turn, as if one write had stored them all."""

    def __init__(self) -> None:
        self.queue_offset = 0
        self.turn_count = 0
        self._waiting: list[tuple[Peer, Command, Command]] = []

    def handle(self, request: Command, peer: Peer) -> Later:
        """Read a send and postpone its answer."""
        fields = request.read(SendMessageV2)
        self.queue_offset += 1
        answer = SendMessageResponse(
            msg_id="7F000001000055B5000000000007B916",
            queue_id=fields.queue_id,
            queue_offset=self.queue_offset,
            transaction_id="7F0000014D2C18B4AAC2000000000001",
            region_id="DefaultRegion",
            trace_on=True,
        )
        self._waiting.append((peer, request, request.answer(0, answer)))
        return LATER

    def end_turn(self) -> None:
        """Answer the sends of the turn."""
        if self._waiting:
            self.turn_count += 1
            for peer, request, answer in self._waiting:
                peer.answer(request, answer)
            self._waiting.clear()

    def opened(self, peer: Peer) -> None:
        """Do nothing."""

    def closed(self, peer: Peer) -> None:
        """Print how many requests a turn had in the run that ended."""
        if not len(peer.peers):
            print(self.queue_offset / max(self.turn_count, 1), flush=True)
            self.queue_offset = self.turn_count = 0


def _peers(call_soon: Callable[[Callable[[], None]], object]) -> Peers:
    reader = RequestReader({RequestCode.SEND_MESSAGE_V2: SendMessageV2})
    return Peers(AcknowledgingOwner(), call_soon=call_soon, request_reader=reader)


async def _on_loop() -> None:
    peers = _peers(asyncio.get_running_loop().call_soon)
    server = await serve(peers, listen_on([Host("127.0.0.1", 0)]))
    print(server.addresses[0].port, flush=True)
    await asyncio.Event().wait()


async def _on_trio() -> None:
    soon = trio.lowlevel.current_trio_token().run_sync_soon
    async with trio.open_nursery() as nursery:
        peers = _peers(soon)
        listening = listen_on([Host("127.0.0.1", 0)])
        addresses: list[Host] = await nursery.start(trio_streams.serve, peers, listening)
        print(addresses[0].port, flush=True)


def serve_on(loop: str) -> None:
    """Be the server, until killed."""
    if loop == "trio":
        trio.run(_on_trio)
    elif loop == "uvloop":
        uvloop.run(_on_loop())
    else:
        asyncio.run(_on_loop())


class Run(NamedTuple):
    """The result of one run of the load generator."""

    rate: float
    p50_us: float
    p99_us: float
    cpu_us: float
    requests_a_turn: float


def _cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def measure(program: Path, server: subprocess.Popen[str], port: int, load: Load) -> Run:
    """Run the load generator once."""
    before = _cpu_ns(server.pid)
    shown = mqload.run(program, load, port, "TopicTest", RUN_SECONDS)
    assert server.stdout is not None
    requests_a_turn = float(server.stdout.readline())
    cpu_ns = _cpu_ns(server.pid) - before
    cpu_us = cpu_ns / 1000 / shown.messages
    return Run(shown.rate, shown.p50_us, shown.p99_us, cpu_us, requests_a_turn)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each loop under each load: the best of several runs, as noise only adds."""
    parser = argparse.ArgumentParser(prog="python -m bench.net", description=__doc__)
    parser.add_argument("--serve", choices=LOOPS, help="be the server, and print the port")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("loop", nargs="*", default=list(LOOPS))
    options = parser.parse_args(arguments)
    if options.serve:
        serve_on(options.serve)
        return
    print("| loop | load | msg/s | p50 µs | p99 µs | server CPU µs/msg | requests a turn |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        program = compiled("mqload", Path(folder))
        for loop in options.loop:
            _measure_loop(program, loop, options.runs)


def _measure_loop(program: Path, loop: str, run_count: int) -> None:
    command = [sys.executable, "-m", "bench.net", "--serve", loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            for load in LOADS:
                runs = [measure(program, server, port, load) for _ in range(run_count)]
                print(
                    f"| {loop} | {load.connections} x {load.in_flight}"
                    f" | {max(r.rate for r in runs):,.0f}"
                    f" | {min(r.p50_us for r in runs):.0f} | {min(r.p99_us for r in runs):.0f}"
                    f" | {min(r.cpu_us for r in runs):.1f}"
                    f" | {max(r.requests_a_turn for r in runs):.1f} |",
                    flush=True,
                )
        finally:
            server.kill()


if __name__ == "__main__":
    main()
