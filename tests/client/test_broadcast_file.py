"""The file of a broadcast consumer's offsets, in the format of Java's client."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from tests.client.consuming import take
from tests.client.running import Servers, play_on

from cometmq.client import Client, ClientConfig, Queue, UsageError
from cometmq.client._offset_store import BroadcastOffsets
from cometmq.client.config import local_address

JAVAS = """{
\t"offsetTable":{
\t\t{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"prices"
\t\t}:2,
\t\t{
\t\t\t"brokerName":"broker-z",
\t\t\t"queueId":7,
\t\t\t"topic":"prices"
\t\t}:5
\t}
}"""
OURS = (
    '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"prices"}:3,'
    '{"brokerName":"broker-z","queueId":7,"topic":"prices"}:5}}'
)


@pytest.mark.parametrize(
    ("file", "backup"),
    [(JAVAS, None), (None, JAVAS), ("", JAVAS), (JAVAS[:40], JAVAS), (JAVAS, JAVAS[:40])],
)
def test_a_consumer_goes_on_where_a_file_of_javas_says(
    file: str | None, backup: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "offsets" / f"{local_address()}@DEFAULT" / "screens"
    folder.mkdir(parents=True)
    for name, text in ("offsets.json", file), ("offsets.json.bak", backup):
        if text is not None:
            (folder / name).write_text(text)

    async def scenario(servers: Servers) -> None:
        config = ClientConfig(broadcast_folder=str(tmp_path / "offsets"))
        async with Client(servers.nameserver, config) as mq:
            await mq.admin.create_topic("prices", queues=1)
            await mq.send_batch("prices", [b"one", b"two", b"three"])
            async with mq.consume(
                "prices", group="screens", start="first", broadcast=True
            ) as consumer:
                assert await take(consumer, 1) == [b"three"]

    play_on("asyncio", tmp_path, scenario)
    assert (folder / "offsets.json").read_text() == OURS, "what is of other brokers stays"


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_file_with_a_bad_byte_is_replaced_by_the_one_before(
    loop: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "offsets" / f"{local_address()}@DEFAULT" / "screens"

    async def scenario(servers: Servers) -> None:
        config = ClientConfig(broadcast_folder=str(tmp_path / "offsets"))
        async with Client(servers.nameserver, config) as mq:
            await mq.admin.create_topic("prices", queues=1)
            await mq.send_batch("prices", [b"one", b"two", b"three"])

            async def consume(count: int) -> list[bytes]:
                async with mq.consume(
                    "prices", group="screens", start="first", broadcast=True
                ) as consumer:
                    return await take(consumer, count)

            assert await consume(1) == [b"one"]
            assert await consume(1) == [b"two"]
            whole = (folder / "offsets.json").read_bytes()
            before = (folder / "offsets.json.bak").read_bytes()
            for at in range(0, len(whole), 8):
                bad = whole[:at] + b"\xff" + whole[at + 1 :]
                (folder / "offsets.json").write_bytes(bad)
                (folder / "offsets.json.bak").write_bytes(before)
                assert await consume(1) == [b"two"], bad

    play_on(loop, tmp_path, scenario)
    assert "the file is ignored" in caplog.text


def test_a_file_that_cannot_be_read_is_an_error_and_no_new_beginning(tmp_path: Path) -> None:
    (tmp_path / f"{local_address()}@DEFAULT" / "screens" / "offsets.json").mkdir(parents=True)

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, ClientConfig(broadcast_folder=str(tmp_path))) as mq:
            await mq.send("prices", b"one")
            with pytest.raises(
                UsageError, match=r"cannot be read: .*offsets\.json.*broadcast_folder"
            ):
                await anext(mq.consume("prices", group="screens", broadcast=True))

    play_on("asyncio", tmp_path, scenario)


def test_an_end_in_the_middle_of_writing_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "offsets" / f"{local_address()}@DEFAULT" / "screens"
    folder.mkdir(parents=True)
    (folder / "offsets.json").write_text(JAVAS)
    seen: list[bytes] = []

    def end(descriptor: int) -> None:
        """Stand at the point of a power cut: everything is written, and nothing synced."""
        assert os.fstat(descriptor).st_size == len(OURS)
        seen.append((folder / "offsets.json").read_bytes())
        raise OSError("no power")

    monkeypatch.setattr("cometmq.client._offset_store.os", SimpleNamespace(fsync=end))

    async def scenario(servers: Servers) -> None:
        config = ClientConfig(broadcast_folder=str(tmp_path / "offsets"))
        async with Client(servers.nameserver, config) as mq:
            await mq.admin.create_topic("prices", queues=1)
            await mq.send_batch("prices", [b"one", b"two", b"three"])
            async with mq.consume("prices", group="screens", broadcast=True) as consumer:
                assert await take(consumer, 1) == [b"three"]

    play_on("asyncio", tmp_path, scenario)
    assert seen == [JAVAS.encode()]
    assert (folder / "offsets.json").read_text() == JAVAS


def test_offsets_that_could_not_be_written_are_written_as_soon_as_they_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer commits at the end, too, but a crash would lose the offsets since the failure."""
    monkeypatch.setattr("cometmq.client._group.COMMIT_SECONDS", 0.01)
    file = tmp_path / f"{local_address()}@DEFAULT" / "screens" / "offsets.json"
    failures: list[str] = []

    def fail_once(descriptor: int) -> None:
        if not failures:
            failures.append("full")
            raise OSError("the disk is full")
        os.fsync(descriptor)

    monkeypatch.setattr("cometmq.client._offset_store.os", SimpleNamespace(fsync=fail_once))

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, ClientConfig(broadcast_folder=str(tmp_path))) as mq:
            await mq.admin.create_topic("prices", queues=1)
            await mq.send("prices", b"one")
            async with mq.consume(
                "prices", group="screens", start="first", broadcast=True
            ) as consumer:
                message = await anext(consumer)
                with anyio.fail_after(30):
                    while not file.exists():  # noqa: ASYNC110  # Nobody tells of it.
                        await anyio.sleep(0.01)
                message.ack()

    play_on("asyncio", tmp_path, scenario)
    assert failures


