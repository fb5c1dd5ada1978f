"""Where jobs find messages, as their settings say it: a topic, an archive, a store."""

from __future__ import annotations

from typing import Final, NamedTuple

TOPIC: Final = "topic"
ARCHIVE: Final = "archive"
STORE: Final = "store"
KINDS: Final = (TOPIC, ARCHIVE, STORE)


class Place(NamedTuple):
    """Where messages are."""

    kind: str
    """One of `KINDS`."""
    path: str
    """A folder; of a topic, its name servers."""
    topic: str
    """The only topic that counts; empty where all do."""


def read_place(text: str) -> Place | None:
    """Read `topic:NAME@HOST:PORT`, `archive:DIR[#TOPIC]` or `store:DIR[#TOPIC]`; else `None`."""
    kind, _, rest = text.partition(":")
    if kind == TOPIC:
        topic, _, path = rest.partition("@")
        return Place(kind, path, topic) if topic and path else None
    path, mark, topic = rest.rpartition("#")
    if not mark or "/" in topic:  # Folders may have a # in their names, topics neither of both.
        path, topic = rest, ""
    return Place(kind, path, topic) if kind in KINDS and path else None
