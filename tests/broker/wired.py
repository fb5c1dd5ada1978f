"""A broker without an event loop: tests hand it bytes, and its output is kept."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cometmq.broker.broker import DAILY_BREAD, Broker
from cometmq.broker.filter import compiler
from cometmq.net import Peer, Peers
from cometmq.proto.connection import NEED_DATA, Answer, Connection
from cometmq.proto.host import Host
from cometmq.store.disk.filesystem import RealFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.config import BrokerConfig
    from cometmq.proto.buffer import Buffer
    from cometmq.proto.command import Command
    from cometmq.proto.connection import Event
    from cometmq.store.disk.filesystem import FileSystem


PATIENCE_SECONDS: Final = 20

compiler.load()  # Otherwise a thread would answer the first expression.


class WiredPeer(Peer):
    """A driver that keeps the bytes to write, and the other end of the connection."""

    __slots__ = ("client", "is_dropped", "written")

    def __init__(self, peers: Peers) -> None:
        super().__init__(peers)
        self.client = Connection()
        self.written = bytearray()
        self.is_dropped = False

    def _write(self, data: Buffer) -> None:
        self.written += data

    def _write_all(self, buffers: list[Buffer]) -> None:
        for each in buffers:
            self.written += each

    def _unsent_size(self) -> int:
        return 0

    def _pause_reading(self) -> None: ...

    def _resume_reading(self) -> None: ...

    def _close(self) -> None:
        self.is_dropped = True

    def _abort(self) -> None:
        self.is_dropped = True


class Wired:
    """A broker, its clock, and connections to it."""

    def __init__(
        self, config: BrokerConfig, filesystem: FileSystem | None = None, *, threads: bool = True
    ) -> None:
        self.soon: list[Callable[[], None]] = []
        self._told = threading.Event()
        self.now_ms = 1_700_000_000_000
        self.set_by_ms = 0
        """How far somebody has moved the wall clock."""
        self.changed: list[str] = []
        self.broker = Broker(
            config,
            RealFileSystem() if filesystem is None else filesystem,
            address=Host("127.0.0.1", config.listen_port),
            call_soon_threadsafe=self._soon_from_thread,
            topic_changed=self.changed.append,
            unsaved=lambda: None,
            store_changed=lambda: None,
            now_ms=lambda: self.now_ms + self.set_by_ms,
            elapsed_ms=lambda: self.now_ms,
            threads=threads,
        )
        self.peers = Peers(self.broker, call_soon=self.soon.append, request_reader=DAILY_BREAD)
        self._ports = 0
        self.save()

    def _soon_from_thread(self, function: Callable[[], None]) -> None:
        self.soon.append(function)
        self._told.set()

    def connect(self, *, vip: bool = False, from_port: int | None = None) -> WiredPeer:
        """Open a connection."""
        self._ports += 1
        peer = WiredPeer(self.peers)
        port = self.broker.state.config.vip_port if vip else 10911
        assert port is not None
        assert peer.open(Host("127.0.0.1", from_port or 40000 + self._ports), port)
        return peer

    def save(self) -> None:
        """Save the changed tables and tell the name servers, as the daemon does."""
        self.save_tables()
        self.broker.told(self.broker.state.topics.file.version)
        self.turn()

    def save_tables(self) -> None:
        """Save the changed tables."""
        for table in filter(lambda table: table.is_changed, self.broker.tables):
            version, snapshot = table.begin_save()
            table.write(snapshot)
            self.broker.saved(table, version)
        self.turn()

    def sync(self) -> None:
        """Let the disk confirm the writes of a broker without threads."""
        self.broker.store.run_jobs()
        self.broker.synced()
        self.turn()

    def turn(self) -> None:
        """Run what the loop would run next."""
        while self.soon:
            self.soon.pop(0)()

    def give(self, peer: WiredPeer, *frames: bytes) -> None:
        """Let the broker receive these frames at once, and end its turn."""
        peer.data_received(b"".join(frames))
        self.turn()

    def events(self, peer: WiredPeer) -> list[Event]:
        """Take everything that the broker has sent."""
        if peer.written:  # Empty data would be the end of the stream.
            peer.client.receive_data(bytes(peer.written))
            peer.written.clear()
        found: list[Event] = []
        while (event := peer.client.next_event()) is not NEED_DATA:
            found.append(event)
        return found

    def answers(self, peer: WiredPeer) -> list[Command]:
        """Take the answers that the broker has sent."""
        return [event.response for event in self.events(peer) if isinstance(event, Answer)]

    def answers_of_threads(self, peer: WiredPeer) -> list[Command]:
        """Wait for the answers, whose data threads fetch, and take them."""
        while not peer.written:
            assert self._told.wait(PATIENCE_SECONDS), "no thread has anything to tell"
            self._told.clear()
            self.turn()
        return self.answers(peer)

    def frame(self, peer: WiredPeer, request: Command) -> bytes:
        """Encode a request with a new number."""
        numbered = replace(request, opaque=peer.client.new_opaque())
        return b"".join(peer.client.send(numbered))

    def ask(self, peer: WiredPeer, request: Command) -> Command:
        """Send a request, save what its answer waits for, and return the answer."""
        self.give(peer, self.frame(peer, request))
        self.save()
        (answer,) = self.answers(peer)
        return answer

    def close(self) -> None:
        """Shut the broker down."""
        self.peers.close("the test is over")
        self.broker.close(self.now_ms)
