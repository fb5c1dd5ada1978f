"""The time that a name server takes for a request, from the frame's bytes to the answer's.

    python -m bench.nameserver [--brokers 100] [--topics 1000] [--distinct]

It is CPU time in one process, without sockets: `--brokers` masters register `--topics` topics each,
the same ones or, with `--distinct`, different ones. The yardstick is a loop of a thousand dict
look-ups, to compare runs on busy or different machines.
"""

from __future__ import annotations

import argparse
import statistics
import time
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cometmq.nameserver import NameServer, NameServerConfig
from cometmq.proto.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from cometmq.proto.checksum import crc31
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command
from cometmq.proto.commands.broker import RegisterBroker
from cometmq.proto.commands.route import GetRouteInfoByTopic
from cometmq.proto.frame import FrameParser, frame_head
from cometmq.proto.header_codecs import HEADER_CODECS
from cometmq.proto.header_json import JSON
from cometmq.store.disk.filesystem import RealFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FIELDS_MAX = 256


def frame_of(command: Command) -> bytes:
    """Encode a command as a client sends it."""
    header = JSON.encode(command)
    body = bytes(command.body or b"")
    return frame_head(0, len(header), len(body)) + header + body


def registration(broker: int, topics: Iterable[str], counter: int) -> bytes:
    """Make the frame of a master's registration."""
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigTable(
            data_version=DataVersion(counter=counter, timestamp=1),
            topic_config_table={name: TopicConfig(topic_name=name) for name in topics},
        )
    ).encode()
    header = RegisterBroker(
        broker_name=f"broker-{broker}",
        cluster_name="DefaultCluster",
        broker_addr=f"10.0.{broker // 250}.{broker % 250}:10911",
        broker_id=0,
        ha_server_addr=f"10.0.{broker // 250}.{broker % 250}:10912",
        enable_acting_master=False,
        body_crc32=crc31(body),
    )
    return frame_of(Command(RequestCode.REGISTER_BROKER, header, body=body))


class Measured:
    """A name server that is given frames, and its CPU time for each."""

    def __init__(self, folder: str) -> None:
        config = NameServerConfig(kv_config_path=f"{folder}/kvConfig.json")
        self.server = NameServer.open(config, RealFileSystem(), now_ms=0)

    def ask(self, frame: bytes, connection_id: int) -> int:
        """Serve one frame; return the nanoseconds of CPU that it took."""
        begun = time.process_time_ns()
        parser = FrameParser()
        parser.receive_data(frame)
        found = parser.next_frame()
        assert found is not None
        request = HEADER_CODECS[found[0]].decode(found[1], found[2], FIELDS_MAX)
        response = self.server.handle(request, connection_id=connection_id, peer="bench", now_ms=0)
        assert response is not None
        JSON.encode(response)
        spent = time.process_time_ns() - begun
        assert response.code == 0, response.remark
        return spent


def show(what: str, spent: list[int], yardstick: float) -> None:
    """Print the least, the median and the greatest of some times."""
    times = [min(spent), statistics.median(spent), max(spent)]
    texts = "".join(f"{each / 1000:>12,.1f}" for each in times)
    print(f"{what:<44}{texts}{times[1] / yardstick:>12,.2f}")


def yardstick_ns() -> float:
    """Time a thousand dict look-ups, in the best of many runs."""
    table = {str(number): number for number in range(1000)}

    def run() -> int:
        begun = time.process_time_ns()
        for key in table:
            table[key]
        return time.process_time_ns() - begun

    return min(run() for _ in range(200))


def main(arguments: Sequence[str] | None = None) -> None:
    """Register, ask, and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.nameserver",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--distinct", action="store_true")
    options = parser.parse_args(arguments)

    def names(broker: int) -> list[str]:
        prefix = f"orders-{broker}" if options.distinct else "orders"
        return [f"{prefix}-{number}" for number in range(options.topics)]

    def frames(counter: int) -> list[bytes]:
        return [registration(broker, names(broker), counter) for broker in range(options.brokers)]

    with TemporaryDirectory() as folder:
        measured = Measured(folder)
        unit = yardstick_ns()
        print(f"{'microseconds of CPU':<44}{'min':>12}{'median':>12}{'max':>12}{'yardsticks':>12}")
        for what, counter in (("first", 1), ("unchanged", 1), ("changed version", 2)):
            sent = frames(counter)
            show(
                f"registration of {options.topics} topics, {what}",
                [measured.ask(frame, broker) for broker, frame in enumerate(sent)],
                unit,
            )
        asked = [
            frame_of(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoByTopic(name)))
            for name in names(0)
        ]
        for what in ("first", "again"):
            show(
                f"route of a topic, {what}",
                [measured.ask(frame, options.brokers) for frame in asked],
                unit,
            )


if __name__ == "__main__":
    main()
