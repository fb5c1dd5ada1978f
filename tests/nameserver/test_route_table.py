from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.nameserver.servers import header_of, table_of, topic

from cometmq.nameserver.config import NameServerConfig
from cometmq.nameserver.errors import RequestError
from cometmq.nameserver.route_table import Registered, RouteTable
from cometmq.proto.bodies import QueueData, TopicConfigTable, TopicQueueMappingInfo

if TYPE_CHECKING:
    from cometmq.proto.commands.broker import RegisterBroker

CONFIG = NameServerConfig()
NAME = "broker-a"


class Brokers:
    """A route table and the actions of brokers, with defaults that do not matter to tests."""

    def __init__(self, config: NameServerConfig = CONFIG) -> None:
        self.table = RouteTable(config)

    def register(
        self,
        header: RegisterBroker,
        topics: TopicConfigTable | None = None,
        *,
        connection_id: int = 1,
        now_ms: int = 0,
    ) -> Registered:
        topics = topics or table_of(["T1", "T2"])
        return self.table.register(header, topics, connection_id=connection_id, now_ms=now_ms)

    @property
    def addresses(self) -> dict[str, dict[int, str]]:
        return {name: broker.addresses for name, broker in self.table.brokers.items()}

    def perms(self, topic: str) -> dict[str, int]:
        return {name: data.perm for name, data in self.table.topics.get(topic, {}).items()}


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


# Registering.


def test_a_master_brings_its_topics(brokers: Brokers) -> None:
    done = brokers.register(header_of(), table_of([topic("T1", queues=8, perm=4, flag=1), "T2"]))
    assert done == Registered(is_applied=True, is_new=True)
    data = QueueData(
        broker_name=NAME, perm=4, read_queue_nums=8, topic_sys_flag=1, write_queue_nums=8
    )
    assert brokers.table.topics["T1"] == {NAME: data}
    assert set(brokers.table.topics) == {"T1", "T2"}
    assert {name: list(names) for name, names in brokers.table.clusters.items()} == {"C": [NAME]}


def test_a_slave_brings_no_topics_and_hears_where_its_master_is(brokers: Brokers) -> None:
    brokers.register(header_of())
    done = brokers.register(header_of(broker_id=1, address="s"), table_of(["T1", "T9"]))
    assert done.master is not None
    assert (done.master.address, done.master.ha_address) == ("10.0.0.1:10911", "10.0.0.1:10911/ha")
    assert set(brokers.table.topics) == {"T1", "T2"}
    assert brokers.addresses == {NAME: {0: "10.0.0.1:10911", 1: "s"}}


def test_a_slave_without_a_master_hears_nothing(brokers: Brokers) -> None:
    assert brokers.register(header_of(broker_id=1)).master is None


def test_a_first_registration_of_one_topic_changes_nothing(brokers: Brokers) -> None:
    with pytest.raises(RequestError, match=r"^register broker failed$"):
        brokers.register(header_of(), table_of(["T1"]))
    assert brokers.addresses == {}
    assert dict(brokers.table.clusters) == {}


def test_a_known_broker_may_add_one_topic(brokers: Brokers) -> None:
    brokers.register(header_of())
    brokers.register(header_of(), table_of(["T3"], counter=2))
    assert set(brokers.table.topics) == {"T1", "T2", "T3"}


def test_a_broker_without_topics_may_register(brokers: Brokers) -> None:
    assert brokers.register(header_of(), TopicConfigTable()).is_new
    assert brokers.addresses == {NAME: {0: "10.0.0.1:10911"}}


def test_topics_change_only_with_the_data_version(brokers: Brokers) -> None:
    brokers.register(header_of())
    brokers.register(header_of(), table_of([topic("T1", queues=9), "T2"]))
    assert brokers.table.topics["T1"][NAME].read_queue_nums == 4
    brokers.register(header_of(), table_of([topic("T1", queues=9), "T2"], counter=2))
    assert brokers.table.topics["T1"][NAME].read_queue_nums == 9


