"""Rows turned into messages, without Spark: a broker reads in a batch what the rows say."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra cometmq[spark] is not installed")

import pyarrow as pa
from hypothesis import example, given, strategies as st

from cometmq.pipeline.columns import PROPERTIES
from cometmq.pipeline.errors import OptionError, SinkError
from cometmq.pipeline.identities import CoordinateIds, FreshIds, Identities, KeyIds, spread_of
from cometmq.pipeline.marks import MARKS_MAX, Marks, sent_twice
from cometmq.pipeline.messages import Forming, Messages
from cometmq.pipeline.options import write_options
from cometmq.pipeline.planning import STRETCH
from cometmq.pipeline.records.slices import parts_of
from cometmq.pipeline.rows import RESERVED, RowForm, row_form
from cometmq.proto.batch import split_batch
from cometmq.proto.properties import decode_properties

pytestmark = pytest.mark.spark

COORDINATES = ("source_topic", "source_broker", "source_queue_id", "source_offset")
TYPES: dict[str, pa.DataType] = {
    "body": pa.binary(),
    "to_topic": pa.string(),
    "key": pa.string(),
    "tag": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),
    "sharding_key": pa.string(),
    "delay_level": pa.int32(),
    "deliver_time": pa.timestamp("us", tz="UTC"),
    "source_topic": pa.string(),
    "source_broker": pa.string(),
    "source_queue_id": pa.int32(),
    "source_offset": pa.int64(),
    "source_host": pa.string(),
    "store_time": pa.timestamp("us", tz="UTC"),
    "id": pa.int64(),
}


def messages(rows: list[dict[str, Any]], topic: str = "T", dedup_key: str = "") -> Messages:
    names = tuple(rows[0])
    arrays = [pa.array([row[name] for row in rows], TYPES[name]) for name in names]
    coordinates = COORDINATES if set(COORDINATES) <= set(names) else ()
    form = RowForm(names, topic, "" if topic else "to_topic", coordinates, dedup_key)
    return Forming(form, "sink").messages(pa.record_batch(arrays, names=list(names)))


def sent(made: Messages) -> list[tuple[int, bytes, dict[str, str]]]:
    """Read the items as a broker does."""
    raw, _ = parts_of(made.items(FreshIds().take(len(made))))
    return [
        (flag, body, decode_properties(properties))
        for flag, body, properties in split_batch(raw.tobytes())
    ]


@pytest.mark.parametrize(
    ("column", "kind", "is_taken"),
    [
        ("queue_offset", "int", True),
        ("queue_offset", "string", False),
        ("queue_offset", "double", False),
        ("queue_offset", "decimal(20,0)", False),
        ("queue_id", "bigint", True),
        ("queue_id", "string", False),
        ("broker", "binary", False),
        ("store_time", "timestamp_ntz", True),
        ("store_time", "bigint", False),
    ],
)
def test_what_tells_rows_apart_has_the_types_of_the_source(
    column: str, kind: str, is_taken: bool
) -> None:
    types = {"body": "binary", "topic": "string", "broker": "string", "queue_id": "int"}
    types |= {"queue_offset": "bigint", "store_time": "timestamp", column: kind}
    schema = SimpleNamespace(fields=[field(name, each) for name, each in types.items()])
    options = write_options({"nameserver": "127.0.0.1:9876", "topic": "T"})
    if is_taken:
        assert row_form(schema, options).has_identity
        return
    with pytest.raises(OptionError, match=f"column {column}: is .*, must be .* tell rows apart"):
        row_form(schema, options)
    keyed = write_options({"nameserver": "127.0.0.1:9876", "topic": "T", "dedupKey": "body"})
    assert row_form(schema, keyed).has_identity


def field(name: str, kind: str) -> SimpleNamespace:
    """Return a column as Spark would describe it; Spark may be missing where this is tested."""
    data_type = SimpleNamespace(simpleString=lambda: kind)
    return SimpleNamespace(name=name, dataType=data_type, metadata={})


TEXT = st.text(st.characters(min_codepoint=3, exclude_categories=["Cs"]), max_size=5)
ROW = st.fixed_dictionaries(
    {
        "body": st.binary(min_size=1, max_size=9),
        "key": st.none() | TEXT,
        "tag": st.none() | TEXT,
        "properties": st.none()
        | st.dictionaries(TEXT.filter(bool), TEXT.filter(bool), max_size=3).map(
            lambda each: list(each.items())
        ),
        "flag": st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
    }
)


@given(rows=st.lists(ROW, min_size=1, max_size=9), start=st.integers(0, 3))
@example([{"body": b"x", "key": None, "tag": None, "properties": [("TTL", "0")], "flag": None}], 0)
def test_a_broker_reads_what_the_rows_say(rows: list[dict[str, Any]], start: int) -> None:
    made = messages([*rows[:start], *rows])
    for row, (flag, body, properties) in zip([*rows[:start], *rows], sent(made), strict=True):
        assert (body, flag) == (row["body"], row["flag"] or 0)
        pairs: list[tuple[str, str]] = row["properties"] or []
        given = {name: value for name, value in pairs if name not in RESERVED}
        wanted = {**given, **{n: row[c] for n, c in (("KEYS", "key"), ("TAGS", "tag")) if row[c]}}
        assert len(properties.pop("UNIQ_KEY")) == 32
        assert properties == wanted


def test_texts_may_have_offsets_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark hands them over like this if it is told to (`useLargeVarTypes`)."""
    text = pa.large_string()
    large = {pa.string(): text, pa.binary(): pa.large_binary(), PROPERTIES: pa.map_(text, text)}
    row: dict[str, Any] = {"body": b"x", "key": "k", "sharding_key": "s", "to_topic": "T"}
    row |= {"properties": [("a", "b"), ("TTL", "0")], **place(5)}
    small = messages([row], "")
    for name, kind in TYPES.items():
        monkeypatch.setitem(TYPES, name, large.get(kind, kind))
    made = messages([row], "")
    assert sent(made)[0][1] == b"x"
    assert made.properties == small.properties
    assert made.ids is not None
    assert small.ids is not None
    assert made.ids.tolist() == small.ids.tolist()


