"""The client without async."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, cast

import anyio
import pytest
from tests.client.running import Servers, play

from cometmq.client import (
    ClientConfig,
    ClosedError,
    OutcomeUnknownError,
    ReceivedMessage,
    SettledError,
    SyncClient,
    SyncMessage,
    UnreachableError,
    UsageError,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_the_same_verbs_without_async(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq:
            receipt = mq.send("orders", b"o-17", key="o-17", tag="paid")
            mq.send_batch("orders", [b"a", b"b"])
            assert receipt.queue in mq.queues("orders")
            (message,) = mq.pull(receipt.queue, receipt.offset, count=1, group="reports").messages
            assert (message.body, message.id) == (b"o-17", receipt.id)
            mq.commit(receipt.queue, "reports", 1)
            assert mq.committed(receipt.queue, "reports") == 1
            assert "orders" in [topic.name for topic in mq.admin.topics()]
            bodies: list[bytes] = []
            for each in mq.consume("orders", group="billing"):
                with each:
                    bodies.append(each.body)
                if len(bodies) == 3:
                    break
            assert sorted(bodies) == [b"a", b"b", b"o-17"]

    play(tmp_path, scenario)


def test_threads_share_a_client(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq, ThreadPoolExecutor(8) as pool:
            bodies = [b"%d" % number for number in range(200)]
            receipts = list(pool.map(functools.partial(mq.send, "orders"), bodies))
            assert len({receipt.id for receipt in receipts}) == 200
            seen: list[bytes] = []
            consumer = mq.consume("orders", group="billing")

            def handle(message: SyncMessage) -> None:
                seen.append(message.body)
                if len(seen) == 200:
                    threading.Thread(target=consumer.drain).start()

            consumer.run(handle, threads=4)
            assert sorted(seen) == sorted(bodies)

    play(tmp_path, scenario)


def test_a_message_that_fails_comes_again(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver, ClientConfig(redelivery_delay=0.05)) as mq:
            mq.send("orders", b"x")
            attempts: list[int] = []
            with mq.consume("orders", group="billing") as consumer:
                for message in consumer:
                    with message:
                        attempts.append(message.attempt)
                        if len(attempts) < 2:
                            raise KeyError
                    if len(attempts) == 2:
                        break
            assert attempts == [1, 2]

    play(tmp_path, scenario)


def test_a_message_is_settled_once(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq:
            mq.send("orders", b"x")
            with mq.consume("orders", group="billing") as consumer:
                message = next(consumer)
                message.ack()
                with pytest.raises(SettledError):
                    message.retry()
                with pytest.raises(SettledError), message:
                    pytest.fail("a block is run for a message that is done with")

    play(tmp_path, scenario)


def test_a_message_with_which_a_wrong_retry_was_tried_is_still_in_hand(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq:
            mq.send("orders", b"x")
            with mq.consume("orders", group="billing") as consumer:
                message = next(consumer)
                with pytest.raises(UsageError, match="delay_level=99"):
                    message.retry(delay_level=99)
                message.ack()
                assert consumer.drain(timeout=30), "what is acknowledged is in hand"

    play(tmp_path, scenario)


def test_errors_are_those_of_the_async_client() -> None:
    with pytest.raises(UsageError, match="name server"):
        SyncClient("nonsense")
    with SyncClient("127.0.0.1:1") as mq:
        with pytest.raises(UsageError, match="encode it first"):
            mq.send("orders", "text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # What is refused.
        with pytest.raises(UnreachableError):
            mq.send("orders", b"x", timeout=0.1)
    with pytest.raises(ClosedError):
        mq.send("orders", b"x")
    mq.close()


def test_it_opens_itself_and_leaves_no_thread_behind(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        before = set(threading.enumerate())
        mq = SyncClient(servers.nameserver)
        assert "not open" in repr(mq)
        mq.send("orders", b"x")
        assert ", open" in repr(mq)
        mq.close()
        assert set(threading.enumerate()) == before

    play(tmp_path, scenario)


def test_verbs_of_other_threads_end_with_an_error_of_the_tree_when_it_is_closed(
    tmp_path: Path,
) -> None:
    def scenario(servers: Servers) -> None:
        def send_on(mq: SyncClient, begun: threading.Barrier) -> None:
            mq.send("orders", b"x")
            begun.wait(20)
            with pytest.raises((ClosedError, OutcomeUnknownError)):
                [mq.send("orders", body) for body in itertools.repeat(b"x")]

        for _ in range(20):
            with ThreadPoolExecutor(8) as pool:
                mq, begun = SyncClient(servers.nameserver), threading.Barrier(9)
                ends = [pool.submit(send_on, mq, begun) for _ in range(8)]
                begun.wait(20)
                mq.send("orders", b"last")
                mq.close()
                for each in ends:
                    each.result(20)

    play(tmp_path, scenario)


def test_a_child_after_a_fork_has_connections_of_its_own(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq:
            queue = mq.send("orders", b"parent").queue
            mq.end_offset(queue)
            child = os.fork()
            if not child:
                status = 1
                try:
                    assert mq.send("orders", b"child", queue=queue).offset == 1
                    status = 0
                finally:
                    os._exit(status)
            _, ended = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(ended) == 0
            assert mq.send("orders", b"parent again", queue=queue).offset == 2

    play(tmp_path, scenario)


def test_a_consumer_of_the_parent_says_so_in_a_child(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq:
            mq.send("orders", b"x")
            consumer = mq.consume("orders", group="billing")
            child = os.fork()
            if not child:
                status = 1
                try:
                    with pytest.raises(UsageError, match="before a fork"):
                        next(consumer)
                    status = 0
                finally:
                    os._exit(status)
            _, ended = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(ended) == 0

    play(tmp_path, scenario)


def test_queues_are_read_by_hand(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq:
            mq.send_batch("orders", [b"a", b"b", b"c"], sharding_key="c-4")
            reader = mq.reader("orders", group="reports")
            reader.assign()
            assert reader.queues == mq.queues("orders")
            (queue,) = {message.queue for message in reader.pull(count=2)}
            reader.commit()
            assert mq.committed(queue, "reports") == reader.position(queue) == 2
            assert reader.seek(queue, "first") == 0
            assert [message.body for message in reader.pull()] == [b"a", b"b", b"c"]
            with pytest.raises(UsageError, match="count=0"):
                reader.pull(count=0)
            assert "SyncReader of orders" in repr(reader)

    play(tmp_path, scenario)


def test_a_transaction_is_delivered_when_its_block_is_left_well(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq:
            mq.admin.create_topic("orders", queues=1)
            with mq.transaction("orders", b"paid", key="o-17") as transaction:
                (queue,) = mq.queues("orders")
                assert mq.end_offset(queue) == 0
            (message,) = mq.pull(queue, 0, wait=10).messages
            assert (message.body, message.id) == (b"paid", transaction.id)
            with pytest.raises(KeyError), mq.transaction("orders", b"failed"):
                raise KeyError
            early = mq.transaction("orders", b"early")
            with early:
                early.rollback()
            with mq.transaction("orders", b"late") as late:
                late.commit()
            assert [each.body for each in mq.pull(queue, 1, wait=10).messages] == [b"late"]

    play(tmp_path, scenario)


def test_a_sync_verb_on_the_clients_own_thread_is_refused(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        told: SimpleQueue[str] = SimpleQueue()

        def send() -> None:
            try:
                mq.send("orders", b"y")
            except UsageError as error:
                told.put(str(error))

        with SyncClient(servers.nameserver) as mq:
            mq.send("orders", b"x")
            mq.background().call_soon(send)
            assert "own thread would wait for itself" in told.get(timeout=20)

    play(tmp_path, scenario)


def test_what_was_asked_ends_when_the_wait_for_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scenario(servers: Servers) -> None:
        begun, ended = threading.Event(), threading.Event()

        async def hang() -> None:
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()

        def interrupt(_: object, timeout: float | None = None) -> None:
            assert begun.wait(timeout or 20)
            raise KeyboardInterrupt

        with SyncClient(servers.nameserver) as mq:
            background = mq.background()
            with monkeypatch.context() as patch:
                patch.setattr("concurrent.futures.Future.result", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    background.run(hang())
            assert ended.wait(20)

    play(tmp_path, scenario)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_lock_that_another_thread_had_at_the_fork_holds_up_nobody() -> None:
    mq = SyncClient("127.0.0.1:9876")
    with mq._lock:  # pyright: ignore[reportPrivateUsage]  # As a verb that another thread begins.
        child = os.fork()
        if child == 0:
            os._exit(0 if mq._lock.acquire(blocking=False) else 1)  # pyright: ignore[reportPrivateUsage]  # In the child.
        assert os.waitpid(child, 0)[1] == 0


def test_a_broker_asks_what_became_of_a_transaction(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        asked: list[tuple[str | None, bool]] = []

        def check(message: ReceivedMessage) -> Literal["commit"]:
            asked.append((message.key, threading.current_thread() is threading.main_thread()))
            return "commit"

        with SyncClient(servers.nameserver) as mq:
            mq.on_transaction_check(check)
            mq.admin.create_topic("orders", queues=1)
            mq.transaction("orders", b"paid", key="o-17").__enter__()  # And nothing is decided.
            (queue,) = mq.queues("orders")
            (message,) = mq.pull(queue, 0, wait=20).messages
            assert message.body == b"paid"
            assert set(asked) == {("o-17", False)}  # Twice, perhaps, on a busy machine.

    play(tmp_path, scenario, transaction_timeout_ms=50, transaction_check_interval_ms=50)


def test_who_does_not_know_yet_what_became_of_a_transaction_is_asked_again(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        asked: list[str | None] = []

        def check(message: ReceivedMessage) -> Literal["commit", "unknown"]:
            asked.append(message.key)
            if len(asked) == 3:
                raise KeyError  # This leaves it undecided, too.
            return "unknown" if len(asked) < 5 else "commit"

        with SyncClient(servers.nameserver) as mq:
            mq.on_transaction_check(check)
            mq.admin.create_topic("orders", queues=1)
            mq.transaction("orders", b"paid", key="o-17").__enter__()  # And nothing is decided.
            (queue,) = mq.queues("orders")
            assert [each.body for each in mq.pull(queue, 0, wait=20).messages] == [b"paid"]
        assert asked == ["o-17"] * 5

    play(tmp_path, scenario, transaction_timeout_ms=50, transaction_check_interval_ms=50)


def test_an_answer_about_a_transaction_that_is_none_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def scenario(servers: Servers) -> None:
        answers = iter([None, True])

        def nonsense(_: ReceivedMessage) -> object:
            return next(answers, "commit")

        async def no_plain_one(message: ReceivedMessage) -> Literal["commit"]:
            raise AssertionError(message)

        with SyncClient(servers.nameserver) as mq:
            with pytest.raises(UsageError, match="async function"):
                mq.on_transaction_check(cast("Any", no_plain_one))
            mq.on_transaction_check(cast("Any", nonsense))
            mq.admin.create_topic("orders", queues=1)
            mq.transaction("orders", b"paid").__enter__()  # And nothing is decided.
            (queue,) = mq.queues("orders")
            assert [each.body for each in mq.pull(queue, 0, wait=20).messages] == [b"paid"]

    play(tmp_path, scenario, transaction_timeout_ms=50, transaction_check_interval_ms=50)
    told = [record.message for record in caplog.records if "transaction" in record.message]
    assert [text.partition(" on <")[0] for text in told] == [
        "on_transaction_check returned None",
        "on_transaction_check returned True",
    ]


def test_a_message_of_a_closed_client_is_refused_with_an_error_of_the_tree(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq:
            mq.send("orders", b"x")
            message = next(consumer := mq.consume("orders", group="billing"))
        for verb in (message.ack, consumer.drain, consumer.pause):
            with pytest.raises(ClosedError, match="make another one"):
                verb()

    play(tmp_path, scenario)


def test_a_verb_raises_what_keeps_the_client_from_opening(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("none")
    mq = SyncClient("127.0.0.1:22001", ClientConfig(tls=True, tls_ca=str(authority)))
    for _ in range(2):
        with pytest.raises(UsageError, match="no PEM certificates"):
            mq.send("orders", b"x")
    mq.close()
