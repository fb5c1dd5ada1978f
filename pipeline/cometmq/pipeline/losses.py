"""Messages that expire between the planning and the reading of a batch: how tasks report them.

Spark gives a Python source no way back from a task to the planning process: no metric, accumulator
or message. So that process listens on a port, at the address from which it reaches brokers: tasks
that read from these brokers can reach it there, too. A task that skips messages reports how many
before it ends. A task that is run again reports the same range again, which counts once. A report
that cannot be sent is only in the task's log.

A report is a line of JSON, and is answered with a byte if it counts:

=========  ==========================================================
member     content
=========  ==========================================================
`token`    a secret that the planning process gave only to its tasks
`queue`    topic, broker and number of the queue
`first`    where the task's range begins
`lost`     how many messages of it had expired
=========  ==========================================================

Reports count with the next batch. When a stream ends, there is no next batch: the job that runs it,
on the same machine, asks for the rest, with `take` in place of the other members, and is answered
with a line that has the number. It finds port and token in a file whose name it gave the stream.
"""

from __future__ import annotations

import atexit
import hmac
import json
import logging
import secrets
import shutil
import socket
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline.cluster import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.pipeline.planning import Range

log = logging.getLogger(__name__)

_REPORT_SIZE_MAX: Final = 4096
_TIMEOUT: Final = 5.0
"""Seconds without a byte after which either side gives up."""
_PAUSE_SECONDS: Final = 0.1
_WAITING_MAX: Final = 128
_RANGES_MAX: Final = 1_000_000
"""How many ranges of a batch are remembered; a batch has some thousands at most."""
_HEARD: Final = b"+"


class Listener(NamedTuple):
    """Where a task reports what it skipped."""

    host: str
    port: int
    token: str


_unreachable: Final[set[Listener]] = set()
"""The listeners that this process could not reach, so that no other task waits for them."""


def tell(listener: Listener, part: Range, lost: int) -> None:
    """Report that messages of a range had expired before they were read."""
    queue = part.queue
    said = {"token": listener.token, "queue": list(queue), "first": part.first, "lost": lost}
    try:
        if listener in _unreachable:
            raise TimeoutError("it could not be reached before either")
        with socket.create_connection(listener[:2], timeout=_TIMEOUT) as peer:
            peer.sendall(json.dumps(said).encode() + b"\n")
            if peer.recv(1) == _HEARD:
                return
            why = "it did not answer"
    except OSError as error:
        _unreachable.add(listener)
        why = str(error)
    log.warning(
        "queue %s: %d messages that had expired are not counted as lost, because the driver could"
        " not be told at %s:%d: %s",
        *(queue, lost, listener.host, listener.port, why),
    )


_notes: Final[dict[str, str]] = {}
"""By checkpoint, the files in which streams of this process note where they listen."""


def note_here(checkpoint: str) -> str:
    """Return the file in which the stream of a checkpoint is to note where it listens."""
    if checkpoint not in _notes:
        folder = tempfile.mkdtemp(prefix="cometmq-losses-")  # For this user only.
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _notes[checkpoint] = f"{folder}/listener"
    return _notes[checkpoint]


def untold(checkpoint: str) -> int:
    """Return, and reset, how many messages a stream lost that no batch reports."""
    if checkpoint not in _notes:
        return 0
    try:
        host, port, token = json.loads(Path(_notes[checkpoint]).read_text())
        with socket.create_connection((host, port), timeout=_TIMEOUT) as peer:
            peer.sendall(json.dumps({"token": token, "take": True}).encode() + b"\n")
            with peer.makefile("rb") as lines:
                return int(lines.readline(_REPORT_SIZE_MAX))
    except (OSError, ValueError, TypeError):  # The stream planned nothing, or has ended.
        return 0


class Losses:
    """The reports of tasks, in the planning process."""

    def __init__(self, note: str = "") -> None:
        self._note = note
        self._heard: dict[tuple[Queue, int], int] = {}
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._has_failed = False

    def listener(self, addresses: Iterable[str]) -> Listener | None:
        """Return where tasks that read from these brokers report; `None` if nobody listens."""
        if self._listener is None and not self._has_failed:
            try:
                self._listener = self._listening(_own_host(addresses))
                if self._note:
                    _write_note(self._note, self._listener)
            except OSError as error:
                self._has_failed = True
                log.warning("what expires while it is read is not counted as lost: %s", error)
        return self._listener

    def taken(self) -> int:
        """Return how many messages were lost since the last call."""
        with self._lock:
            count = sum(self._heard.values())
            self._heard.clear()
        return count

    def _listening(self, host: str) -> Listener:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = socket.create_server((host, 0), family=family, backlog=_WAITING_MAX)
        token = secrets.token_hex(16)
        # A daemon, as Spark ends the process without notice.
        thread = threading.Thread(
            target=self._listen, args=(server, token), name="cometmq losses", daemon=True
        )
        thread.start()
        return Listener(host, server.getsockname()[1], token)

    def _listen(self, server: socket.socket, token: str) -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:  # The client has gone, or too many files are open at the moment.
                time.sleep(_PAUSE_SECONDS)
                continue
            try:
                with peer:
                    peer.settimeout(_TIMEOUT)
                    with peer.makefile("rb") as lines:
                        peer.sendall(self._answer(lines.readline(_REPORT_SIZE_MAX), token))
            except OSError:
                continue  # The task reports it again, or has it in its log.

    def _answer(self, line: bytes, token: str) -> bytes:
        """Return the answer to a report or to `take`; nothing to anybody else."""
        try:
            said = json.loads(line)
            if not hmac.compare_digest(str(said["token"]).encode(), token.encode()):
                return b""
            if said.get("take") is True:
                return b"%d\n" % self.taken()
            topic, broker, number = said["queue"]
            key = Queue(str(topic), str(broker), int(number)), int(said["first"])
            lost = int(said["lost"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return b""
        with self._lock:
            if len(self._heard) >= _RANGES_MAX:
                return b""
            self._heard[key] = lost
        return _HEARD


def _write_note(note: str, listener: Listener) -> None:
    path = Path(note)
    with suppress(OSError):  # Then nobody can find it to ask.
        path.touch(0o600)
        path.write_text(json.dumps(listener))


def _own_host(addresses: Iterable[str]) -> str:
    """Return this machine's address on the way to brokers: a loopback if one of them is here.

    Tasks that read from a broker at a loopback address are on this machine, too.
    """
    hosts = {_way_to(address) for address in addresses}
    return min(hosts, key=lambda host: (not host.startswith("127.") and host != "::1", host))


def _way_to(address: str) -> str:
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    family, kind, _, _, where = found[0]
    with socket.socket(family, kind) as way:
        way.connect(where)  # This sends nothing.
        own: str = way.getsockname()[0]
    return own
