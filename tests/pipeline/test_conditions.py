"""The conditions that Spark hands down leave out only what fails them. No session is needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from operator import eq, ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Final

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from tests.store.records import HOST

from cometmq.pipeline.cluster import Bounds, Queue
from cometmq.pipeline.conditions import about, column_of, holds, range_of
from cometmq.pipeline.records.layout import answer_layout
from cometmq.pipeline.source import narrowed
from cometmq.pipeline.store.scan import Part
from cometmq.pipeline.store_source import begins_within, that_may_hold
from cometmq.proto.record import encode_record

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.spark]

COMPARED: Final = (
    (EqualTo, eq),
    (GreaterThan, gt),
    (GreaterThanOrEqual, ge),
    (LessThan, lt),
    (LessThanOrEqual, le),
)
TIME: Final = datetime(2024, 5, 6, 7, 8, 9, 250_000, UTC)
UNKNOWN: Final = (
    EqualNullSafe(("n",), 3),
    IsNull(("n",)),
    IsNotNull(("n",)),
    Not(EqualTo(("n",), 3)),
    StringStartsWith(("n",), "a"),
    StringEndsWith(("n",), "a"),
    StringContains(("n",), "a"),
    EqualTo(("n",), "3"),
    GreaterThan(("n",), 2.5),
    In(("n",), (3, None)),
    In(("n",), ()),
)
"""Conditions from which no range of numbers follows."""

RECORDS: Final = tuple(product(("T", "U", "Ü"), (0, 1, 2)))
"""The topic and queue of each record; they are stored a millisecond and 256 bytes apart."""


def stored() -> bytes:
    """Return records that follow one another in a log, from offset 1,024 on."""
    made = bytearray()
    for number, (topic, queue_id) in enumerate(RECORDS):
        name = topic.encode()
        made += encode_record(
            topic=name,
            body=bytes(256 - 91 - len(name)),
            properties=b"",
            queue_id=queue_id,
            queue_offset=number,
            physical_offset=1024 + 256 * number,
            born_timestamp=1,
            born_host=HOST,
            store_timestamp=int(TIME.timestamp() * 1000) + number,
            store_host=HOST,
        )
    assert len(made) == 256 * len(RECORDS)
    return bytes(made)


def left(condition: Filter) -> list[int]:
    """Return the numbers of the records that a condition leaves."""
    found: list[int] = that_may_hold(answer_layout(stored()), condition).nonzero()[0].tolist()
    return found


@pytest.mark.parametrize(("kind", "compare"), COMPARED)
def test_a_range_has_the_numbers_that_a_comparison_holds_for(
    kind: Callable[[tuple[str, ...], int], Filter], compare: Callable[[int, int], bool]
) -> None:
    for value, number in product(range(-2, 3), repeat=2):
        low, high = range_of(kind(("n",), value))
        assert (low <= number < high) == compare(number, value)


@pytest.mark.parametrize(("kind", "compare"), COMPARED)
def test_the_largest_numbers_are_compared_as_others(
    kind: Callable[[tuple[str, ...], int], Filter], compare: Callable[[int, int], bool]
) -> None:
    for value in (-(2**63), 2**63 - 1):
        wanted = [n for n in range(len(RECORDS)) if compare(1024 + 256 * n, value)]
        assert left(kind(("physical_offset",), value)) == wanted


def test_a_list_is_the_range_from_its_least_to_its_greatest() -> None:
    assert range_of(In(("n",), (7, 3, 5))) == (3, 8)


@pytest.mark.parametrize("condition", UNKNOWN, ids=str)
def test_what_is_no_comparison_with_a_number_leaves_every_number(condition: Filter) -> None:
    low, high = range_of(condition)
    assert (low, high) == (-(2**63), 2**63 - 1)


def test_a_time_is_microseconds_in_any_zone() -> None:
    number = int(TIME.timestamp()) * 1_000_000 + 250_000
    there = TIME.astimezone(timezone(timedelta(hours=-7)))
    for time in (TIME, there, TIME.replace(tzinfo=None)):
        assert range_of(EqualTo(("t",), time)) == (number, number + 1)
        assert range_of(GreaterThan(("t",), time))[0] == number + 1


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        (EqualTo(("topic",), "T"), "T"),
        (In(("topic",), ("T", "U")), "TU"),
        (In(("topic",), ()), ""),
        (IsNotNull(("topic",)), "TUV"),
        (Not(EqualTo(("topic",), "T")), "TUV"),
        (StringStartsWith(("topic",), "T"), "TUV"),
    ],
    ids=str,
)
def test_a_value_is_looked_for_where_it_is_named(condition: Filter, values: str) -> None:
    assert "".join(value for value in "TUV" if holds(condition, value)) == values


def test_a_condition_is_about_a_column_and_not_about_what_is_inside_of_one() -> None:
    inside = EqualTo(("properties", "topic"), "T")
    plain = EqualTo(("topic",), "T")
    negated = Not(plain)
    assert [column_of(each) for each in (inside, plain, negated)] == ["", "topic", ""]
    assert about([inside, negated, plain, EqualTo(("tag",), "T")], ("topic",)) == [plain]


@pytest.mark.parametrize(("kind", "compare"), COMPARED)
def test_records_of_a_store_are_left_by_what_their_heads_say(
    kind: Callable[[tuple[str, ...], Any], Filter], compare: Callable[[Any, Any], bool]
) -> None:
    numbers = range(len(RECORDS))
    of_queues = [n for n in numbers if compare(RECORDS[n][1], 1)]
    assert left(kind(("queue_id",), 1)) == of_queues
    of_places = [n for n in numbers if compare(n, 4)]
    assert left(kind(("physical_offset",), 1024 + 256 * 4)) == of_places
    assert left(kind(("store_time",), TIME + timedelta(milliseconds=4))) == of_places


def test_records_of_a_store_are_left_by_their_topics() -> None:
    assert left(EqualTo(("topic",), "Ü")) == [6, 7, 8]
    assert left(In(("topic",), ("T", "Ü"))) == [0, 1, 2, 6, 7, 8]
    assert left(IsNotNull(("topic",))) == list(range(9))


def test_a_part_is_read_when_a_record_that_is_wanted_can_begin_in_it() -> None:
    part = Part("", "", 1000, 200, 300, 500, 500)
    for low, high, is_wanted in (
        (1200, 1201, True),
        (1299, 1300, True),
        (1300, 1400, False),
        (1000, 1200, False),
        (0, 5000, True),
        (1250, 1250 + 1, True),
    ):
        assert begins_within(part, low, high) is is_wanted


@pytest.mark.parametrize(
    ("condition", "planned"),
    [
        (EqualTo(("topic",), "T"), {("T", "a", 0): (10, 20), ("T", "b", 1): (10, 20)}),
        (In(("broker",), ("b", "c")), {("T", "b", 1): (10, 20)}),
        (EqualTo(("queue_id",), 2), {("U", "a", 2): (10, 20)}),
        (In(("queue_id",), (7, 8)), {}),
    ],
    ids=str,
)
def test_queues_of_which_nothing_is_wanted_are_not_planned(
    condition: Filter, planned: dict[tuple[str, str, int], tuple[int, int]]
) -> None:
    wanted = {
        Queue("T", "a", 0): Bounds(10, 20),
        Queue("T", "b", 1): Bounds(10, 20),
        Queue("U", "a", 2): Bounds(10, 20),
    }
    assert narrowed(wanted, [condition]) == planned


@pytest.mark.parametrize(("kind", "compare"), COMPARED)
def test_offsets_of_which_nothing_is_wanted_are_not_planned(
    kind: Callable[[tuple[str, ...], int], Filter], compare: Callable[[int, int], bool]
) -> None:
    queue = Queue("T", "a", 0)
    for value in (9, 10, 15, 19, 20):
        offsets = [offset for offset in range(10, 20) if compare(offset, value)]
        found = narrowed({queue: Bounds(10, 20)}, [kind(("queue_offset",), value)])
        assert found == ({queue: Bounds(offsets[0], offsets[-1] + 1)} if offsets else {})


def test_all_conditions_are_kept_together() -> None:
    queue = Queue("T", "a", 0)
    conditions = [GreaterThan(("queue_offset",), 12), LessThan(("queue_offset",), 15)]
    assert narrowed({queue: Bounds(10, 20)}, conditions) == {queue: Bounds(13, 15)}
    assert narrowed({queue: Bounds(10, 20)}, [*conditions, EqualTo(("topic",), "U")]) == {}