def test_a_topic_that_is_missing_comes_back_with_the_same_data_version(brokers: Brokers) -> None:
    brokers.register(header_of())
    brokers.table.delete_topic("T1")
    brokers.register(header_of())
    assert set(brokers.table.topics) == {"T1", "T2"}


def test_topics_that_are_not_registered_any_more_stay(brokers: Brokers) -> None:
    brokers.register(header_of())
    brokers.register(header_of(), table_of(["T1"], counter=2))
    assert set(brokers.table.topics) == {"T1", "T2"}


def test_topics_that_are_not_registered_any_more_go_if_so_configured() -> None:
    brokers = Brokers(NameServerConfig(delete_topic_with_broker_registration=True))
    brokers.register(header_of("other", address="o"))
    brokers.register(header_of())
    brokers.register(header_of(), table_of(["T1"], counter=2))
    assert set(brokers.table.topics["T2"]) == {"other"}
    brokers.register(header_of("other", address="o"), table_of(["T1"], counter=2))
    assert set(brokers.table.topics) == {"T1"}


def test_a_new_address_takes_the_place_of_the_old_one(brokers: Brokers) -> None:
    brokers.register(header_of(address="old"), connection_id=1)
    done = brokers.register(header_of(address="new"), connection_id=2)
    assert done.is_new
    assert brokers.addresses == {NAME: {0: "new"}}
    assert brokers.table.connection_lost(1) == []
    assert brokers.addresses == {NAME: {0: "new"}}


def test_a_slave_that_becomes_master_leaves_its_old_id(brokers: Brokers) -> None:
    brokers.register(header_of(broker_id=0, address="m"))
    brokers.register(header_of(broker_id=1, address="s"))
    brokers.register(header_of(broker_id=0, address="s"), table_of(["T1", "T3"], counter=2))
    assert brokers.addresses == {NAME: {0: "s"}}
    assert set(brokers.table.topics) == {"T1", "T2", "T3"}


def test_an_older_decision_of_the_controller_does_not_take_a_live_place(brokers: Brokers) -> None:
    brokers.register(header_of(address="new"), table_of(["T1", "T2"], state_version=5))
    stale = table_of(["T1", "T3"], counter=9, state_version=4)
    brokers.register(header_of(broker_id=1, address="old"), stale)
    assert brokers.register(header_of(address="old"), stale) == Registered(is_applied=False)
    assert brokers.addresses == {NAME: {0: "new"}}
    assert set(brokers.table.topics) == {"T1", "T2"}
    assert brokers.table.renew("C", "old", 0) is None


def test_an_equal_decision_of_the_controller_takes_the_place(brokers: Brokers) -> None:
    brokers.register(header_of(address="a"), table_of(["T1", "T2"], state_version=5))
    brokers.register(header_of(address="b"), table_of(["T1", "T2"], state_version=5))
    assert brokers.addresses == {NAME: {0: "b"}}


def test_a_broker_keeps_its_place_though_its_state_version_falls(brokers: Brokers) -> None:
    brokers.register(header_of(), table_of(["T1", "T2"], state_version=5))
    assert brokers.register(header_of(), table_of(["T1", "T2"], state_version=4)).is_applied


# Slaves that act for their master.


def test_the_first_slave_speaks_for_a_broker_without_a_master_but_only_to_be_read(
    brokers: Brokers,
) -> None:
    brokers.register(header_of(broker_id=2, address="s2", acting=True))
    assert brokers.perms("T1") == {NAME: 4}
    brokers.register(
        header_of(broker_id=1, address="s1", acting=True), table_of(["T1", "T7"], counter=2)
    )
    assert brokers.perms("T7") == {NAME: 4}
    brokers.register(
        header_of(broker_id=2, address="s2", acting=True), table_of(["T1", "T8"], counter=3)
    )
    assert brokers.perms("T8") == {}


def test_a_slave_that_says_it_does_not_act_brings_its_topics_as_they_are(brokers: Brokers) -> None:
    brokers.register(header_of(broker_id=1, acting=False))
    assert brokers.perms("T1") == {NAME: 6}


def test_a_slave_of_a_version_that_knows_no_acting_brings_no_topics(brokers: Brokers) -> None:
    brokers.register(header_of(broker_id=1, acting=None))
    assert brokers.perms("T1") == {}


