"""The places of messages in the settings of jobs: a topic, an archive or a store."""

from __future__ import annotations

from typing import Final, NamedTuple

TOPIC: Final = "topic"
ARCHIVE: Final = "archive"
STORE: Final = "store"
KINDS: Final = (TOPIC, ARCHIVE, STORE)


class Place(NamedTuple):
    """A place of messages."""

    kind: str
    """One of `KINDS`."""
    path: str
    """A folder; for a topic, its name servers."""
    topic: str
    """The only topic that counts; empty for all."""


def read_place(text: str) -> Place | None:
    """Parse `topic:NAME@HOST:PORT`, `archive:DIR[#TOPIC]` or `store:DIR[#TOPIC]`; else `None`."""
    kind, _, rest = text.partition(":")
    if kind == TOPIC:
        topic, _, path = rest.partition("@")
        return Place(kind, path, topic) if topic and path else None
    path, mark, topic = rest.rpartition("#")
    if not mark or "/" in topic:  # Names of folders may have a #; those of topics neither # nor /.
        path, topic = rest, ""
    return Place(kind, path, topic) if kind in KINDS and path else None
