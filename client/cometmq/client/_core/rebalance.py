"""How the members of a group share the queues of a topic; each member computes its own share.

All members see the queues and the members' ids in the same order, and compute their shares by the
same rule. The rules are exactly Apache's: if a Java member and a Python member came to different
results, a queue would have two readers, or none.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from cometmq.client._core.queues import share_order
from cometmq.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from cometmq.client._core.queues import Queue

_VIRTUAL_NODES: Final = 10
_Placed = TypeVar("_Placed")
"""A queue, or a member's client id."""


@dataclass(frozen=True, slots=True)
class ByConfig:
    """Each member takes the queues that it is configured with, whatever other members there are.

    ::

        mine = [queue for queue in await mq.queues("orders") if queue.id % 2]
        mq.consume("orders", group="billing", strategy=ByConfig(mine))

    Topics without a named queue, such as the group's retry topic, are shared by "AVG".
    """

    queues: Sequence[Queue]


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """Averages the queues of the brokers in given machine rooms; such brokers are named `room@…`.

    ::

        mq.consume("orders", group="billing", strategy=ByMachineRoom({"vienna", "graz"}))

    Queues in other rooms are not consumed, so every room needs a member; the group's retries also
    come only from these rooms.
    """

    rooms: Collection[str]


RuleName: TypeAlias = Literal["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"]


@dataclass(frozen=True, slots=True)
class ByNearbyRoom:
    """Each member takes queues in its own machine room; rooms without members are shared by all.

    ::

        by_room = ByNearbyRoom(
            room_of_queue=lambda queue: queue.broker.partition("@")[0],
            room_of_member=lambda client_id: client_id.partition("@")[2].partition("-")[0],
        )
        mq = Client("127.0.0.1:9876", ClientConfig(instance="vienna-1"))
        mq.consume("orders", group="billing", strategy=by_room)

    The functions are called for every queue and every member and must not return an empty room. A
    client id is the address, `@` and the `instance`. Within a room, `strategy` shares the queues.
    """

    room_of_queue: Callable[[Queue], str]
    room_of_member: Callable[[str], str]
    strategy: RuleName = "AVG"


Strategy: TypeAlias = "RuleName | ByConfig | ByMachineRoom | ByNearbyRoom"


def check_strategy(strategy: object) -> None:
    """Refuse a value that is no strategy."""
    if isinstance(strategy, ByConfig | ByMachineRoom):
        return
    names = ", ".join(map(repr, _RULES))
    if isinstance(strategy, ByNearbyRoom):
        if strategy.strategy not in _RULES:
            raise UsageError(
                f"strategy={strategy.strategy!r} of ByNearbyRoom: must be one of {names}"
            )
        functions: tuple[object, ...] = (strategy.room_of_queue, strategy.room_of_member)
        if not all(map(callable, functions)):
            raise UsageError("room_of_queue and room_of_member of ByNearbyRoom must be functions")
    elif strategy not in _RULES:
        raise UsageError(
            f"strategy={strategy!r}: must be one of {names}, ByConfig, ByMachineRoom or"
            " ByNearbyRoom"
        )


def share(
    own_id: str, members: Iterable[str], queues: Iterable[Queue], strategy: Strategy = "AVG"
) -> list[Queue]:
    """Return this member's queues; none while it is not on the list of members.

    Raise a `UsageError` if a function of `ByNearbyRoom` does not return a room.
    """
    ids = sorted(set(members), key=lambda each: each.encode("utf-16-be"))
    if own_id not in ids:
        return []
    index, ordered = ids.index(own_id), sorted(queues, key=share_order)
    if isinstance(strategy, ByConfig):
        topics = {queue.topic for queue in strategy.queues}
        if not topics.isdisjoint(queue.topic for queue in ordered):
            return [queue for queue in ordered if queue in strategy.queues]
        return _average(index, ids, ordered)
    if isinstance(strategy, ByMachineRoom):
        return _machine_room(index, ids, [q for q in ordered if _room(q) in strategy.rooms])
    if isinstance(strategy, ByNearbyRoom):
        return _nearby(own_id, ids, ordered, strategy)
    return _RULES[strategy](index, ids, ordered)


def _average(index: int, ids: Sequence[str], queues: Sequence[Queue]) -> list[Queue]:
    """Give neighbouring queues to each; if it does not divide, the first members take one more."""
    each, more = divmod(len(queues), len(ids))
    count = 1 if len(queues) <= len(ids) else each + (index < more)
    start = index * count if more and index < more else index * count + more
    return list(queues[start : start + count])


def _circle(index: int, ids: Sequence[str], queues: Sequence[Queue]) -> list[Queue]:
    """Deal the queues out like cards."""
    return list(queues[index :: len(ids)])


def _room(queue: Queue) -> str | None:
    room, at, name = queue.broker.partition("@")
    return room if at and name and "@" not in name else None


def _machine_room(index: int, ids: Sequence[str], queues: Sequence[Queue]) -> list[Queue]:
    """Give neighbouring queues to each; the remainder goes to the first members, one each."""
    each, more = divmod(len(queues), len(ids))
    taken = list(queues[index * each : (index + 1) * each])
    if index < more:
        taken.append(queues[each * len(ids) + index])
    return taken


def _nearby(
    own_id: str, ids: Sequence[str], queues: Sequence[Queue], strategy: ByNearbyRoom
) -> list[Queue]:
    """Share a room's queues among its members, or among all members if it has none."""
    of_rooms: dict[str, list[Queue]] = {}
    for queue in queues:
        of_rooms.setdefault(_resolved(strategy.room_of_queue, queue), []).append(queue)
    members: dict[str, list[str]] = {}
    for each in ids:
        members.setdefault(_resolved(strategy.room_of_member, each), []).append(each)
    taken: list[Queue] = []
    for room, here in of_rooms.items():
        sharing = members.get(room, ids)
        if own_id in sharing:
            taken += _RULES[strategy.strategy](sharing.index(own_id), sharing, here)
    return taken


def _resolved(room_of: Callable[[_Placed], object], what: _Placed) -> str:
    """Return the room of a queue or a member, from the user's function."""
    try:
        room = room_of(what)
    except Exception as error:
        raise UsageError(f"the machine room of {what}: {room_of} raised {error!r}") from error
    if not isinstance(room, str) or not room:
        raise UsageError(f"the machine room of {what}: {room_of} returned {room!r}, not a name")
    return room


def _consistent_hash(index: int, ids: Sequence[str], queues: Sequence[Queue]) -> list[Queue]:
    """Give each queue to the next member on a ring, so that few queues move when one joins."""
    ring = sorted(
        (_ring_hash(f"{member}-{node}"), member) for member in ids for node in range(_VIRTUAL_NODES)
    )
    points = [point for point, _ in ring]
    taken: list[Queue] = []
    for queue in queues:
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.id}]"
        place = bisect_left(points, _ring_hash(text)) % len(ring)
        if ring[place][1] == ids[index]:
            taken.append(queue)
    return taken


def _ring_hash(text: str) -> int:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


_RULES: Final[Mapping[str, Callable[[int, Sequence[str], Sequence[Queue]], list[Queue]]]] = {
    "AVG": _average,
    "AVG_BY_CIRCLE": _circle,
    "CONSISTENT_HASH": _consistent_hash,
}
