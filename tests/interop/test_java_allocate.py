"""Apache's own strategies give each member of a group the queues that ours give it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.interop.apache_java import ask, class_path
from tests.interop.test_clients import JAVA

from cometmq.client._core.queues import Queue
from cometmq.client._core.rebalance import ByConfig, ByMachineRoom, ByNearbyRoom, share

if TYPE_CHECKING:
    from cometmq.client._core.rebalance import RuleName, Strategy

pytestmark = pytest.mark.slow

RELEASES = ("5.5.0",)
SOURCE = JAVA.parent / "java-allocate" / "Allocate.java"
SEED = 6
CASES = 2_000
BROKERS = ("broker-a", "broker-b", "Broker-C", "vienna@a", "vienna@b", "graz@a", "graz@", "@a", "é")


class Case(NamedTuple):
    name: str
    strategy: Strategy
    own_id: str
    members: list[str]
    queues: list[Queue]
    rest: str = ""

    def line(self) -> str:
        return (
            f"{self.name} {self.own_id} {','.join(self.members)} {shown(self.queues)} {self.rest}"
        )


def shown(queues: list[Queue]) -> str:
    return ",".join(f"{queue.broker}:{queue.id}" for queue in queues)


def cases() -> list[Case]:
    chance = random.Random(SEED)
    return [case(chance) for _ in range(CASES)]


def case(chance: random.Random) -> Case:
    members = [
        f"10.0.0.{each}@{chance.randrange(99)}#{each}" for each in range(chance.randint(1, 9))
    ]
    brokers = chance.sample(BROKERS, chance.randint(1, 4))
    queues = [
        Queue("T", each, number) for each in brokers for number in range(chance.randint(1, 9))
    ]
    chance.shuffle(members)
    chance.shuffle(queues)
    own_id = chance.choice([*members, "10.9.9.9@stranger"])
    name = chance.choice(["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "CONFIG", "ROOMS", "NEARBY"])
    if name == "NEARBY":
        members = [each + chance.choice("bvgx@") for each in members]
        within: RuleName = chance.choice(["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
        rule = ByNearbyRoom(lambda queue: queue.broker[0], lambda member: member[-1], within)
        return Case(name, rule, chance.choice(members), members, queues, within)
    if name == "CONFIG":
        own_id = members[0]  # A member on no list gets nothing here; Apache's does not check.
        mine = chance.sample(queues, chance.randint(1, len(queues)))
        return Case(name, ByConfig(mine), own_id, members, queues, shown(mine))
    if name == "ROOMS":
        rooms = chance.choice([["vienna"], ["vienna", "graz"], ["linz"]])
        return Case(name, ByMachineRoom(rooms), own_id, members, queues, ",".join(rooms))
    return Case(name, name, own_id, members, queues)  # type: ignore[arg-type]  # One of the names.


@pytest.mark.parametrize("release", RELEASES)
def test_apache_gives_every_member_what_we_give_it(release: str) -> None:
    asked = cases()
    path = class_path(release, JAVA / "pom.xml")
    answers = ask(path, SOURCE, [each.line() for each in asked])
    differ = [
        (each, answer, ours)
        for each, answer in zip(asked, answers, strict=True)
        if (ours := shown(share(each.own_id, each.members, each.queues, each.strategy))) != answer
    ]
    assert not differ, (len(differ), differ[:3])