def test_topics_are_only_read_once_the_master_of_an_acting_slave_is_gone(brokers: Brokers) -> None:
    brokers.register(header_of(address="m", acting=True))
    brokers.register(header_of(broker_id=1, address="s", acting=True))
    brokers.table.unregister(NAME, "m")
    assert brokers.perms("T1") == {NAME: 4}


def test_topics_stay_writable_when_the_master_of_a_plain_slave_is_gone(brokers: Brokers) -> None:
    brokers.register(header_of(address="m"))
    brokers.register(header_of(broker_id=1, address="s"))
    brokers.table.unregister(NAME, "m")
    assert brokers.perms("T1") == {NAME: 6}


# Leaving.


def test_a_broker_that_leaves_takes_its_topics_with_it(brokers: Brokers) -> None:
    brokers.register(header_of())
    brokers.register(header_of("other", address="o", cluster="D"), table_of(["T1", "T9"]))
    assert [member.broker_name for member in brokers.table.unregister("other", "o")] == ["other"]
    assert set(brokers.table.topics) == {"T1", "T2"}
    assert brokers.perms("T1") == {NAME: 6}
    assert set(brokers.table.clusters) == {"C"}


@pytest.mark.parametrize(("name", "address"), [(NAME, "no"), ("no", "10.0.0.1:10911")])
def test_nobody_leaves_who_is_not_known(brokers: Brokers, name: str, address: str) -> None:
    brokers.register(header_of())
    assert brokers.table.unregister(name, address) == []
    assert set(brokers.table.topics) == {"T1", "T2"}


def test_a_broker_is_believed_for_its_time_and_no_longer(brokers: Brokers) -> None:
    brokers.register(header_of(), now_ms=1000)
    assert brokers.table.expire(1000 + CONFIG.broker_silence_ms) == []
    gone = brokers.table.expire(1001 + CONFIG.broker_silence_ms)
    assert [member.address for member in gone] == ["10.0.0.1:10911"]
    assert brokers.addresses == {}
    assert dict(brokers.table.topics) == {}


def test_a_broker_may_set_its_own_time(brokers: Brokers) -> None:
    brokers.register(header_of(timeout_ms=10))
    assert brokers.table.expire(10) == []
    assert len(brokers.table.expire(11)) == 1


def test_a_sign_of_life_renews_the_time_and_tells_the_version(brokers: Brokers) -> None:
    brokers.register(header_of(timeout_ms=10), table_of(["T1", "T2"], counter=3))
    version = brokers.table.renew("C", "10.0.0.1:10911", 8)
    assert version is not None
    assert version.counter == 3
    assert brokers.table.expire(18) == []
    assert len(brokers.table.expire(19)) == 1
    assert brokers.table.renew("C", "10.0.0.1:10911", 20) is None


@pytest.mark.parametrize(("cluster", "address"), [("D", "10.0.0.1:10911"), ("C", "x")])
def test_a_sign_of_life_is_of_a_cluster_and_an_address(
    brokers: Brokers, cluster: str, address: str
) -> None:
    brokers.register(header_of())
    assert brokers.table.renew(cluster, address, 8) is None


def test_everybody_who_registered_over_a_lost_connection_is_gone(brokers: Brokers) -> None:
    brokers.register(header_of("a", address="a"), connection_id=7)
    brokers.register(header_of("b", address="b"), connection_id=7)
    brokers.register(header_of("c", address="c"), connection_id=8)
    assert {member.broker_name for member in brokers.table.connection_lost(7)} == {"a", "b"}
    assert set(brokers.addresses) == {"c"}
    assert brokers.table.connection_lost(7) == []


def test_a_broker_that_registers_over_a_new_connection_outlives_the_old_one(
    brokers: Brokers,
) -> None:
    brokers.register(header_of(), connection_id=7)
    brokers.register(header_of(), connection_id=8)
    assert brokers.table.connection_lost(7) == []
    assert set(brokers.addresses) == {NAME}
    assert len(brokers.table.connection_lost(8)) == 1


