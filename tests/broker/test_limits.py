"""Everything that peers can make a broker hold has a limit, and a refusal names it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker.groups import OWN_GROUPS
from cometmq.proto.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    TopicConfig,
)
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command
from cometmq.proto.commands import UnregisterClient, UpdateConsumerOffset


@contextmanager
def limited(folder: Path, **limits: int) -> Generator[Wired]:
    wired = Wired(config_of(folder, **limits), SimulatedFileSystem())
    yield wired
    wired.close()


def heartbeat(*consumers: str, producers: tuple[str, ...] = (), text: str = "*") -> Command:
    subscriptions = (SubscriptionData(topic="T", sub_string=text),)
    data = HeartbeatData(
        client_id="c",
        consumer_data_set=tuple(
            ConsumerData(group_name=name, subscription_data_set=subscriptions) for name in consumers
        ),
        producer_data_set=tuple(ProducerData(group_name=name) for name in producers),
    )
    return Command.request(RequestCode.HEART_BEAT, body=data.encode())


def pull(**fields: Any) -> Command:
    return pull_request("T", sys_flag=6, suspend_timeout_millis=10_000, **fields)


def assert_refused(answer: Command, setting: str) -> None:
    assert answer.code == 1
    assert (answer.remark or "").startswith(f"{setting}: there are ")


def test_no_topic_is_made_beyond_the_limit(tmp_path: Path) -> None:
    with limited(tmp_path, topics_max=20) as wired:
        peer = wired.connect()
        room = 20 - len(wired.broker.state.topics)
        for number in range(room):
            assert wired.ask(peer, send_request(f"T{number}", b"x")).code == 0
        assert_refused(wired.ask(peer, send_request("more", b"x")), "topics_max")
        assert_refused(wired.ask(peer, send_request("%RETRY%g", b"x")), "topics_max")
        assert_refused(wired.ask(peer, heartbeat("g")), "topics_max")
        assert wired.ask(peer, send_request("T0", b"x")).code == 0


def test_no_group_is_made_beyond_the_limit(tmp_path: Path) -> None:
    with limited(tmp_path, groups_max=len(OWN_GROUPS) + 2) as wired:
        peer = wired.connect()
        assert wired.ask(peer, send_request("T", b"x")).code == 0
        assert wired.ask(peer, heartbeat("a", "b")).code == 0
        assert_refused(wired.ask(peer, heartbeat("c")), "groups_max")
        assert_refused(wired.ask(peer, pull_request("T", consumer_group="c")), "groups_max")
        assert wired.ask(peer, pull_request("T", consumer_group="b")).code == 0


def test_no_client_joins_beyond_the_limit_until_another_leaves(tmp_path: Path) -> None:
    with limited(tmp_path, clients_max=2) as wired:
        one, other = wired.connect(), wired.connect()
        assert wired.ask(one, heartbeat("a", producers=("p",))).code == 0
        assert_refused(wired.ask(other, heartbeat("a")), "clients_max")
        assert_refused(wired.ask(other, heartbeat(producers=("p",))), "clients_max")
        assert wired.ask(one, heartbeat("a", producers=("p",))).code == 0
        leaving = UnregisterClient(client_id="c", producer_group="p")
        assert wired.ask(one, Command.request(RequestCode.UNREGISTER_CLIENT, leaving)).code == 0
        assert wired.ask(other, heartbeat("a")).code == 0
        wired.broker.closed(one)
        assert wired.ask(other, heartbeat(producers=("q",))).code == 0


def test_heartbeats_are_kept_up_to_so_many_bytes(tmp_path: Path) -> None:
    with limited(tmp_path, heartbeat_bytes_max=100_000) as wired:
        one, other = wired.connect(), wired.connect()
        for _ in range(3):
            assert wired.ask(one, heartbeat("a", text="x" * 60_000)).code == 0
        assert_refused(wired.ask(other, heartbeat("a", text="x" * 60_000)), "heartbeat_bytes_max")
        assert wired.ask(one, heartbeat("a")).code == 0
        assert wired.ask(other, heartbeat("a", text="x" * 60_000)).code == 0


def test_no_offset_is_kept_beyond_the_limit(tmp_path: Path) -> None:
    def commit(queue_id: int) -> Command:
        header = UpdateConsumerOffset("g", "T", queue_id, 7)
        return wired.ask(peer, Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header))

    with limited(tmp_path, offsets_max=2) as wired:
        peer = wired.connect()
        assert wired.ask(peer, send_request("T", b"x")).code == 0
        assert wired.ask(peer, heartbeat("g")).code == 0
        assert [commit(queue_id).code for queue_id in (0, 1, 0)] == [0, 0, 0]
        assert_refused(commit(2), "offsets_max")
        assert_refused(
            wired.ask(peer, pull_request("T", queue_id=3, sys_flag=5, commit_offset=1)),
            "offsets_max",
        )


def test_a_pull_too_many_is_not_held_but_answered(tmp_path: Path) -> None:
    with limited(tmp_path, held_pulls_max=2) as wired:
        peer = wired.connect()
        assert wired.ask(peer, send_request("T", b"x")).code == 0
        wired.give(peer, *[wired.frame(peer, pull(queue_offset=1)) for _ in range(3)])
        assert len(wired.answers(peer)) == 1


def test_the_pull_of_who_leaves_is_held_no_longer(tmp_path: Path) -> None:
    with limited(tmp_path, held_pulls_max=1) as wired:
        wired.broker.state.topics.put(TopicConfig(topic_name="T"), 0)
        wired.save()
        first, second = wired.connect(), wired.connect()
        wired.give(first, wired.frame(first, pull()))
        assert len(wired.broker.state.long_polling) == 1
        first.gone("reset")
        assert len(wired.broker.state.long_polling) == 0
        wired.give(second, wired.frame(second, pull()))
        assert wired.answers(second) == [], "there is room for it"


def test_a_held_pull_keeps_neither_its_text_nor_its_body(tmp_path: Path) -> None:
    with limited(tmp_path) as wired:
        peer = wired.connect()
        assert wired.ask(peer, send_request("T", b"x")).code == 0
        request = replace(
            pull(queue_offset=1, subscription="TagA" + " " * 8_000), body=bytes(100_000)
        )
        tracemalloc.start()
        try:
            for _ in range(100):
                wired.give(peer, wired.frame(peer, request))
            assert tracemalloc.get_traced_memory()[0] < 500_000
        finally:
            tracemalloc.stop()
        assert len(wired.broker.long_polling) == 100
