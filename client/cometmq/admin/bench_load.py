"""The load generator: connections that each keep some requests in flight, on one epoll.

Sockets are blocking: the requests in flight bound what is written at once, and any server reads
that as long as its answers fit into the socket. Answers are parsed only as far as needed: the
request number, whether it succeeded, and for a pull where it ended.
"""

from __future__ import annotations

import select
import signal
import socket
import struct
import threading
import time
from array import array
from collections import Counter, deque
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cometmq.admin.bench_frames import (
    OPAQUE_MAX,
    OPAQUE_MIN,
    BatchForm,
    PullForm,
    SendForm,
    topic_part,
)
from cometmq.net.errors import reason_of
from cometmq.proto.capture import decode_frame
from cometmq.proto.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from cometmq.proto.command import Command

READ_SIZE: Final = 256 * 1024
_room: Final = bytearray(READ_SIZE)
"""The buffer into which all connections read. A `recv` of this size would get the memory from the
kernel and give it back each time, which took two thirds of a send."""
_view: Final = memoryview(_room)
_unpack_size: Final = struct.Struct(">I").unpack_from
_GOOD: Final = b'{"code":0,'
_OPAQUE: Final = b'"opaque":'
_OPAQUE_DIGITS: Final = len(str(OPAQUE_MAX))
_NEXT: Final = b'"nextBeginOffset":"'
_HEAD_SIZE: Final = 8
REST_SECONDS: Final = 0.05
"""How long a connection pauses after a refusal."""
REFUSALS_MAX: Final = 100
"""A run ends after this many refusals that waiting will not cure."""
_BUSY: Final = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL}
)


class BenchError(Exception):
    """The load cannot be generated, or the broker went away."""


class Load(NamedTuple):
    """The parameters of a load."""

    kind: str
    """`send`, `batch` or `pull`."""
    host: str
    port: int
    topic: str
    connections: int
    in_flight: int
    """Requests in flight on each connection; pulls always have one."""
    seconds: float
    size: int
    """The size of a body in bytes."""
    queues: int
    batch: int
    """The messages of a batch, and at most of a pull."""
    topics: int = 1
    """If more than one, each topic's number is appended to the name."""
    share: range | None = None
    """The numbers of this process's connections; None for all."""