def test_one_address_under_two_names_is_two_brokers(brokers: Brokers) -> None:
    brokers.register(header_of("a", address="x"), connection_id=1)
    brokers.register(header_of("b", address="x"), connection_id=2)
    assert len(brokers.table.unregister("a", "x")) == 1
    assert brokers.table.renew("C", "x", 1) is not None
    assert set(brokers.addresses) == {"b"}


def test_a_name_in_two_clusters_leaves_both(brokers: Brokers) -> None:
    brokers.register(header_of(address="m", cluster="C"))
    brokers.register(header_of(address="s", cluster="D", broker_id=1))
    assert {c: list(names) for c, names in brokers.table.clusters.items()} == {
        "C": [NAME],
        "D": [NAME],
    }
    brokers.table.unregister(NAME, "m")
    brokers.table.unregister(NAME, "s")
    assert dict(brokers.table.clusters) == {}


def test_a_broker_that_moves_to_another_cluster_is_in_that_one_only(brokers: Brokers) -> None:
    brokers.register(header_of("other", address="o", cluster="C"))
    brokers.register(header_of(address="m", cluster="C"))
    brokers.register(header_of(broker_id=1, address="s", cluster="C"))
    before = brokers.table.brokers_version
    brokers.register(header_of(broker_id=1, address="s", cluster="D"))
    assert brokers.table.brokers[NAME].cluster == "C"
    assert brokers.table.brokers_version > before
    before = brokers.table.brokers_version
    brokers.register(header_of(address="m", cluster="D"))
    assert {c: list(names) for c, names in brokers.table.clusters.items()} == {
        "C": ["other"],
        "D": [NAME],
    }
    assert brokers.table.brokers[NAME].cluster == "D"
    assert brokers.table.brokers_version > before


# Changes by operators.


def test_write_permission_is_wiped_and_added(brokers: Brokers) -> None:
    brokers.register(header_of(), table_of([topic("T1", perm=7), topic("T2", perm=4)]))
    brokers.register(header_of("other", address="o"))
    assert brokers.table.wipe_write_permission(NAME) == 2
    assert brokers.perms("T1") == {NAME: 5, "other": 6}
    assert brokers.table.add_write_permission(NAME) == 2
    assert (brokers.perms("T1")[NAME], brokers.perms("T2")[NAME]) == (6, 6)
    assert brokers.table.wipe_write_permission("no") == 0


def test_a_wiped_permission_lasts_until_the_data_version_changes(brokers: Brokers) -> None:
    brokers.register(header_of())
    brokers.table.wipe_write_permission(NAME)
    brokers.register(header_of())
    assert brokers.perms("T1") == {NAME: 4}
    brokers.register(header_of(), table_of(["T1", "T2"], counter=2))
    assert brokers.perms("T1") == {NAME: 6}


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(brokers: Brokers) -> None:
    brokers.register(header_of("a", address="a", cluster="C"))
    brokers.register(header_of("b", address="b", cluster="D"))
    brokers.table.delete_topic("T1", "no")
    brokers.table.delete_topic("T1", "C")
    assert set(brokers.perms("T1")) == {"b"}
    brokers.table.delete_topic("T2")
    brokers.table.delete_topic("no")
    assert set(brokers.table.topics) == {"T1"}


def test_a_route_by_hand_needs_brokers_that_are_known(brokers: Brokers) -> None:
    brokers.register(header_of("a", address="a"))
    mine = QueueData(broker_name="a", perm=6, read_queue_nums=3, write_queue_nums=3)
    assert not brokers.table.register_topic("T", [mine, QueueData(broker_name="no")])
    assert brokers.perms("T") == {}
    assert brokers.table.register_topic("T", [mine])
    assert brokers.table.topics["T"] == {"a": mine}
    brokers.table.unregister("a", "a")
    assert dict(brokers.table.topics) == {}


# Lists.


def test_topics_are_listed_by_cluster(brokers: Brokers) -> None:
    brokers.register(header_of("a", address="a", cluster="C"), table_of(["T1", "T2"]))
    brokers.register(header_of("b", address="b", cluster="C"), table_of(["T2", "T3"]))
    brokers.register(header_of("c", address="c", cluster="D"), table_of(["T3", "T4"]))
    assert brokers.table.topics_of_cluster("C") == {"T1", "T2", "T3"}
    assert brokers.table.topics_of_cluster("D") == {"T3", "T4"}
    assert brokers.table.topics_of_cluster("no") == set()


