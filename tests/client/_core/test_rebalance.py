"""Members share queues exactly as Apache's members do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as some

from cometmq.client._core.queues import Queue
from cometmq.client._core.rebalance import (
    ByConfig,
    ByMachineRoom,
    ByNearbyRoom,
    check_strategy,
    share,
)
from cometmq.client.errors import UsageError

if TYPE_CHECKING:
    from cometmq.client._core.rebalance import RuleName, Strategy

STRATEGIES: list[RuleName] = ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"]


def queues_of(count: int) -> list[Queue]:
    return [Queue("T", "b", number) for number in range(count)]


def shares(members: int, queues: int, strategy: Strategy = "AVG") -> list[list[int]]:
    ids = [f"c{number:02}" for number in range(members)]
    return [[q.id for q in share(each, ids, queues_of(queues), strategy)] for each in ids]


def test_averages_are_those_that_the_protocol_names() -> None:
    assert shares(3, 8) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert shares(4, 2) == [[0], [1], [], []]
    assert shares(2, 7) == [[0, 1, 2, 3], [4, 5, 6]]
    assert shares(2, 5, "AVG_BY_CIRCLE") == [[0, 2, 4], [1, 3]]


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(members=some.integers(1, 12), queues=some.integers(0, 40))
def test_each_queue_has_one_owner(strategy: Strategy, members: int, queues: int) -> None:
    owned = [queue for each in shares(members, queues, strategy) for queue in each]
    assert sorted(owned) == list(range(queues))


@given(members=some.integers(1, 12), queues=some.integers(0, 40))
def test_averages_differ_by_one_at_most(members: int, queues: int) -> None:
    for strategy in ("AVG", "AVG_BY_CIRCLE"):
        sizes = [len(each) for each in shares(members, queues, strategy)]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_who_is_not_on_the_list_has_nothing(strategy: Strategy) -> None:
    assert share("me", ["a", "b"], queues_of(4), strategy) == []
    assert share("me", [], queues_of(4), strategy) == []


def test_the_order_of_what_is_given_does_not_matter() -> None:
    queues = [Queue("T", broker, number) for broker in ("b", "a") for number in (1, 0)]
    assert share("x", ["y", "x"], queues) == [Queue("T", "a", 0), Queue("T", "a", 1)]


def test_ids_are_in_the_order_of_their_utf_16_units() -> None:
    # In UTF-16 U+10000 is D800 DC00, which sorts before U+FF5E.
    assert share("\U00010000", ["\uff5e", "\U00010000"], queues_of(2)) == [Queue("T", "b", 0)]


def test_by_config_each_member_has_what_it_is_told() -> None:
    mine = ByConfig([Queue("T", "b", 3), Queue("T", "b", 1), Queue("T", "b", 99)])
    assert [q.id for q in share("x", ["x", "y"], queues_of(8), mine)] == [1, 3]
    retries = [Queue("%RETRY%g", "b", 0)]
    assert share("x", ["x", "y"], retries, mine) == retries
    assert share("y", ["x", "y"], retries, mine) == []


def test_by_machine_room_only_brokers_of_these_rooms_are_shared() -> None:
    queues = [Queue("T", broker, each) for broker in ("v@a", "g@a", "a", "v@", "v@b@c")
              for each in range(5)]  # fmt: skip
    rule = ByMachineRoom({"v"})
    taken = [[(q.broker, q.id) for q in share(each, ["x", "y"], queues, rule)] for each in "xy"]
    assert taken == [[("v@a", 0), ("v@a", 1), ("v@a", 4)], [("v@a", 2), ("v@a", 3)]]


def first_letter(queue: Queue) -> str:
    return queue.broker[0]


def last_letter(member: str) -> str:
    return member[-1:]


def test_members_have_the_queues_of_their_room_and_share_those_of_empty_rooms() -> None:
    queues = [Queue("T", broker, each) for broker in ("v1", "v2", "g1", "x1") for each in (0, 1)]
    rule = ByNearbyRoom(first_letter, last_letter)
    ids = ["a-v", "b-v", "c-g"]
    taken = [[f"{q.broker}:{q.id}" for q in share(each, ids, queues, rule)] for each in ids]
    assert taken == [["v1:0", "v1:1", "x1:0"], ["v2:0", "v2:1", "x1:1"], ["g1:0", "g1:1"]]
    circle = ByNearbyRoom(first_letter, last_letter, "AVG_BY_CIRCLE")
    assert [(q.broker, q.id) for q in share("a-v", ids[:2], queues[:4], circle)] == [
        ("v1", 0),
        ("v2", 0),
    ]
    assert share("stranger-v", ids, queues, rule) == []


@pytest.mark.parametrize("within", STRATEGIES)
@given(rooms=some.text("vgx", min_size=1, max_size=9), counts=some.lists(some.integers(0, 9)))
def test_by_nearby_room_each_queue_has_one_owner(
    within: RuleName, rooms: str, counts: list[int]
) -> None:
    queues = [
        Queue("T", f"{'vgxy'[number % 4]}{number}", each)
        for number, count in enumerate(counts)
        for each in range(count)
    ]
    rule = ByNearbyRoom(first_letter, last_letter, within)
    ids = [f"c{number}-{room}" for number, room in enumerate(rooms)]
    taken = [queue for each in ids for queue in share(each, ids, queues, rule)]
    assert sorted(taken, key=str) == sorted(queues, key=str)


def no_room(_: object) -> str:
    raise LookupError("no such rack")


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (ByNearbyRoom(no_room, last_letter), "raised LookupError.'no such rack'"),
        (ByNearbyRoom(first_letter, no_room), "machine room of a-v.* raised LookupError"),
        (ByNearbyRoom(lambda _: "", last_letter), "returned '', not a name"),
        (ByNearbyRoom(first_letter, lambda _: None), "returned None, not a name"),  # type: ignore[arg-type,return-value]  # Wrong on purpose.
    ],
)
def test_a_room_that_is_not_to_be_had_is_a_clear_error(rule: ByNearbyRoom, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        share("a-v", ["a-v"], queues_of(1), rule)


@pytest.mark.parametrize(
    "strategy",
    [ByNearbyRoom(first_letter, last_letter, "ROUND"), ByNearbyRoom("v", last_letter)],  # type: ignore[arg-type]  # Wrong on purpose.
)
def test_nearby_rooms_are_found_by_functions_and_shared_by_a_rule(strategy: ByNearbyRoom) -> None:
    with pytest.raises(UsageError, match="of ByNearbyRoom"):
        check_strategy(strategy)


@pytest.mark.parametrize("strategy", ["avg", None, 7])
def test_what_is_no_strategy_is_refused(strategy: object) -> None:
    with pytest.raises(UsageError, match="CONSISTENT_HASH"):
        check_strategy(strategy)