class Done(NamedTuple):
    """The result of a load."""

    messages: int
    requests: int
    seconds: float
    refused: Counter[int]
    """Requests that were not answered with success, by response code."""
    remarks: dict[int, str]
    """The broker's remark on the first refusal with each code."""
    latencies_us: array[float]
    """The latencies of all requests, in no order."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0


def received(connection: socket.socket) -> bytes:
    """Read what has arrived; there must be something."""
    size = connection.recv_into(_room)
    if not size:
        raise BenchError("the broker closed the connection")
    return bytes(_view[:size])


class _Work(Protocol):
    """The work of one connection."""

    in_flight: int

    def request(self, opaque: int, now_ns: int) -> bytes | None:
        """Make the next request; None if there is nothing more to ask."""
        ...

    def take(self, buffer: bytes, at: int, end: int) -> int:
        """Take a good answer, and return the number of its messages."""
        ...

    def refused(self, buffer: bytes, at: int, end: int) -> Command | None:
        """Take any other answer; return it if it is a refusal, else None."""
        ...


def topics_of(load: Load) -> list[str]:
    """Return the topics of a load."""
    if load.topics == 1:
        return [load.topic]
    return [f"{load.topic}{number}" for number in range(load.topics)]


def _form(load: Load, topic: str, queue: int) -> SendForm | BatchForm:
    if load.kind == "batch":
        return BatchForm(topic, queue, load.queues, load.size, load.batch)
    return SendForm(topic, queue, load.queues, load.size)


class Sends:
    """Sends, or batches, to all queues in turn; shared by all connections of a process."""

    def __init__(self, load: Load, messages: count[int]) -> None:
        self.in_flight = load.in_flight
        self._topics = [topic_part(topic) for topic in topics_of(load)]
        self._forms = {
            len(topic_part(topic)): [_form(load, topic, queue) for queue in range(load.queues)]
            for topic in {len(topic_part(topic)): topic for topic in topics_of(load)}.values()
        }
        self._places = load.queues * len(self._topics)
        self._messages = messages
        self._count = load.batch if load.kind == "batch" else 1
        self._turn = 0

    def request(self, opaque: int, now_ns: int) -> bytes | None:
        """Make the next send."""
        self._turn = turn = (self._turn + 1) % self._places
        queue, number = divmod(turn, len(self._topics))
        topic = self._topics[number]
        form = self._forms[len(topic)][queue]
        return form.frame_to(topic, opaque, next(self._messages), now_ns)

    def take(self, buffer: bytes, at: int, end: int) -> int:  # noqa: ARG002  # See _Work.
        """Take an answer, which counts for all messages of its send."""
        return self._count

    def refused(self, buffer: bytes, at: int, end: int) -> Command | None:
        """Take a refusal."""
        return decode_frame(buffer[at:end])


class _Pulls:
    """Pulls of some queues from start to end, repeatedly."""

    in_flight = 1

    def __init__(self, load: Load, number: int) -> None:
        queues = range(number, load.queues, load.connections)
        self._forms = [PullForm(load.topic, queue, load.batch) for queue in queues]
        self._place = 0
        self._offset = 0
        self._empty = 0

    def request(self, opaque: int, now_ns: int) -> bytes | None:  # noqa: ARG002  # See _Work.
        if self._empty >= len(self._forms):  # Also if it has no queue.
            return None
        return self._forms[self._place].frame(self._offset, opaque)

    def take(self, buffer: bytes, at: int, end: int) -> int:
        found = buffer.index(_NEXT, at, end) + len(_NEXT)
        begun, self._offset = self._offset, int(buffer[found : buffer.index(b'"', found)])
        self._empty = 0
        return self._offset - begun

    def refused(self, buffer: bytes, at: int, end: int) -> Command | None:
        answer = decode_frame(buffer[at:end])
        if answer.code == ResponseCode.PULL_OFFSET_MOVED and not self._offset:
            self._offset = int(answer.ext_fields["nextBeginOffset"])  # The first messages expired.
        elif answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            self._empty += not self._offset
            self._offset = 0
            self._place = (self._place + 1) % len(self._forms)
        else:
            return answer
        return None


class Link:
    """One connection with its requests in flight."""

    def __init__(self, load: Load, work: _Work, opaques: Callable[[], int]) -> None:
        self.socket = socket.create_connection((load.host, load.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.messages = 0
        self.is_idle = False
        self.latencies_us: array[float] = array("f")
        self.refused: Counter[int] = Counter()
        self.remarks: dict[int, str] = {}
        self._work = work
        self._opaques = opaques
        self._sent_ns: dict[int, int] = {}
        self._rest = b""

    def start(self) -> None:
        """Send the first requests."""
        self.fill(self._work.in_flight)

    def fill(self, count: int) -> None:
        """Send up to `count` requests."""
        now_ns = time.perf_counter_ns()
        frames: list[bytes] = []
        for _ in range(count):
            opaque = self._opaques()
            frame = self._work.request(opaque, now_ns)
            if frame is None:
                self.is_idle = not self._sent_ns
                break
            self._sent_ns[opaque] = now_ns
            frames.append(frame)
        if frames:
            self.socket.sendall(frames[0] if len(frames) == 1 else b"".join(frames))

    def receive(self) -> int:
        """Read once; return how many requests were answered."""
        data = received(self.socket)
        now_ns = time.perf_counter_ns()
        buffer = self._rest + data if self._rest else data
        at, size, answered = 0, len(buffer), 0
        work, sent_ns, late = self._work, self._sent_ns, self.latencies_us.append
        while size - at > _HEAD_SIZE:
            end = at + 4 + _unpack_size(buffer, at)[0]
            if end > size:
                break
            found = buffer.index(_OPAQUE, at, end) + len(_OPAQUE)
            begun_ns = sent_ns.pop(int(buffer[found : found + _OPAQUE_DIGITS]), 0)
            if begun_ns:  # Otherwise it is a request of the broker.
                answered += 1
                late((now_ns - begun_ns) / 1000)
                if buffer.startswith(_GOOD, at + _HEAD_SIZE):
                    self.messages += work.take(buffer, at, end)
                elif (answer := work.refused(buffer, at, end)) is not None:
                    self.refused[answer.code] += 1
                    self.remarks.setdefault(answer.code, (answer.remark or "").strip())
            at = end
        self._rest = buffer[at:]
        return answered


def run(load: Load, interrupt: Interrupt) -> Done:
    """Generate a load, or this process's share of it."""
    share = load.share or range(load.connections)
    messages = count(share.start << 32, load.batch if load.kind == "batch" else 1)
    opaques = _numbers().__next__
    links: dict[int, Link] = {}
    sends = None if load.kind == "pull" else Sends(load, messages)
    try:
        for number in share:
            work = sends or _Pulls(load, number)
            link = Link(load, work, opaques)
            links[link.socket.fileno()] = link
        begun = time.perf_counter()
        _drive(links, begun + load.seconds, interrupt)
        seconds = time.perf_counter() - begun
    except OSError as error:
        raise BenchError(f"{load.host}:{load.port}: {reason_of(error)}") from error
    finally:
        for link in links.values():
            link.socket.close()
    return Done(
        sum(link.messages for link in links.values()),
        sum(len(link.latencies_us) for link in links.values()),
        seconds,
        sum((link.refused for link in links.values()), Counter[int]()),
        {code: text for link in links.values() for code, text in link.remarks.items()},
        sum((link.latencies_us for link in links.values()), array("f")),
    )


