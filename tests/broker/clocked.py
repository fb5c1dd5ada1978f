"""A broker on a simulated disk whose clock is moved by hand, and a client of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.broker.running import config_of, pull_request
from tests.broker.wired import Wired

from cometmq.proto.codes import ResponseCode
from cometmq.proto.message_list import MessageList

if TYPE_CHECKING:
    from tests.broker.wired import WiredPeer
    from tests.crash.disk import SimulatedFileSystem

    from cometmq.broker.config import BrokerConfig
    from cometmq.proto.command import Command
    from cometmq.proto.message import StoredMessage

TOPIC = "BenchmarkTest"
FOLDER = Path("/simulated")


class Clocked:
    """A broker whose clock is moved by hand, and a client."""

    def __init__(self, disk: SimulatedFileSystem, config: BrokerConfig | None = None) -> None:
        self.disk = disk
        self.config = config or config_of(FOLDER)
        self.wired: Wired
        self.peer: WiredPeer
        self.now_ms = 1_700_000_000_000
        self.start(disk)

    def start(self, disk: SimulatedFileSystem) -> None:
        """Start on the contents of a disk."""
        self.disk = disk
        self.wired = Wired(self.config, disk, threads=False)
        self.wired.now_ms = self.now_ms
        self.peer = self.wired.connect()

    def ask(self, request: Command, peer: WiredPeer | None = None) -> Command:
        """Send a request, let the disk confirm the messages that it puts, and return the answer."""
        peer = peer or self.peer
        self.wired.give(peer, self.wired.frame(peer, request))
        self.wired.sync()
        (answer,) = self.wired.answers(peer)
        return answer

    def pass_time(self, duration_ms: int) -> None:
        """Let time pass, and do the work that is then due."""
        self.now_ms += duration_ms
        self.wired.now_ms = self.now_ms
        self.work()

    def work(self) -> int:
        """Do the work that is due and return how much it was."""
        broker, count = self.wired.broker, 0
        for step in (broker.delays.step, broker.transactions.step):
            fetched = None
            while True:
                done = step(self.now_ms, fetched)
                count += done.done
                fetched = [broker.store.fetch(cold) for cold in done.cold] or None
                if done.refused or not (done.done or done.cold):
                    break
        self.wired.sync()
        return count

    def messages(self, queue_id: int = 0, topic: str = TOPIC) -> list[StoredMessage]:
        """Pull all messages of a queue."""
        found: list[StoredMessage] = []
        while True:
            request = pull_request(topic, len(found), queue_id=queue_id)
            answer = self.wired.ask(self.peer, request)
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += list(MessageList(answer.body))

    def bodies(self, topic: str = TOPIC) -> list[bytes]:
        """Pull all bodies of a topic's first queue."""
        return [message.body for message in self.messages(topic=topic)]
