"""A replay's progress, noted under its name in the archive or in a checkpoint folder.

Notes are about the target topic as it was. If it was deleted and recreated, it has nothing of what
the notes call done. So they have its first messages, and a run that continues asks whether these
are still the same (`first_messages`).

Earlier versions identified messages only by their places. What they sent is still recognized by
these, so a replay that one of them began does not send it again. Notes have `by_time` for replays
that were not begun in this way. Later versions ignored the address of the broker; notes have
`by_host` for replays that use it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline import bounds, first_messages
from cometmq.pipeline.cluster import Queue
from cometmq.pipeline.errors import (
    ConnectionLostError,
    OptionError,
    PipelineError,
    RefusedError,
)
from cometmq.pipeline.jobs.replay_settings import QUEUE
from cometmq.pipeline.offsets import First
from cometmq.pipeline.options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from cometmq.pipeline.cluster import Survey
    from cometmq.pipeline.jobs.folders import Folder
    from cometmq.pipeline.jobs.replay_sources import Source

_DAMAGED: Final = (
    "put it back from a copy, or remove it: all is sent again then, and stored once as long as"
    " brokers remember it"
)


def found_there(count: int, name: str) -> str:
    """Say that messages were not sent because their places, times and addresses were there."""
    return (
        f"{count} messages were there before, sent by a replay called {name}: an earlier run, or"
        " one from a store or an archive of the same. If it was of another cluster, whose brokers"
        " have the same names and addresses, these may be missing: replay both into a new topic,"
        " each with its own --name"
    )


class Target:
    """The topic that a replay writes to."""

    def __init__(self, where: Mapping[str, str], topic: str) -> None:
        self.topic = topic
        self._options = read_options({**where, "topic": topic})
        self._cluster = self._options.cluster()

    def firsts(self) -> dict[Queue, First]:
        """Return the first messages of its queues, as far as known at the moment."""
        try:
            found = self._survey()
            masters = [each for each in found.queues if each.broker not in found.slaves]
            stored = self._cluster.stored_first(masters, found.addresses)
        except (ConnectionLostError, RefusedError):
            return {}
        return {queue: First(found.queues[queue].first, at) for queue, at in stored.items()}

    def is_other(self, before: Mapping[Queue, First]) -> bool:
        """Whether it was recreated since it had these first messages, and so has none of them."""
        if not before:
            return False
        found = self._survey()
        if not found.topics:
            raise PipelineError(
                f"to-topic: {self.topic}, to which an earlier run of this replay sent messages,"
                " does not exist. If its broker is away, wait for it; if the topic was deleted,"
                " create it (`cometmq topic create`), and the replay starts over"
            )
        # A slave may lag, and nothing is known of a broker that is away.
        queues = {
            queue: there
            for queue, there in found.queues.items()
            if queue.broker not in found.slaves
        }
        filled = {queue.broker for queue, there in queues.items() if there.end}
        empty = {queue.broker for queue in queues} - filled
        return any(
            queue.broker in empty
            or (queue in queues and queues[queue].end <= first.offset)
            or first_messages.begins_otherwise(self._cluster, queue, first, found)
            for queue, first in before.items()
        ) or self._lacks_one(before, before.keys() - queues.keys(), found)

    def _lacks_one(self, before: Mapping[Queue, First], hidden: Set[Queue], found: Survey) -> bool:
        """Whether a queue that is no longer readable ends before its noted first message.

        A topic that was reduced to fewer queues still has the messages of the others.
        """
        known = found.addresses.keys() - found.slaves - found.missing.keys()
        asked = [queue for queue in hidden if queue.broker in known]
        ends = self._cluster.ends(asked, found.addresses)
        return any(end <= before[queue].offset for queue, end in ends.items())

    def _survey(self) -> Survey:
        return bounds.survey(self._cluster, self._options, whole=False)


@dataclass(slots=True)
class Notes:
    """The notes of one replay."""

    folder: Folder
    name: str
    origin: str
    """What the notes are about; '' if they are in the archive itself."""
    where: str
    """The condition for rows to replay."""
    target: Target
    order: str
    """What is sent in its order: a message that was sent is looked for in the queue for this."""
    done: list[str] = field(default_factory=list[str])
    """The keys of the parts that are done."""
    reached: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """By key of an unfinished part, the place of its last replayed message."""
    source: str = ""
    """The identity of the source, if it has one."""
    by_time: bool = True
    """Whether no earlier version has sent anything."""
    by_host: bool = True
    """Whether what was sent is also identified by the addresses of brokers."""
    firsts: dict[Queue, First] = field(default_factory=dict[Queue, First])
    """The first messages of the target topic."""

    def read(self) -> None:
        """Read the notes, if any; raise `OptionError` if they are of another replay."""
        if not self.folder.exists(f"{self.name}.json"):
            return
        said = self.folder.read_json(
            f"{self.name}.json", if_damaged=_DAMAGED, fields=("to_topic", "where", "done")
        )
        origin = said.get("from", "")
        # Earlier versions wrote the path as given.
        if origin != self.origin and re.sub("/+(?=#|$)", "", origin) != self.origin:
            raise OptionError(
                f"name: {self.name} was another replay, from {origin}; choose another"
                " name, or another checkpoint"
            )
        if (said["to_topic"], said["where"]) != (self.target.topic, self.where):
            raise OptionError(
                f"name: {self.name} was another replay, to {said['to_topic']} where"
                f" {said['where'] or 'everything'}; choose another name"
            )
        if (order := said.get("order", QUEUE)) != self.order:
            raise OptionError(
                f"preserve-order: the replay {self.name} was begun with {order}; give the same, or"
                " choose another name"
            )
        self.done, self.reached = said["done"], said.get("reached", {})
        self.source = said.get("source", "")
        self.by_time = said.get("by_time", False)
        self.by_host = said.get("by_host", False)
        self.firsts = {
            Queue(self.target.topic, broker, number): First(*first)
            for broker, number, *first in said.get("firsts", [])
        }

    def require_source(self, source: Source) -> None:
        """Refuse another source at the same place, as it has parts with the same names."""
        if self.source and source.is_other(self.source):
            raise OptionError(
                f"name: {self.name} was the replay of another archive or store that was at this"
                " place, or of this store before it lost its end, so its notes are not about this"
                " one; choose another name"
            )
        self.source = source.identity() or self.source

    def is_of_another_topic(self) -> bool:
        """Whether the topic was recreated since; if so, reset the notes to nothing done."""
        if not self.target.is_other(self.firsts):
            return False
        self.done, self.reached, self.firsts = [], {}, {}
        self.by_time = self.by_host = True
        return True

    def write(self) -> None:
        """Write the notes; call this after sending."""
        self.firsts = self.firsts or self.target.firsts()
        document = {
            "from": self.origin,
            "source": self.source,
            "to_topic": self.target.topic,
            "where": self.where,
            "order": self.order,
            "done": self.done,
            "reached": self.reached,
            "by_time": self.by_time,
            "by_host": self.by_host,
            "firsts": [[queue.broker, queue.id, *first] for queue, first in self.firsts.items()],
        }
        self.folder.write(json.dumps(document, indent=2) + "\n", f"{self.name}.json")