@pytest.mark.parametrize(
    ("mask", "flags", "expected"), [(1, 1, ["U", "B"]), (2, 2, ["S", "B"]), (3, 2, ["S"])]
)
def test_topics_are_listed_by_their_system_flags(
    brokers: Brokers, mask: int, flags: int, expected: list[str]
) -> None:
    topics = [topic("N"), topic("U", flag=1), topic("S", flag=2), topic("B", flag=3)]
    brokers.register(header_of(), table_of(topics))
    assert list(brokers.table.topics_flagged(mask, flags)) == expected


# Static topics.


def static(queues: int, *, broker: str = NAME, counter: int = 1) -> TopicConfigTable:
    mapping = TopicQueueMappingInfo(
        bname=broker, topic="T1", curr_id_map={n: n for n in range(queues)}, total_queues=queues
    )
    table = table_of(["T1", "T2"], counter=counter)
    return msgspec.structs.replace(table, topic_queue_mapping_info_map={"T1": mapping})


def test_a_static_topic_has_a_mapping_for_each_broker(brokers: Brokers) -> None:
    brokers.register(header_of("a", address="a"), static(2, broker="a"))
    brokers.register(header_of("b", address="b"), static(3, broker="b"))
    found = brokers.table.mappings_of("T1")
    assert found is not None
    assert {name: len(mapping.curr_id_map) for name, mapping in found.items()} == {"a": 2, "b": 3}
    assert brokers.table.mappings_of("T2") is None


def test_a_mapping_goes_with_its_broker_and_with_its_topic(brokers: Brokers) -> None:
    brokers.register(header_of("a", address="a"), static(2, broker="a"))
    brokers.register(header_of("b", address="b"), static(2, broker="b"))
    brokers.table.unregister("a", "a")
    assert set(brokers.table.mappings_of("T1") or ()) == {"b"}
    brokers.table.delete_topic("T1")
    assert brokers.table.mappings_of("T1") is None


def test_a_mapping_in_the_name_of_another_broker_is_not_taken(brokers: Brokers) -> None:
    brokers.register(header_of("a", address="a"), static(2, broker="b"))
    assert brokers.table.mappings_of("T1") is None


def test_the_queues_of_static_topics_are_limited_and_counted_once() -> None:
    brokers = Brokers(NameServerConfig(static_queues_max=4))
    brokers.register(header_of(), static(3))
    brokers.register(header_of(), static(4, counter=2))
    with pytest.raises(RequestError, match="static_queues_max is 4"):
        brokers.register(header_of(), static(5, counter=3))
    not_taken = TopicQueueMappingInfo(bname="other", topic="T1", total_queues=0)
    table = static(4, counter=4)
    mine = (table.topic_queue_mapping_info_map or {})["T1"]
    both = {"T1": not_taken, "T2": msgspec.structs.replace(mine, topic="T2")}
    with pytest.raises(RequestError, match="static_queues_max is 4"):
        brokers.register(
            header_of(), msgspec.structs.replace(table, topic_queue_mapping_info_map=both)
        )
    brokers.table.unregister(NAME, "10.0.0.1:10911")
    brokers.register(header_of(), static(4))


# Limits.


def test_brokers_are_limited_but_those_known_go_on() -> None:
    brokers = Brokers(NameServerConfig(brokers_max=2))
    brokers.register(header_of("a", address="a"))
    brokers.register(header_of("a", address="a1", broker_id=1))
    with pytest.raises(RequestError, match="brokers_max is 2"):
        brokers.register(header_of("b", address="b"))
    brokers.register(header_of("a", address="a"))
    brokers.register(header_of("a", address="moved"))
    with pytest.raises(RequestError, match="brokers_max is 2"):
        brokers.register(header_of("b", address="moved"))
    brokers.register(header_of("a", address="a1", broker_id=2))
    brokers.table.unregister("a", "moved")
    brokers.register(header_of("b", address="b"))
    with pytest.raises(RequestError, match="brokers_max is 2"):
        brokers.register(header_of("c", address="c"))