def _numbers() -> Iterator[int]:
    while True:
        yield from range(OPAQUE_MIN, OPAQUE_MAX + 1)


class Interrupt:
    """Whether a Ctrl-C has come; what was measured until then is the result."""

    has_come = False


@contextmanager
def interruptible() -> Generator[Interrupt]:
    """Note a Ctrl-C within the block instead of raising."""
    interrupt = Interrupt()

    def note(number: int, frame: object) -> None:  # noqa: ARG001  # A signal handler's.
        interrupt.has_come = True

    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


def _drive(links: dict[int, Link], end: float, interrupt: Interrupt) -> None:
    """Send a request for each answer, until the time is up or all connections are idle.

    A connection whose requests were refused rests a moment. Refusals that waiting will not cure end
    the run: it would only measure how fast a broker refuses.
    """
    resting: deque[tuple[float, Link, int]] = deque()
    with select.epoll() as poll:
        for descriptor in links:
            poll.register(descriptor, select.EPOLLIN)
        for link in links.values():
            link.start()
        while (left := end - time.perf_counter()) > 0 and not interrupt.has_come:
            if all(link.is_idle for link in links.values()):
                break
            while resting and resting[0][0] <= time.perf_counter():
                _, link, answered = resting.popleft()
                link.fill(answered)
            for descriptor, _ in poll.poll(min(REST_SECONDS if resting else 0.1, left)):
                link = links[descriptor]
                refused = link.refused.total()
                if not (answered := link.receive()):
                    continue
                if link.refused.total() > refused:
                    if _is_refused_for_good(links.values()):
                        return
                    resting.append((time.perf_counter() + REST_SECONDS, link, answered))
                else:
                    link.fill(answered)


def _is_refused_for_good(links: Iterable[Link]) -> bool:
    counts = (count for link in links for code, count in link.refused.items() if code not in _BUSY)
    return sum(counts) >= REFUSALS_MAX