def test_a_value_has_what_ends_a_name_in_it_and_is_written_as_it_was_read() -> None:
    row = {"body": b"x", "key": "k\x01", "properties": [("a", "b\x01c")]}
    ((_, _, properties),) = sent(messages([row]))
    assert (properties["a"], properties["KEYS"]) == ("b\x01c", "k\x01")


def test_properties_that_others_set_are_left_out_and_what_has_no_column_is_kept() -> None:
    pairs = [("KEYS", "k"), ("UNIQ_KEY", "x"), ("a", "b"), ("SENT_ONCE", "1"), ("DELAY", "3")]
    (_, _, properties), _ = sent(
        messages(
            [
                {"body": b"x", "properties": pairs, "tag": "t"},
                {"body": b"y", "properties": None, "tag": None},
            ]
        )
    )
    del properties["UNIQ_KEY"]
    assert properties == {"KEYS": "k", "a": "b", "TAGS": "t"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"body": b""}, "body: is null or empty"),
        ({"body": None}, "body: is null or empty"),
        ({"body": b"x", "properties": [("a", "b\x02")]}, "properties: 'a'"),
        ({"body": b"x", "properties": [("a\x01", "b")]}, "properties: 'a"),
        ({"body": b"x", "properties": [("a\x02", "b")]}, "properties: 'a"),
        ({"body": b"x", "properties": [("a", None)]}, "properties: 'a': is null"),
        ({"body": b"x", "tag": "a\x02b"}, "column tag"),
        ({"body": b"x", "key": "a\x02b"}, "column key"),
        ({"body": b"x", "to_topic": None}, "to_topic: is null"),
        ({"body": b"x", "to_topic": ""}, "to_topic: is null or empty"),
        ({"body": b"x", "properties": [("", "b")]}, "properties: a property without a name"),
        ({"body": b"x", "delay_level": -1}, "delay_level: -1"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_refused(row: dict[str, Any], said: str) -> None:
    with pytest.raises(SinkError, match=said):
        messages([row, row], topic="" if "to_topic" in row else "T")


@pytest.mark.parametrize(
    ("body", "sends_empty", "said"),
    [
        (b"", False, r"null or empty, which .*; leave such rows out with length\(body\) > 0$"),
        (None, False, r"null or empty, which .*; leave such rows out with length\(body\) > 0$"),
        (None, True, "column body: is null, which .*; leave such rows out with body IS NOT NULL$"),
    ],
)
def test_how_rows_without_a_body_are_left_out_is_told(
    body: bytes | None, said: str, *, sends_empty: bool
) -> None:
    forming = Forming(RowForm(("body",), "T", "", (), ""), "sink", sends_empty=sends_empty)
    rows = pa.record_batch([pa.array([b"x", body], pa.binary())], names=["body"])
    with pytest.raises(SinkError, match=said):
        forming.messages(rows)


def test_which_message_of_a_topic_has_no_body_is_told() -> None:
    rows: list[dict[str, Any]] = [
        dict(zip(("body", *COORDINATES), (body, "orders", "broker-a", 3, 7 + n), strict=True))
        for n, body in enumerate((b"x", b"", b"y"))
    ]
    with pytest.raises(
        SinkError, match=r"empty.*, in the row of orders, broker-a, queue 3, off.* 8; leave such"
    ):
        messages(rows)


def test_a_row_without_a_value_of_its_key_is_refused() -> None:
    with pytest.raises(SinkError, match="column id: is null, but dedupKey needs a value"):
        messages([{"body": b"x", "id": 1}, {"body": b"x", "id": None}], dedup_key="id")


def test_more_properties_than_a_message_can_have_are_refused() -> None:
    with pytest.raises(SinkError, match="a message can have at most 32767"):
        sent(messages([{"body": b"x", "key": "k" * 32_740}]))


def test_rows_are_told_apart_by_topic() -> None:
    made = messages([{"body": b"%d" % n, "to_topic": "ab"[n % 2]} for n in range(4)], topic="")
    parts = {topic: [body for _, body, _ in sent(each)] for topic, each in made.by_topic()}
    assert parts == {"a": [b"0", b"2"], "b": [b"1", b"3"]}


def test_what_is_delayed_says_when() -> None:
    at = datetime(2026, 11, 22, 16, 0, 0, 5000, tzinfo=UTC)
    made = messages(
        [
            {"body": b"a", "delay_level": 3, "deliver_time": None},
            {"body": b"b", "delay_level": None, "deliver_time": at},
            {"body": b"c", "delay_level": 0, "deliver_time": None},
        ]
    )
    assert made.delayed.tolist() == [True, True, False]
    assert made.properties.to_pylist() == [
        b"DELAY\x013\x02",
        b"TIMER_DELIVER_MS\x01%d\x02" % (at.timestamp() * 1000),
        b"",
    ]


def test_sharding_keys_choose_the_queue_and_others_may_go_anywhere() -> None:
    made = messages([{"body": b"x", "sharding_key": key} for key in ("a", None, "b", "a")])
    assert made.placed.tolist() == [True, False, True, True]
    assert made.spreads[0] == made.spreads[3] != made.spreads[2]


def test_a_sharding_key_of_a_column_takes_the_place_of_the_one_that_was_read() -> None:
    """Readers take the last of two properties of one name."""
    made = messages(
        [
            {"body": b"x", "sharding_key": new, "properties": [("__SHARDINGKEY", "old")]}
            for new in ("new", None)
        ]
    )
    assert [properties.get("__SHARDINGKEY") for _, _, properties in sent(made)] == ["new", None]
    kept = messages([{"body": b"x", "properties": [("__SHARDINGKEY", "old")]}])
    assert sent(kept)[0][2]["__SHARDINGKEY"] == "old"


def test_a_sharding_key_chooses_one_queue_whichever_others_come_with_it() -> None:
    """Also if the hashes of all keys of a record batch have more than 63 bits."""
    keys = [f"key-{number}" for number in range(64)]
    together = messages([{"body": b"x", "sharding_key": key} for key in keys])
    assert together.spreads.tolist() == [spread_of(key.encode()) for key in keys]
    large = [key for key in keys if spread_of(key.encode()) >> 63]
    for some in (large, keys[:1], large[-1:]):
        made = messages([{"body": b"x", "sharding_key": key} for key in some])
        assert made.spreads.tolist() == [spread_of(key.encode()) for key in some]


def place(offset: int, queue_id: int = 0, topic: str = "S") -> dict[str, Any]:
    values = (topic, "a", queue_id, offset)
    return {"body": b"x", **dict(zip(COORDINATES, values, strict=True))}


def test_ids_count_and_are_always_the_same() -> None:
    offsets = (0, 1, 4095, 4096, 2)
    made = messages([place(offset) for offset in offsets])
    assert made.ids is not None
    ids = [each.tobytes() for each in made.ids]
    for offset, unique_id in zip(offsets, ids, strict=True):  # Whatever comes with it.
        alone = messages([place(offset)]).ids
        assert alone is not None
        assert alone[0].tobytes() == unique_id
    assert ids[0][:-12] == ids[2][:-12] == ids[4][:-12] != ids[3][:-12]
    assert ids[0][-12:] == b"000000000001"
    assert ids[0][-12:] < ids[1][-12:] < ids[4][-12:] < ids[2][-12:]
    assert len(set(ids)) == 5
    assert {len(each) for each in ids} == {44}


def test_other_queues_topics_and_sinks_have_other_ids() -> None:
    made = messages([place(0), place(0, 1), place(0, 0, "R")])
    assert made.ids is not None
    columns = [pa.array([value]) for value in ("S", "a", 0, 0)]
    other = CoordinateIds("another").of(columns, "T").ids
    assert len({each.tobytes() for each in (*made.ids, *other)}) == 4
    assert made.spreads[1] == made.spreads[0] + 1


ONE: dict[str, Any] = {"to": "T", "topic": "S", "broker": "a", "queue": 0, "offset": 7}


def ids_of(sink: str, at_ms: int | None, *rows: dict[str, Any]) -> Identities:
    """Return the ids of rows like `ONE`; all their messages were stored at `at_ms`, if known."""
    columns = {name: [{**ONE, **row}[name] for row in rows] for name in ONE}
    to, *places = (pa.array(each) for each in columns.values())
    times = None if at_ms is None else pa.array([at_ms * 1000] * len(rows), pa.int64())
    return CoordinateIds(sink).of(places, to.dictionary_encode(), times)


@pytest.mark.parametrize("at_ms", [None, 1_700_000_000_000], ids=["untimed", "timed"])
def test_each_part_of_where_a_message_was_tells_it_from_others(at_ms: int | None) -> None:
    """Even if nothing else differs, and in one batch of rows, whose runs get ids together."""
    others: list[dict[str, Any]] = [
        {"to": "U"},
        {"topic": "R"},
        {"broker": "b"},
        {"queue": 1},
        {"offset": 8},
    ]
    others += [{"offset": 7 + STRETCH}, {"topic": "Sa", "broker": ""}]
    rows: list[dict[str, Any]] = [{}, *others]
    made = ids_of("sink", at_ms, *rows)
    ids = [each.tobytes() for each in made.ids]
    assert len(set(ids)) == len(ids)
    assert [ids_of("sink", at_ms, each).ids[0].tobytes() for each in rows] == ids
    pairs = [ids_of("sink", at_ms, rows[0], each).ids[1].tobytes() for each in others]
    assert pairs == ids[1:]
    assert ids_of("another", at_ms, {}).ids[0].tobytes() not in ids
    # A queue's messages stay together; those of two brokers or topics need not.
    spreads = made.spreads.tolist()
    assert spreads[0] == spreads[1] == spreads[5] == spreads[6]
    assert len(set(spreads)) == 5


@pytest.mark.parametrize(
    ("at_ms", "host", "unique_id"),
    [
        (None, "", "AD922D39A75C879C85583D7CB60F84BF000000000008"),
        (1_700_000_000_000, "", "10FEA4CF9888A2083537484A2248C294BCFE56800007"),
        (1_700_000_000_000, "10.0.0.1:10911", "8214105FBE59C83A4884021DD3C75F58BCFE56800007"),
    ],
)
def test_who_a_row_is_stays_what_it_was_in_earlier_versions(
    at_ms: int | None, host: str, unique_id: str
) -> None:
    """Otherwise another version would send again what a stream had sent when it was stopped."""
    places = [pa.array([value]) for value in ("S", "a", 0, 7)]
    times = None if at_ms is None else pa.array([at_ms * 1000], pa.int64())
    for hosts in [pa.array([host])] if host else [None, pa.array([""]), pa.nulls(1, pa.string())]:
        made = CoordinateIds("sink").of(places, "T", times, hosts)
        assert made.ids[0].tobytes().decode() == unique_id
        assert made.spreads.tolist() == [6461911673573558336]


def test_what_a_key_makes_of_a_row_stays_what_it_was_in_earlier_versions() -> None:
    made = KeyIds("sink").of("id", pa.array(["7"]), "T")
    assert made.ids[0].tobytes() == b"C0A841E139E03C6DF169A3A1FBEC1A0F73256CBD601D040D000000000001"
    assert made.spreads.tolist() == [3555615114671871609]


def test_times_count_in_milliseconds_and_apart_from_offsets() -> None:
    """A producer counts up: after an id with a time, one with an offset alone would look older."""
    at_ms = 1_700_000_000_000
    timed, later = (ids_of("sink", each, {}).ids[0].tobytes() for each in (at_ms, at_ms + 1))
    untimed = ids_of("sink", None, {}).ids[0].tobytes()
    assert timed[:-12] == later[:-12] != untimed[:-12]
    for unique_id, time_ms in ((timed, at_ms), (later, at_ms + 1)):
        assert unique_id[-12:] == b"%012X" % ((time_ms * STRETCH + 7) % (1 << 48))


def test_of_rows_that_are_parted_each_keeps_who_it_is() -> None:
    stored = [datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(4)]
    rows = [
        {**place(offset), "to_topic": "ab"[offset % 2], "store_time": stored[offset]}
        for offset in range(4)
    ]
    names = tuple(rows[0])
    batch = pa.record_batch(
        [pa.array([row[name] for row in rows], TYPES[name]) for name in names], names=list(names)
    )
    for always_timed in (False, True):
        form = RowForm(names, "", "to_topic", COORDINATES, "", always_timed)
        whole = Forming(form, "sink").messages(batch)
        assert whole.ids is not None
        assert whole.stored_ms is not None
        assert (whole.untimed_ids is None) is always_timed
        parts = dict(whole.by_topic())
        for first, topic in enumerate("ab"):
            part = parts[topic]
            assert part.ids is not None
            assert part.ids.tolist() == whole.ids[first::2].tolist()
            assert part.stored_ms is not None
            assert part.stored_ms.tolist() == [
                int(each.timestamp() * 1000) for each in stored[first::2]
            ]
            if whole.untimed_ids is not None:
                assert part.untimed_ids is not None
                assert part.untimed_ids.tolist() == whole.untimed_ids[first::2].tolist()


def test_a_row_that_does_not_say_where_its_message_was_is_refused() -> None:
    for name in COORDINATES:
        with pytest.raises(SinkError, match="source_offset: one of them is null"):
            messages([place(0), {**place(1), name: None}])


def test_equal_keys_have_equal_ids_whatever_their_type() -> None:
    made = messages([{"body": b"x", "id": each} for each in (7, 8, 7)], dedup_key="id")
    assert made.ids is not None
    ids = [each.tobytes() for each in made.ids]
    assert ids[0] == ids[2] != ids[1]
    assert made.spreads[0] == made.spreads[2] != made.spreads[1]
    assert KeyIds("sink").of("id", pa.array([b"7"]), "T").ids[0].tobytes() == ids[0]
    assert KeyIds("another").of("id", pa.array([7]), "T").ids[0].tobytes() != ids[0]
    assert ids[0].endswith(b"000000000001")
    with pytest.raises(SinkError, match="column id: is null"):
        messages([{"body": b"x", "id": None}], dedup_key="id")


@pytest.mark.parametrize("row", [place(7), {"body": b"x", "id": 7}])
def test_a_row_that_goes_to_two_topics_is_two_messages(row: dict[str, Any]) -> None:
    """Brokers tell messages apart by their ids, whatever their topics."""
    dedup_key = "id" if "id" in row else ""
    rows = [{**row, "to_topic": topic} for topic in ("T", "U")]
    ids = messages(rows, "", dedup_key).ids
    alone = [messages([row], topic, dedup_key).ids for topic in ("T", "U")]
    assert ids is not None
    assert ids[0].tobytes() != ids[1].tobytes()
    assert [each.tobytes() for each in ids] == [
        each.tobytes() for each in alone if each is not None
    ]


def test_two_rows_of_one_message_are_told() -> None:
    rows = [place(6), place(7), place(7), place(0, 1)]
    told = str(messages(rows).twins)
    assert "two rows for topic T come from one message, S/a/0 at 7" in told
    assert "S/a/1 at 7" in str(messages([place(6), place(7, 1), place(7, 1)]).twins)
    assert messages([place(7), place(7, 1), place(7, 0, "R")]).twins is None


def test_two_rows_of_one_message_are_told_however_many_are_between_them() -> None:
    """Also in another record batch of the task, as far back as the task remembers."""
    names = ("body", *COORDINATES)
    form = RowForm(names, "T", "", COORDINATES, "")

    def batch(offsets: list[int]) -> pa.RecordBatch:
        count = len(offsets)
        arrays: list[pa.Array] = [
            pa.array([b"x"] * count),
            pa.array(["S"] * count),
            pa.array(["a"] * count),
            pa.array([0] * count, pa.int32()),
            pa.array(offsets, pa.int64()),
        ]
        return pa.record_batch(arrays, names=list(names))

    for batches in ([[1, 2, 3, 1]], [[1, 2], [3, 1]], [[1, 9000, 1]]):
        forming = Forming(form, "sink")
        *before, last = batches
        for offsets in before:
            assert forming.messages(batch(offsets)).twins is None
        told = str(forming.messages(batch(last)).twins)
        assert "two rows for topic T come from one message, S/a/0 at 1" in told
    many = Forming(form, "sink")
    for first in range(0, 600_000, 100_000):
        many.messages(batch(list(range(first, first + 100_000))))
    assert many.messages(batch([1])).twins is None
    assert "S/a/0 at 599999" in str(many.messages(batch([599_999])).twins)
    often = Forming(form, "sink")
    for offset in range(800):
        often.messages(batch([offset]))
    assert "S/a/0 at 0" in str(often.messages(batch([0])).twins)
    both = Forming(form, "sink", finds_twins=False)
    assert both.messages(batch([1, 1])).twins is None


def test_one_row_of_many_that_is_there_twice_costs_little() -> None:
    """If brokers store both, each record batch may have one: here 100,000 rows of one stretch."""
    count = 100_000
    places = [pa.array(["S"] * count), pa.array(["b"] * count), pa.array([0] * count, pa.int32())]
    places += [pa.array([7] * count, pa.int64())]
    times = pa.array([1000 * min(each, count - 2) for each in range(count)], pa.int64())
    began = time.process_time()
    assert CoordinateIds("sink").of(places, "T", times).twins is not None
    assert time.process_time() - began < 20  # It used to take a hundred seconds.


@pytest.mark.parametrize("count", [10, 100_000])
def test_messages_of_which_two_tasks_sent_rows_are_known_by_few_marks(count: int) -> None:
    def said(first: int) -> bytes:
        places = [pa.array(["S"] * count), pa.array(["b"] * count)]
        places += [pa.array([0] * count, pa.int32()), pa.array(range(first, first + count))]
        marks = Marks()
        marks.add(CoordinateIds("sink").of(places, "T").ids)
        assert len(marks.said()) == 8 * min(count, MARKS_MAX)
        return marks.said()

    assert sent_twice([said(0), said(count), b""]) == 0
    assert sent_twice([said(0), said(count), said(0)]) == min(count, MARKS_MAX)


@pytest.mark.parametrize("later_ms", [1, 5000])
def test_two_rows_of_one_place_and_two_times_are_two(later_ms: int) -> None:
    """As in one store after a topic was deleted and recreated."""
    places = [pa.array(["S"] * 2), pa.array(["b"] * 2), pa.array([0] * 2, pa.int32())]
    places += [pa.array([7, 7], pa.int64())]
    first = 1_700_000_000_000_000
    times = pa.array([first, first + later_ms * 1000], pa.int64())
    made = CoordinateIds("sink").of(places, "T", times)
    assert made.ids[0].tobytes() != made.ids[1].tobytes()
    assert made.twins is None
    for same in (pa.array([5_000_000] * 2, pa.int64()), None):
        told = str(CoordinateIds("sink").of(places, "T", same).twins)
        assert "two rows for topic T come from one message" in told


def test_messages_of_two_clusters_with_brokers_of_one_name_are_told_by_their_addresses() -> None:
    """Even if they were stored at the same place and in the same millisecond."""
    known = {**place(7), "source_host": "10.0.0.1:10911"}
    rows = [known, {**known, "source_host": "10.0.0.2:10911"}, {**known, "source_host": None}]
    made = messages(rows)
    assert made.ids is not None
    assert made.twins is None
    north, south, unknown = (each.tobytes() for each in made.ids)
    assert len({north, south, unknown}) == 3
    assert made.spreads[0] == made.spreads[1] == made.spreads[2]
    without = messages([place(7)]).ids
    assert without is not None
    assert unknown == without.tobytes()
    twins = messages([known, known]).twins
    assert twins is not None
    assert "two rows for topic T come from one message, S/a/0 at 7," in str(twins)


def test_ids_of_rows_without_identity_are_never_the_same() -> None:
    fresh = FreshIds()
    ids = {each.tobytes() for count in (3, 1, 4) for each in fresh.take(count)}
    assert len(ids) == 8
    assert {len(each) for each in ids} == {32}


def test_who_a_message_is_is_told_by_when_it_was_stored_too_where_that_is_known() -> None:
    places = [
        pa.array(["S"] * 3),
        pa.array(["b"] * 3),
        pa.array([0] * 3, pa.int32()),
        pa.array([1, 2, 3], pa.int64()),
    ]
    untimed = CoordinateIds("sink").of(places, "T")
    first, second = (
        CoordinateIds("sink").of(places, "T", pa.array([at, None, at + 1000], pa.int64()))
        for at in (1_700_000_000_000_000, 1_800_000_000_000_000)
    )
    assert (first.spreads == untimed.spreads).all()
    for found in (first, second):
        assert found.untimed is not None
        assert (found.untimed == untimed.ids).all()
    same = (first.ids == second.ids).all(axis=1).tolist()
    assert same == [False, True, False]
    assert (first.ids[1] == untimed.ids[1]).all()
    texts = [each.tobytes() for each in first.ids]
    assert texts[0] < texts[2]
