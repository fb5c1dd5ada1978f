"""The route table against a model of a few flat lists, which are searched from end to end."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.nameserver.servers import header_of, table_of, topic

from cometmq.nameserver.answers import Answers
from cometmq.nameserver.config import NameServerConfig
from cometmq.nameserver.errors import RequestError
from cometmq.nameserver.route_table import RouteTable
from cometmq.proto.bodies import TopicRouteData

CLUSTERS = {"a": "C", "b": "C", "c": "D"}
CONFIG = NameServerConfig(broker_silence_ms=50)

names = st.sampled_from(sorted(CLUSTERS))
ids = st.sampled_from([0, 0, 1, 2])
ports = st.integers(1, 3)
topic_names = st.sampled_from(["T1", "T2", "T3", "T4"])
topics = st.dictionaries(topic_names, st.sampled_from([4, 6]), max_size=4)
connections = st.integers(1, 3)


@dataclass
class Entry:
    """One broker process of the model."""

    name: str
    id: int
    address: str
    version: tuple[int, int]
    seen_ms: int
    timeout_ms: int
    connection: int


class Model:
    """The expected contents of the table."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.acting: dict[str, bool] = {}
        self.perms: dict[tuple[str, str], int] = {}  # By topic and broker name.

    def of(self, name: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.name == name]

    def register(self, new: Entry, acting: bool | None, perms: dict[str, int]) -> bool:
        holder = next((e for e in self.of(new.name) if e.id == new.id), None)
        same = next((e for e in self.of(new.name) if e.address == new.address), None)
        if holder and holder.address != new.address and holder.version[0] > new.version[0]:
            if same:
                self.drop(same)
            return True
        if holder is None and len(perms) == 1:
            return False
        self.entries = [e for e in self.entries if e not in (holder, same)] + [new]
        self.acting[new.name] = bool(acting)
        speaks = new.id == 0 or (
            acting is not None and new.id == min(e.id for e in self.of(new.name))
        )
        for name, perm in perms.items() if speaks else ():
            is_known = (name, new.name) in self.perms
            if holder and same and same.version == new.version and is_known:
                continue
            reads_only = new.id != 0 and acting
            self.perms[name, new.name] = perm & ~2 if reads_only else perm
        return True

    def drop(self, gone: Entry) -> None:
        self.entries = [entry for entry in self.entries if entry is not gone]
        left = self.of(gone.name)
        for key in [key for key in self.perms if key[1] == gone.name]:
            if not left:
                del self.perms[key]
            elif self.acting[gone.name] and min(entry.id for entry in left) > 0:
                self.perms[key] &= ~2


class RouteTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.table = RouteTable(CONFIG)
        self.answers = Answers(self.table, CONFIG)
        self.now_ms = 0

    @rule(
        name=names,
        broker_id=ids,
        port=ports,
        acting=st.sampled_from([None, False, True]),
        perms=topics,
        counter=st.integers(1, 2),
        state_version=st.integers(0, 1),
        timeout_ms=st.sampled_from([None, 20]),
        connection=connections,
    )
    def register(
        self,
        name: str,
        broker_id: int,
        port: int,
        acting: bool | None,
        perms: dict[str, int],
        counter: int,
        state_version: int,
        timeout_ms: int | None,
        connection: int,
    ) -> None:
        address = f"{name}:{port}"
        header = header_of(
            name,
            broker_id=broker_id,
            address=address,
            cluster=CLUSTERS[name],
            acting=acting,
            timeout_ms=timeout_ms,
        )
        table = table_of(
            [topic(each, perm=perm) for each, perm in perms.items()],
            counter=counter,
            state_version=state_version,
        )
        entry = Entry(
            name,
            broker_id,
            address,
            (state_version, counter),
            self.now_ms,
            timeout_ms or 50,
            connection,
        )
        expected = self.model.register(entry, acting, perms)
        try:
            self.table.register(header, table, connection_id=connection, now_ms=self.now_ms)
        except RequestError:
            assert not expected
        else:
            assert expected

    @rule(name=names, port=ports)
    def unregister(self, name: str, port: int) -> None:
        gone = [e for e in self.model.of(name) if e.address == f"{name}:{port}"]
        assert len(self.table.unregister(name, f"{name}:{port}")) == len(gone)
        for entry in gone:
            self.model.drop(entry)

    @rule(name=names, port=ports)
    def renew(self, name: str, port: int) -> None:
        found = [e for e in self.model.of(name) if e.address == f"{name}:{port}"]
        version = self.table.renew(CLUSTERS[name], f"{name}:{port}", self.now_ms)
        assert (version is not None) == bool(found)
        for entry in found:
            entry.seen_ms = self.now_ms

    @rule(passed_ms=st.integers(1, 30))
    def expire(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        gone = [e for e in self.model.entries if e.seen_ms + e.timeout_ms < self.now_ms]
        found = {member.address for member in self.table.expire(self.now_ms)}
        assert found == {entry.address for entry in gone}
        for entry in gone:
            self.model.drop(entry)

    @rule(connection=connections)
    def lose(self, connection: int) -> None:
        gone = [e for e in self.model.entries if e.connection == connection]
        found = {member.address for member in self.table.connection_lost(connection)}
        assert found == {entry.address for entry in gone}
        for entry in gone:
            self.model.drop(entry)

    @rule(name=names, writes=st.booleans())
    def permit(self, name: str, writes: bool) -> None:
        keys = [key for key in self.model.perms if key[1] == name]
        for key in keys:
            self.model.perms[key] = 6 if writes else self.model.perms[key] & ~2
        table = self.table
        change = table.add_write_permission if writes else table.wipe_write_permission
        assert change(name) == len(keys)

    @rule(topic_name=topic_names, cluster=st.sampled_from([None, "C", "D", "no"]))
    def delete(self, topic_name: str, cluster: str | None) -> None:
        self.model.perms = {
            (each, name): perm
            for (each, name), perm in self.model.perms.items()
            if each != topic_name or (cluster is not None and cluster != CLUSTERS[name])
        }
        self.table.delete_topic(topic_name, cluster)

    @invariant()
    def the_table_holds_what_the_model_holds(self) -> None:
        model = self.model
        perms = {
            (each, name): data.perm
            for each, queues in self.table.topics.items()
            for name, data in queues.items()
        }
        assert perms == model.perms
        addresses = {
            name: {entry.id: entry.address for entry in model.of(name)}
            for name in CLUSTERS
            if model.of(name)
        }
        assert {n: broker.addresses for n, broker in self.table.brokers.items()} == addresses
        clusters: dict[str, set[str]] = {}
        for name in addresses:
            clusters.setdefault(CLUSTERS[name], set()).add(name)
        assert {c: set(found) for c, found in self.table.clusters.items()} == clusters
        for cluster, members in clusters.items():
            served = {each for each, name in perms if name in members}
            assert self.table.topics_of_cluster(cluster) == served

    @invariant()
    def every_route_is_that_of_the_present_table(self) -> None:
        for each in ("T1", "T2", "T3", "T4"):
            body = self.answers.route(each, is_standard=True)
            serving = {name for topic_name, name in self.model.perms if topic_name == each}
            if not serving:
                assert body is None
                continue
            found = TopicRouteData.decode(body or b"")
            assert {data.broker_name for data in found.broker_datas} == serving
            for data in found.broker_datas:
                of_name = self.model.of(data.broker_name)
                assert data.broker_addrs == {entry.id: entry.address for entry in of_name}
            perms = {data.broker_name: data.perm for data in found.queue_datas}
            assert perms == {name: self.model.perms[each, name] for name in serving}


TestRouteTable = RouteTableMachine.TestCase
TestRouteTable.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
