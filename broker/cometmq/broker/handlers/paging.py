"""Tables read page by page (21, 201); the pages of one version of a table fit together."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from cometmq.proto.bodies import DataVersion
from cometmq.proto.errors import BodyError

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


def page_of(
    table: Mapping[str, T],
    current: DataVersion,
    *,
    sequence: int | None,
    size: int | None,
    version: str | None,
) -> dict[str, T]:
    """Return the entries of a page, in the order of their names; all if no page is asked for.

    A request with another version than the table's gets the first page again.
    """
    if (sequence, size, version) == (None, None, None):
        return dict(table)
    begin = max(sequence or 0, 0) if _is_same(version, current) else 0
    end = len(table) if size is None else begin + max(size, 0)
    return {name: table[name] for name in islice(sorted(table), begin, end)}


def _is_same(version: str | None, current: DataVersion) -> bool:
    if not version or not version.strip():
        return False
    try:
        return DataVersion.decode(version.encode()) == current
    except BodyError:
        return False