def test_offsets_are_where_javas_client_has_them_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("prices", b"one")
            async with mq.consume(
                "prices", group="screens", start="first", broadcast=True
            ) as consumer:
                assert await take(consumer, 1) == [b"one"]

    play_on("asyncio", tmp_path, scenario)
    folder = tmp_path / ".rocketmq_offsets" / f"{local_address()}@DEFAULT" / "screens"
    assert (folder / "offsets.json").exists()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_who_is_killed_before_the_first_commit_begins_no_later(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        config = ClientConfig(broadcast_folder=str(tmp_path / "offsets"))
        async with Client(servers.nameserver, config) as mq:
            await mq.admin.create_topic("prices", queues=1)
            await mq.send_batch("prices", [b"one", b"two"])
            queue = (await mq.queues("prices"))[0]
            async with mq.consume("prices", group="screens", broadcast=True) as consumer:
                while queue not in consumer.queues:  # noqa: ASYNC110  # Nobody tells.
                    await anyio.sleep(0.005)
                await mq.send("prices", b"three")
                async with await anext(consumer):
                    (file,) = (tmp_path / "offsets").rglob("offsets.json")
                    assert ":2}" in file.read_text(), "it would begin behind this one if killed now"

    play_on(loop, tmp_path, scenario)


def test_two_writes_at_once_leave_a_whole_file_with_the_newest_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a consumer ends while the write of its last commit is still under way."""
    identity = SimpleNamespace(broadcast_id="me")
    config = ClientConfig(broadcast_folder=str(tmp_path))
    parts = SimpleNamespace(config=config, identity=identity)
    options = SimpleNamespace(group="screens")
    offsets = BroadcastOffsets(cast("Any", parts), cast("Any", options))
    begun, go_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow_fsync(number: int) -> None:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(10)
        fsync(number)

    monkeypatch.setattr("cometmq.client._offset_store.os", SimpleNamespace(fsync=slow_fsync))
    queue = Queue("prices", "broker-a", 0)

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(offsets.move, queue, 10)
            await anyio.to_thread.run_sync(begun.wait)
            tasks.start_soon(offsets.move, queue, 11)
            for _ in range(100):
                await anyio.sleep(0.001)
            go_on.set()

    anyio.run(scenario)
    (file,) = tmp_path.rglob("offsets.json")
    assert file.read_text().endswith(":11}}")
    (backup,) = tmp_path.rglob("offsets.json.bak")
    assert backup.read_text().endswith(":10}}")
    assert not [*tmp_path.rglob("*.tmp")]
