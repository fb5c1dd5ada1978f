"""Java and Python members of a group share a topic's queues: nothing is lost or comes twice."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from typing import TYPE_CHECKING, Self

import pytest
from tests.interop.apache_java import class_path, required
from tests.interop.target import ON_APACHE, Target, running_target
from tests.interop.test_clients import JAVA, RELEASE

from cometmq.client import ClientConfig, SyncClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from cometmq.client import SyncConsumer

pytestmark = pytest.mark.slow

SOURCE = JAVA.parent / "java-member" / "Member.java"
QUEUES = 8
MESSAGES = 4_000
PATIENCE_SECONDS = 90


class Seen:
    """What the members received; a test can wait for a change."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.got: dict[str, list[str]] = {"java": [], "python": []}
        self.java_owns = 0

    def note(self, member: str, body: str) -> None:
        with self._changed:
            self.got[member].append(body)
            self._changed.notify_all()

    def owns(self, count: int) -> None:
        with self._changed:
            self.java_owns = count
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            while not condition():
                assert self._changed.wait(PATIENCE_SECONDS), self.java_owns

    @property
    def bodies(self) -> Counter[str]:
        return Counter(self.got["java"] + self.got["python"])


class JavaMember:
    """The Java program, and a thread that reads what it says."""

    def __init__(
        self,
        path: str,
        target: Target,
        topic: str,
        group: str,
        seen: Seen,
        *,
        options: Sequence[str] = (),
        broadcast_address: str | None = None,
    ) -> None:
        command = [required("java"), *options, "-cp", path, str(SOURCE)]
        command += [target.nameserver, topic, group]
        if broadcast_address is not None:
            command.append(broadcast_address)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._seen = seen
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_SECONDS)
        finally:
            self._process.kill()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            word, _, rest = line.strip().partition(" ")
            if word == "GOT":
                self._seen.note("java", rest)
            elif word == "OWNS":
                self._seen.owns(int(rest))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running_target(tmp_path_factory.mktemp("servers")) as running:
        yield running


def test_java_and_python_members_share_the_queues(target: Target) -> None:
    path = class_path(RELEASE, JAVA / "pom.xml")
    seen = Seen()

    with (
        SyncClient(target.nameserver, ClientConfig(timeout=15)) as mq,
        SyncClient(target.nameserver, ClientConfig(timeout=15)) as sender,
    ):
        mq.admin.create_topic("Mixed", queues=QUEUES)
        consumer = mq.consume("Mixed", group="mixed", start="first")

        def owned() -> int:
            return sum(queue.topic == "Mixed" for queue in consumer.queues)

        consuming = threading.Thread(target=consume, args=(consumer, seen))
        consuming.start()
        with JavaMember(path, target, "Mixed", "mixed", seen):
            seen.wait(lambda: seen.java_owns == QUEUES // 2)
            while owned() != QUEUES // 2:
                threading.Event().wait(0.01)
            sent = send(sender, "stable", MESSAGES)
            seen.wait(lambda: seen.bodies.total() >= MESSAGES)
            assert seen.bodies == Counter(sent)
            assert len(seen.got["java"]) == len(seen.got["python"]) == MESSAGES // 2
        while owned() != QUEUES:
            threading.Event().wait(0.01)
        sent += send(sender, "alone", 400)
        seen.wait(lambda: seen.bodies.keys() >= set(sent))
        assert len(seen.got["python"]) >= MESSAGES // 2 + 400
        consumer.drain()
        consuming.join(PATIENCE_SECONDS)


def consume(consumer: SyncConsumer, seen: Seen) -> None:
    for message in consumer:
        with message:
            seen.note("python", message.body.decode())


def send(sender: SyncClient, word: str, count: int) -> list[str]:
    queues = sender.queues("Mixed")
    bodies = [f"{word}-{number}" for number in range(count)]
    for number, body in enumerate(bodies):
        sender.send("Mixed", body.encode(), queue=queues[number % len(queues)])
    return bodies


@pytest.mark.skipif(ON_APACHE, reason="members of Apache's brokers miss messages then")
def test_a_java_member_misses_nothing_of_a_topic_that_is_recreated(target: Target) -> None:
    """It knows nothing of this, and holds on to its places in the topic that was deleted."""
    path = class_path(RELEASE, JAVA / "pom.xml")
    seen = Seen()
    with SyncClient(target.nameserver, ClientConfig(timeout=15)) as mq:
        mq.admin.create_topic("Recreated", queues=2)
        with JavaMember(path, target, "Recreated", "recreated", seen):
            seen.wait(lambda: seen.java_owns == 2)
            for number in range(10):
                mq.send("Recreated", b"old-%d" % number)
            seen.wait(lambda: len(seen.bodies) == 10)
            mq.admin.delete_topic("Recreated")
            mq.admin.create_topic("Recreated", queues=2)
            for number in range(6):
                mq.send("Recreated", b"new-%d" % number)
            seen.wait(lambda: len(seen.bodies) == 16)
