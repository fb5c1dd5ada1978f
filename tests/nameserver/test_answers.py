from __future__ import annotations

import pytest
from tests.nameserver.servers import header_of, table_of

from cometmq.nameserver.answers import Answers
from cometmq.nameserver.config import NameServerConfig
from cometmq.nameserver.route_table import RouteTable
from cometmq.proto.bodies import ClusterInfo, TopicList, TopicRouteData


class Kept:
    """A table with its cached answers, and fresh answers to compare them with."""

    def __init__(self, config: NameServerConfig) -> None:
        self.config = config
        self.table = RouteTable(config)
        self.answers = Answers(self.table, config)

    @property
    def fresh(self) -> Answers:
        return Answers(self.table, self.config)

    def register(self, name: str, counter: int = 1, *, zone: str | None = None) -> None:
        header = header_of(name, address=f"{name}:1", zone=zone)
        topics = table_of(["T1", f"T-{name}", "T-ü"], counter=counter)
        self.table.register(header, topics, connection_id=1, now_ms=0)

    def check(self, conf: str | None = None) -> None:
        for topic in ("T1", "T-a", "T-b", "T-ü", "no"):
            for is_standard in (True, False):
                kept = self.answers.route(topic, is_standard=is_standard, order_topic_conf=conf)
                new = self.fresh.route(topic, is_standard=is_standard, order_topic_conf=conf)
                assert kept == new
        assert self.answers.cluster_info() == self.fresh.cluster_info()
        assert self.answers.topic_list() == self.fresh.topic_list()


@pytest.fixture
def kept() -> Kept:
    return Kept(NameServerConfig(support_acting_master=True))


def test_an_answer_is_encoded_once(kept: Kept) -> None:
    kept.register("a")
    for is_standard in (True, False):
        first = kept.answers.route("T1", is_standard=is_standard)
        kept.register("a")
        assert kept.answers.route("T1", is_standard=is_standard) is first
    assert kept.answers.cluster_info() is kept.answers.cluster_info()
    assert kept.answers.topic_list() is kept.answers.topic_list()


def test_no_answer_outlives_what_it_says(kept: Kept) -> None:
    kept.check()
    kept.register("a")
    kept.check()
    kept.register("b")
    kept.check()
    kept.check("b:4")
    kept.check("b:5")
    kept.check()
    kept.table.wipe_write_permission("a")
    kept.check()
    kept.register("b", 2)
    kept.check()
    kept.register("b", 2, zone="z")
    kept.check()
    kept.table.delete_topic("T1", "C")
    kept.check()
    kept.register("b", 3)
    kept.check()
    kept.table.unregister("a", "a:1")
    kept.check()
    kept.table.unregister("b", "b:1")
    kept.check()
    kept.register("a")
    kept.check()


def test_no_answer_outlives_the_setting_it_was_made_with(kept: Kept) -> None:
    header = header_of(broker_id=1, acting=True)
    kept.table.register(header, table_of(["T1", "T2"]), connection_id=1, now_ms=0)
    acting = kept.answers.route("T1", is_standard=True) or b""
    kept.config = NameServerConfig(support_acting_master=False)
    kept.table.configure(kept.config)
    kept.answers.configure(kept.config)
    plain = kept.answers.route("T1", is_standard=True) or b""
    assert set(TopicRouteData.decode(acting).broker_datas[0].broker_addrs) == {0}
    assert set(TopicRouteData.decode(plain).broker_datas[0].broker_addrs) == {1}


def test_both_forms_say_the_same(kept: Kept) -> None:
    kept.register("a")
    standard = kept.answers.route("T1", is_standard=True) or b""
    bare = kept.answers.route("T1", is_standard=False) or b""
    assert b'{"0":"a:1"}' in standard
    assert b'{0:"a:1"}' in bare
    assert TopicRouteData.decode(standard) == TopicRouteData.decode(bare)


def test_a_route_in_a_zone_is_not_mistaken_for_the_whole_one(kept: Kept) -> None:
    kept.register("a", zone="z")
    kept.register("b")
    whole = kept.answers.route("T1", is_standard=True)
    zoned = kept.answers.route("T1", is_standard=True, zone="Z") or b""
    assert [data.broker_name for data in TopicRouteData.decode(zoned).broker_datas] == ["a"]
    assert kept.answers.route("T1", is_standard=True) is whole
    assert kept.answers.route("no", is_standard=True, zone="z") is None
    assert kept.answers.route("no", is_standard=True) is None


def test_lists_hold_all_brokers_and_topics(kept: Kept) -> None:
    kept.register("a")
    kept.register("b")
    info = ClusterInfo.decode(kept.answers.cluster_info())
    assert {n: data.broker_addrs for n, data in info.broker_addr_table.items()} == {
        "a": {0: "a:1"},
        "b": {0: "b:1"},
    }
    assert info.cluster_addr_table == {"C": ("a", "b")}
    names = TopicList.decode(kept.answers.topic_list()).topic_list
    assert sorted(names) == ["T-a", "T-b", "T-ü", "T1"]


def test_what_is_kept_is_limited_in_size() -> None:
    kept = Kept(NameServerConfig(route_cache_size_max=600))
    kept.register("a")
    first = kept.answers.route("T1", is_standard=True) or b""
    assert 200 < len(first) < 300
    kept.answers.route("T-a", is_standard=True)
    assert kept.answers.route("T1", is_standard=True) is first
    kept.answers.route("T-ü", is_standard=True)
    assert kept.answers.route("T1", is_standard=True) is not first
    assert kept.answers.route("T1", is_standard=True) == first


def test_a_route_that_is_made_again_counts_once() -> None:
    kept = Kept(NameServerConfig(route_cache_size_max=600))
    kept.register("a")
    first = kept.answers.route("T1", is_standard=True)
    for conf in ("a:1", "a:2", "a:3"):
        kept.answers.route("T-a", is_standard=True, order_topic_conf=conf)
    assert kept.answers.route("T1", is_standard=True) is first


def test_what_is_kept_is_full_again_only_after_as_much_as_before() -> None:
    kept = Kept(NameServerConfig(route_cache_size_max=600))
    kept.register("a")
    for topic in ("T1", "T-a", "T-ü"):
        kept.answers.route(topic, is_standard=True)
    third = kept.answers.route("T-ü", is_standard=True)
    kept.answers.route("T1", is_standard=True)
    assert kept.answers.route("T-ü", is_standard=True) is third
