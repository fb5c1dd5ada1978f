"""The page of `latency`: what is on it, and what must not be."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.pipeline.jobs.latency_page import COLUMNS_MAX, MAPS_MAX, Heat, page

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGIN = datetime(2026, 11, 24, 8, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOSTILE = "<script src='http://h/x'>\"&"


class Seen(HTMLParser):
    """The elements of a page, with their attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1], data))

    def of(self, tag: str) -> list[str]:
        """Return the texts in the elements of a tag."""
        return [text for name, text in self.texts if name == tag]


def row(**more: Any) -> dict[str, Any]:
    return {**more, "count": 12345, "p50_ms": 2, "p99_9_ms": 140, "p99_ms": 31, "negative": 0.0012}


def seen(tables: dict[str, Any], heat: Heat | None = None, title: str = "Latency") -> Seen:
    found = Seen(page(title, ["topics " + title], tables, heat))
    assert found.open == []
    return found


def test_rows_are_tables_with_headings_that_can_be_read() -> None:
    found = seen({"total": [row(topic="orders")], "sends": []})
    assert found.of("h2") == ["From born to stored", "Producers"]
    assert found.of("th") == ["topic", "count", "p50 ms", "p99.9 ms", "p99 ms", "negative"]
    assert found.of("td") == ["orders", "12,345", "2", "140", "31", "0.12 %"]
    assert found.of("p")[-1] == "There is none."


def test_names_are_text_whatever_is_in_them() -> None:
    heat = Heat(BEGIN, MINUTE, [(HOSTILE, 0, 4, 1)])
    found = seen({"total": [row(topic=HOSTILE)], "lag": [{HOSTILE: HOSTILE}]}, heat, HOSTILE)
    assert "script" not in found.tags
    assert found.of("h1") == [HOSTILE]
    assert found.of("h3") == [HOSTILE]
    assert found.of("td").count(HOSTILE) == 2


def test_nothing_is_fetched_and_nothing_runs() -> None:
    heat = Heat(BEGIN, MINUTE, [("orders", 0, 4, 1)])
    found = seen({"total": [row(topic="orders")]}, heat)
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    names = {name for name, _ in found.attributes}
    assert not {"src", "href"} & names
    assert not [name for name in names if name.startswith("on")]
    (policy,) = (
        value for name, value in found.attributes if name == "content" and "default" in str(value)
    )
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_each_cell_of_a_heat_map_says_when_how_long_and_how_many() -> None:
    cells = [("orders", 0, -1, 3), ("orders", 2, 0, 5), ("orders", 40, 2048, 7), ("other", 1, 1, 9)]
    found = seen({"total": [row(topic="orders")]}, Heat(BEGIN, MINUTE, cells))
    assert found.of("title")[1:] == [
        "2026-11-24 08:40:00, from 2.05 s: 7",
        "2026-11-24 08:02:00, under 1 ms: 5",
        "2026-11-24 08:00:00, below 0: 3",
    ]
    labels = [each for each in found.of("text") if not each.startswith("2026")]
    assert len(labels) == 14  # Each class between the lowest and the highest has its row.
    assert "Each column is 1 min, in UTC; the fuller a cell, the more messages." in found.of("p")


@pytest.mark.parametrize(
    ("lows", "said"),
    [
        ([4, 16], ["from 16 ms", "from 8 ms", "from 4 ms"]),
        ([0, 2], ["from 2 ms", "from 1 ms", "under 1 ms"]),
        ([-1], ["below 0"]),
        ([1 << 20], ["from 0.291 h"]),
    ],
)
def test_classes_are_from_the_fastest_to_the_slowest(lows: list[int], said: list[str]) -> None:
    cells = [("orders", 0, low, 1) for low in lows]
    found = seen({"total": [row(topic="orders")]}, Heat(BEGIN, MINUTE, cells))
    assert [each for each in found.of("text") if not each.startswith("2026")] == said


def test_a_cell_is_where_its_time_and_its_class_are() -> None:
    cells = [("orders", 0, 1, 100), ("orders", 40, 2, 1)]
    found = Seen(page("", [], {"total": [row(topic="orders")]}, Heat(BEGIN, MINUTE, cells)))
    numbers = [(name, value) for name, value in found.attributes if name in ("x", "y", "viewbox")]
    assert numbers == [
        ("viewbox", "0 0 487 54"),
        *(("x", "78"), ("y", "0")),
        *(("x", "72"), ("y", "12"), ("x", "438"), ("y", "0")),
        *(("x", "72"), ("y", "28"), ("x", "78"), ("y", "16")),
        *(("x", "78"), ("y", "47"), ("x", "258"), ("y", "47"), ("x", "438"), ("y", "47")),
    ]
    shown = [value for name, value in found.attributes if name == "fill-opacity"]
    assert shown == ["0.21", "1.00"]
    assert [each for each in found.of("text") if each.startswith("2026")] == [
        "2026-11-24 08:00",
        "2026-11-24 08:20",
        "2026-11-24 08:40",
    ]


def test_bars_are_as_long_as_the_slow_tenth_is_slow() -> None:
    rows = [{"producer": name, "p99_ms": ms} for name, ms in (("a", 50), ("b", 200), ("c", None))]
    found = seen({"sends": rows, "hosts": [{"p99_ms": -3}, {"p99_ms": 0}]})
    bars = [
        str(value).partition("--bar) ")[2] for name, value in found.attributes if name == "style"
    ]
    assert bars == ["25%,transparent 0)", "100%,transparent 0)"]
    assert found.of("th") == ["p99 ms", "producer", "p99 ms"]
    assert found.of("td") == ["-3", "0", "a", "50", "b", "200", "c", "-"]


def test_what_is_true_or_not_is_said_in_words() -> None:
    rows = [{"has_begun": True, "queue_id": 1000}, {"has_begun": False, "queue_id": None}]
    found = seen({"lag": rows})
    assert found.of("td") == ["yes", "1000", "no", "-"]
    right = [each for each in found.attributes if each == ("class", "n")]
    assert len(right) == 3  # The heading and the numbers of queues.


def test_the_slowest_topics_have_maps_and_the_page_says_that_others_have_none() -> None:
    topics = [f"t{number}" for number in range(MAPS_MAX + 3)]
    cells = [(topic, COLUMNS_MAX - 1, 4, 1) for topic in topics]
    found = seen({"total": [row(topic=topic) for topic in topics]}, Heat(BEGIN, MINUTE, cells))
    assert found.of("h3") == topics[:MAPS_MAX]
    assert any(f"The {MAPS_MAX} slowest of {len(topics)} topics." in each for each in found.of("p"))


def test_clocks_are_a_section_only_where_they_differ() -> None:
    assert "Clocks" not in seen({"clocks": [], "total": []}).of("h2")
    assert "Clocks" in seen({"clocks": [{"host": "h", "negative": 0.5}]}).of("h2")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in a time zone nine hours ahead of UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
def test_times_are_those_of_utc_wherever_the_job_runs() -> None:
    """Spark gives them as local times, without a zone."""
    found = seen({"buckets": [{"bucket": datetime(2026, 11, 24, 17, 5)}]})
    assert found.of("td") == ["2026-11-24 08:05:00"]
