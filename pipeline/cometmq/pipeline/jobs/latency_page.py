"""The page of `latency --html`: its tables and heat maps in one file.

It fetches and runs nothing: the page is only markup and style, and tells the browser so
(`Content-Security-Policy`). Every text is escaped, as names of topics, groups and hosts come from
anybody.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

COLUMNS_MAX: Final = 96
"""The most columns of a heat map; more buckets are combined."""
MAPS_MAX: Final = 12
"""How many topics have a heat map: the slowest ones."""

_SECTIONS: Final = {
    "total": ("From born to stored", "Topics, the slowest first."),
    "clocks": (
        "Clocks",
        "Hosts whose messages were stored before they were born: their clock, or the broker's, is"
        " wrong, and what is said of how long those took is off by as much.",
    ),
    "hosts": ("Producing hosts", "The slowest first."),
    "queues": ("Queues", "The slowest first."),
    "buckets": ("Times", "The slowest first, by when messages were stored, in UTC."),
    "lag": ("Consumer groups", "How far each is behind, queue by queue, the furthest first."),
    "lag_history": (
        "Consumer groups over time",
        "How far each was behind at the end of each bucket (UTC), by traces, the furthest first.",
    ),
    "not_read": ("Groups that do not read", "They have no offset in any queue of the topic."),
    "sends": ("Producers", "How long sends took by their traces, the slowest first."),
    "deliveries": ("Deliveries", "From sent to delivered for the first time, by traces."),
    "acknowledgements": ("Acknowledgements", "From sent to consumed with success, by traces."),
    "consumptions": ("Consumers", "How long consuming took, by traces, the slowest first."),
}
"""The headings of the tables, in the order of the page. The heat maps follow the first table."""
_SELDOM: Final = ("clocks", "not_read")
"""Tables that are omitted from the page if they have no rows."""

_CELL_WIDTH: Final = 9
_CELL_HEIGHT: Final = 16
_LEFT: Final = 78
_BELOW: Final = 22

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2330; --pale: #667085; --line: #d8dde6;
  --bar: #cfe1fb; --back: #fff; --warn: #b42318; --heat: #b3400a; --none: #eef1f5 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --pale: #98a2b3; --line: #344054;
  --bar: #1d3b66; --back: #12161d; --warn: #ff8f85; --heat: #ff9d5c; --none: #1d232d } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--back);
  margin: 2rem auto; max-width: 68rem; padding: 0 1rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 0 }
h3 { font-size: .95rem; margin: 1rem 0 .3rem }
p { margin: .2rem 0 .6rem; color: var(--pale) }
.wide { overflow-x: auto }
table { border-collapse: collapse; min-width: 40rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
  overflow-wrap: anywhere }
th { color: var(--pale); font-weight: 600; white-space: nowrap }
.n { text-align: right; white-space: nowrap } td.warn { color: var(--warn) }
svg text { font: 11px system-ui, sans-serif; fill: var(--pale) }
svg rect { fill: var(--heat) } svg rect.none { fill: var(--none) }
"""


class Heat(NamedTuple):
    """The cells of the heat maps of all topics: how many messages took how long, and when."""

    first: datetime
    """The start of the first column."""
    step: timedelta
    """The time span of a column."""
    cells: Sequence[tuple[str, int, int, int]]
    """Topic, column number, lower limit in ms (-1: below 0), and number of messages."""


