"""A broadcast consumer continues where one in the other language left off: they share a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.interop.apache_java import class_path
from tests.interop.target import running_target
from tests.interop.test_clients import JAVA, RELEASE
from tests.interop.test_mixed_group import JavaMember, Seen

from cometmq.client import ClientConfig, SyncClient
from cometmq.client.config import local_address

if TYPE_CHECKING:
    from cometmq.client import Receipt

pytestmark = pytest.mark.slow


def send(mq: SyncClient, word: str) -> list[str]:
    """Send twenty messages, so that each of four queues gets some."""
    bodies = [f"{word}-{number}" for number in range(20)]
    receipts: list[Receipt] = [mq.send("Prices", each.encode()) for each in bodies]
    assert len({each.queue for each in receipts}) == 4
    return sorted(bodies)


def consumed(mq: SyncClient, count: int) -> list[str]:
    bodies: list[str] = []
    with mq.consume("Prices", group="screens", start="first", broadcast=True) as consumer:
        for message in consumer:
            with message:
                bodies.append(message.body.decode())
            if len(bodies) == count:
                break
    return sorted(bodies)


@pytest.mark.long
def test_java_and_python_broadcasts_go_on_where_the_other_was(tmp_path: Path) -> None:
    path = class_path(RELEASE, JAVA / "pom.xml")
    folder = tmp_path / "offsets"
    config = ClientConfig(timeout=15, broadcast_folder=str(folder))
    with (
        running_target(tmp_path) as target,
        SyncClient(target.nameserver, config) as mq,
    ):
        mq.admin.create_topic("Prices", queues=4)
        sent = send(mq, "first")
        assert consumed(mq, 20) == sent

        sent, seen = send(mq, "second"), Seen()
        java = JavaMember(
            path,
            target,
            "Prices",
            "screens",
            seen,
            options=[f"-Drocketmq.client.localOffsetStoreDir={folder}"],
            broadcast_address=local_address(),
        )
        with java:
            seen.wait(lambda: seen.bodies.total() >= 20)
        assert sorted(seen.got["java"]) == sent, "what was consumed is not consumed again"

        sent = send(mq, "third")
        assert consumed(mq, 20) == sent
        (file,) = folder.glob("*/screens/offsets.json")
        assert file.parent.parent.name == f"{local_address()}@DEFAULT"
