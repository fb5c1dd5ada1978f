"""The keys under which a record is found, as the index hashes them.

A key is `topic#k`: for the id that its producer gave it (`UNIQ_KEY`), for each word of `KEYS`, and
last `topic#T#tags` for all its tags as one, which Apache does since 5.5.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.properties import property_finder

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNIQ_KEY: Final = b"UNIQ_KEY\x01"
_KEYS: Final = b"KEYS\x01"
_TAGS: Final = b"TAGS\x01"
_find_unique_id: Final = property_finder(_UNIQ_KEY[:-1])
_find_keys: Final = property_finder(_KEYS[:-1])
_find_tags: Final = property_finder(_TAGS[:-1])


def index_keys(topic: bytes, properties: bytes) -> list[bytes]:
    """Return all keys of a record, in the order in which they are indexed."""
    unique_id = _find_unique_id(properties)
    found = [b"%b#%b" % (topic, unique_id)] if unique_id else []
    return found + _other_keys(topic, properties)


def _other_keys(topic: bytes, properties: bytes) -> list[bytes]:
    keys = _find_keys(properties) or b""
    found = [b"%b#%b" % (topic, key) for key in keys.split(b" ") if key]
    if tags := _find_tags(properties):
        found.append(b"%b#T#%b" % (topic, tags))
    return found


def take_keys(
    noted: Iterable[tuple[bytes, bytes, int, int]],
    keys: list[bytes],
    offsets: list[int],
    times: list[int],
) -> None:
    """Append the keys of many records, and for each key its record's offset and time.

    Exactly `index_keys` of each, but spelled out for the record that has its id once and nothing
    else, which most have: it takes half the time, and this is the index's largest cost.
    """
    for topic, properties, offset, store_time in noted:
        find = properties.find
        at = find(_UNIQ_KEY)
        if at >= 0:
            start = at + 9
            if (at and properties[at - 1] != 2) or find(_UNIQ_KEY, start) >= 0:
                unique_id = _find_unique_id(properties)
            else:
                end = find(b"\x02", start)
                unique_id = properties[start:] if end < 0 else properties[start:end]
            if unique_id:
                keys.append(b"%b#%b" % (topic, unique_id))
                offsets.append(offset)
                times.append(store_time)
        if find(_KEYS) >= 0 or find(_TAGS) >= 0:
            others = _other_keys(topic, properties)
            keys += others
            offsets += [offset] * len(others)
            times += [store_time] * len(others)


def query_key(topic: str, key: str, kind: str = "") -> str:
    """Return what a query for a key hashes; `kind` T asks for the tags of records."""
    return f"{topic}#{kind}#{key}" if kind else f"{topic}#{key}"