def page(title: str, facts: Iterable[str], tables: Mapping[str, Any], heat: Heat | None) -> str:
    """Return the whole page; `tables` has the rows of the report's tables by name."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
        " style-src 'unsafe-inline'\">",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{' · '.join(escape(fact) for fact in facts)}</p>",
    ]
    for name, (heading, meaning) in _SECTIONS.items():
        if name not in tables or (name in _SELDOM and not tables[name]):
            continue
        parts.append(f"<h2>{heading}</h2><p>{meaning}</p>")
        parts.append(_table(tables[name]))
        if name == "total" and heat is not None:
            parts += _maps(heat, [row["topic"] for row in tables[name]])
    return "\n".join([*parts, "</body></html>", ""])


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>There is none.</p>"
    names = list(rows[0])
    numeric = {name for name in names if any(_is_number(row[name]) for row in rows)}
    highest = max((row.get("p99_ms") or 0 for row in rows), default=0)
    lines = ['<div class="wide"><table><thead><tr>']
    lines += [f"<th{_of_number(name in numeric)}>{escape(_heading(name))}</th>" for name in names]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        cells = (_cell(name, row[name], highest, name in numeric) for name in names)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def _cell(name: str, value: Any, highest: float, is_number: bool) -> str:
    if name == "negative":
        kind = "n warn" if value else "n"
        return f'<td class="{kind}">{100 * (value or 0):.2f} %</td>'
    bar = ""
    if name == "p99_ms" and value and highest > 0:
        width = max(100 * value / highest, 0)
        bar = f' style="background:linear-gradient(to left,var(--bar) {width:.0f}%,transparent 0)"'
    return f"<td{_of_number(is_number)}{bar}>{escape(_text(name, value))}</td>"


def _of_number(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _heading(name: str) -> str:
    stem = name.removesuffix("_ms")
    if stem[0] == "p" and stem[1:2].isdigit():
        return stem.replace("_", ".") + " ms"
    return stem.replace("_", " ") + " ms" * (stem != name)


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        # Spark returns times without a zone, in that of this process.
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if _is_number(value) and name != "queue_id":
        return f"{value:,}"
    return str(value)


def _maps(heat: Heat, topics: Sequence[str]) -> list[str]:
    """Return a map for each of the slowest topics: time to the right, durations upwards."""
    parts = [
        "<h2>How long when</h2>",
        f"<p>Each column is {_span(heat.step)}, in UTC; the fuller a cell, the more messages."
        + (f" The {MAPS_MAX} slowest of {len(topics)} topics." * (len(topics) > MAPS_MAX))
        + "</p>",
    ]
    for topic in topics[:MAPS_MAX]:
        cells = {(column, low): count for name, column, low, count in heat.cells if name == topic}
        if cells:
            parts.append(f'<h3>{escape(topic)}</h3><div class="wide">{_map(heat, cells)}</div>')
    return parts


def _map(heat: Heat, cells: Mapping[tuple[int, int], int]) -> str:
    columns = 1 + max(column for _, column, _, _ in heat.cells)
    classes = _classes(low for _, low in cells)
    width, height = _LEFT + columns * _CELL_WIDTH + 40, len(classes) * _CELL_HEIGHT + _BELOW
    most = max(cells.values())
    drawn = [
        f'<svg role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<rect class="none" x="{_LEFT}" y="0" width="{columns * _CELL_WIDTH}"'
        f' height="{len(classes) * _CELL_HEIGHT}"/>',
    ]
    for row, low in enumerate(reversed(classes)):
        y = row * _CELL_HEIGHT
        label = escape(_class_name(low))
        drawn.append(f'<text x="{_LEFT - 6}" y="{y + 12}" text-anchor="end">{label}</text>')
        for column in range(columns):
            if count := cells.get((column, low)):
                at = heat.first + column * heat.step
                # By the square root: a cell with a hundredth of the maximum can still be seen.
                drawn.append(
                    f'<rect x="{_LEFT + column * _CELL_WIDTH}" y="{y}" width="{_CELL_WIDTH - 1}"'
                    f' height="{_CELL_HEIGHT - 1}" fill-opacity="{_opacity(count, most)}">'
                    f"<title>{at:%Y-%m-%d %H:%M:%S}, {label}: {count:,}</title></rect>"
                )
    for column in sorted({0, columns // 2, columns - 1} if columns > 30 else {0}):
        x = _LEFT + column * _CELL_WIDTH
        at = heat.first + column * heat.step
        anchor = "end" if column == columns - 1 > 0 else "start"
        drawn.append(f'<text x="{x}" y="{height - 7}" text-anchor="{anchor}">{_when(at)}</text>')
    return "\n".join([*drawn, "</svg>"])


def _opacity(count: int, most: int) -> str:
    return f"{0.12 + 0.88 * (count / most) ** 0.5:.2f}"


def _classes(lows: Iterable[int]) -> list[int]:
    """Return the classes from the lowest to the highest that occurs, without gaps."""
    there = set(lows)
    found = [-1, 0, 1]
    while found[-1] < max(there):
        found.append(2 * found[-1])
    return [low for low in found if min(there) <= low <= max(there)]


def _class_name(low: int) -> str:
    if low < 0:
        return "below 0"
    if not low:
        return "under 1 ms"
    if low < 1000:
        return f"from {low} ms"
    seconds = low / 1000
    return f"from {seconds:.3g} s" if seconds < 1000 else f"from {seconds / 3600:.3g} h"


def _when(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def _span(step: timedelta) -> str:
    seconds = step.total_seconds()
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:.3g} {name}"
    return f"{1000 * seconds:.0f} ms"


def now() -> str:
    """Return the current time, for the page."""
    return _when(datetime.now(UTC)) + " UTC"