def test_topics_are_limited_and_a_refused_registration_changes_nothing() -> None:
    brokers = Brokers(NameServerConfig(topics_max=3))
    brokers.register(header_of("a", address="a"), table_of(["T1", "T2"]))
    with pytest.raises(RequestError, match=r"register broker failed: .* topics_max is 3"):
        brokers.register(header_of("b", address="b"), table_of(["T3", "T4"]))
    assert set(brokers.addresses) == {"a"}
    brokers.register(header_of("b", address="b"), table_of(["T2", "T3"]))
    with pytest.raises(RequestError, match=r"register topic failed: .* topics_max is 3"):
        brokers.table.register_topic("T4", [QueueData(broker_name="a")])


def test_topics_are_limited_once_for_each_broker_that_serves_them() -> None:
    brokers = Brokers(NameServerConfig(topic_brokers_max=3))
    brokers.register(header_of("a", address="a"), table_of(["T1", "T2"]))
    with pytest.raises(RequestError, match="topic_brokers_max is 3"):
        brokers.register(header_of("b", address="b"), table_of(["T1", "T2"]))
    brokers.table.delete_topic("T2")
    brokers.register(header_of("b", address="b"), table_of(["T1", "T2"]))
    brokers.register(header_of("b", address="b"), table_of(["T1", "T2"], counter=2))


LONG = "x" * (CONFIG.name_length_max + 1)


@pytest.mark.parametrize(
    ("header", "topics", "field"),
    [
        (header_of(LONG), ["T1", "T2"], "brokerName"),
        (header_of(cluster=LONG), ["T1", "T2"], "clusterName"),
        (header_of(address=LONG), ["T1", "T2"], "brokerAddr"),
        (header_of(zone=LONG), ["T1", "T2"], "__ZONE_NAME"),
        (header_of(), ["T1", LONG], "topicName"),
    ],
)
def test_names_are_limited_in_length(
    brokers: Brokers, header: RegisterBroker, topics: list[str], field: str
) -> None:
    with pytest.raises(RequestError, match=f"^{field} has 513 characters, name_length_max is 512"):
        brokers.register(header, table_of(topics))
    assert brokers.addresses == {}


def test_the_name_of_a_route_by_hand_is_limited_in_length(brokers: Brokers) -> None:
    brokers.register(header_of())
    with pytest.raises(RequestError, match="topic has 513 characters"):
        brokers.table.register_topic(LONG, [QueueData(broker_name=NAME)])


# The versions that caches depend on.


def test_versions_grow_with_changes_and_only_then(brokers: Brokers) -> None:
    brokers.register(header_of())
    queues = brokers.table.topics["T1"]
    before = (brokers.table.brokers_version, brokers.table.topics_version)
    brokers.register(header_of(), now_ms=5)
    brokers.register(header_of(), table_of(["T1", "T2"], counter=2))
    assert (brokers.table.brokers_version, brokers.table.topics_version) == before
    assert brokers.table.topics["T1"] is queues
    brokers.register(header_of(zone="z"))
    assert brokers.table.brokers_version > before[0]
    brokers.table.delete_topic("T1")
    assert brokers.table.topics_version > before[1]


def test_the_version_grows_with_a_mapping_that_changes_and_only_then(brokers: Brokers) -> None:
    brokers.register(header_of(), static(2))
    before = brokers.table.brokers_version
    brokers.register(header_of(), static(2, counter=2))
    assert brokers.table.brokers_version == before
    brokers.register(header_of(), static(3, counter=3))
    assert brokers.table.brokers_version > before


def test_queues_are_replaced_and_never_changed(brokers: Brokers) -> None:
    brokers.register(header_of())
    queues = brokers.table.topics["T1"]
    copy = dict(queues)
    brokers.register(header_of("other", address="o"))
    brokers.table.wipe_write_permission(NAME)
    brokers.table.unregister("other", "o")
    assert queues == copy
    assert brokers.table.topics["T1"] is not queues
