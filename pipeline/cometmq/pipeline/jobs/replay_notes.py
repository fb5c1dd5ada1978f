"""What a replay has done, noted under its name in the archive, or in a checkpoint's folder.

Notes speak of the topic that was written to as it was. When it was deleted and made anew, nothing
of what they call done is there. So they have its first messages, and who goes on with them asks
whether they still are (`first_messages`).

Earlier versions knew messages by their places alone. What they sent is known by these still, so a
replay that one of them began does not send it again. Notes say `by_time` of replays that were not
begun so. Later ones did not look at the address of the broker; notes say `by_host` of what does.
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
from cometmq.pipeline.offsets import First
from cometmq.pipeline.options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from cometmq.pipeline.cluster import Survey
    from cometmq.pipeline.jobs.folders import Folder

_DAMAGED: Final = (
    "put it back from a copy, or remove it: all is sent again then, and stored once as long as"
    " brokers remember it"
)


def found_there(count: int, name: str) -> str:
    """Say that messages were not sent: some of their places, times and addresses were there."""
    return (
        f"{count} messages were there before, sent by a replay called {name}: an earlier run, or"
        " one from a store or an archive of the same. If it was of another cluster, whose brokers"
        " have the same names and addresses, these may be missing: replay both into a new topic,"
        " each with a --name of its own"
    )


class Target:
    """The topic that a replay writes to."""

    def __init__(self, where: Mapping[str, str], topic: str) -> None:
        self.topic = topic
        self._options = read_options({**where, "topic": topic})
        self._cluster = self._options.cluster()

    def firsts(self) -> dict[Queue, First]:
        """Return the first messages of its queues, as far as it can be told just now."""
        try:
            found = self._survey()
            masters = [each for each in found.queues if each.broker not in found.slaves]
            stored = self._cluster.stored_first(masters, found.addresses)
        except (ConnectionLostError, RefusedError):
            return {}
        return {queue: First(found.queues[queue].first, at) for queue, at in stored.items()}

    def is_other(self, before: Mapping[Queue, First]) -> bool:
        """Whether it was made anew since it had these, of which nothing can be there then."""
        if not before:
            return False
        found = self._survey()
        if not found.topics:
            raise PipelineError(
                f"to-topic: {self.topic}, to which an earlier run of this replay sent messages, is"
                " not there. If its broker is away, wait for it; if the topic was deleted, make it"
                " (`cometmq topic create`), and the replay begins anew"
            )
        # A slave may be behind, and of a broker that is away nothing is known.
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
        """Whether one of those that nobody reads ends in front of what was its first message.

        A topic that was given fewer queues still has the messages of the others.
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
    """What they are about; nothing in an archive's own."""
    where: str
    """Which rows are replayed."""
    target: Target
    done: list[str] = field(default_factory=list[str])
    """The keys of parts that were replayed."""
    reached: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """The place of the last message that was replayed of a part that is not done, by its key."""
    source: str = ""
    """The identity of what they are about, as far as it has one."""
    by_time: bool = True
    """Whether no earlier version has sent anything."""
    by_host: bool = True
    """Whether what was sent is known by the addresses of its brokers, too."""
    firsts: dict[Queue, First] = field(default_factory=dict[Queue, First])
    """First messages of the topic that is written to."""

    def read(self) -> None:
        """Read what there is; an `OptionError` if it is of another replay."""
        if not self.folder.exists(f"{self.name}.json"):
            return
        said = self.folder.read_json(
            f"{self.name}.json", if_damaged=_DAMAGED, fields=("to_topic", "where", "done")
        )
        origin = said.get("from", "")
        # Earlier versions wrote a path as it was given.
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
        self.done, self.reached = said["done"], said.get("reached", {})
        self.source = said.get("source", "")
        self.by_time = said.get("by_time", False)
        self.by_host = said.get("by_host", False)
        self.firsts = {
            Queue(self.target.topic, broker, number): First(*first)
            for broker, number, *first in said.get("firsts", [])
        }

    def require_source(self, identity: str) -> None:
        """Refuse what was made anew at the place of what they are about: it has the same names."""
        if self.source and identity and self.source != identity:
            raise OptionError(
                f"name: {self.name} was the replay of another archive that was at this place, and"
                " its notes say nothing of this one; choose another name"
            )
        self.source = identity or self.source

    def is_of_another_topic(self) -> bool:
        """Whether the topic was made anew since; then they say that nothing is done."""
        if not self.target.is_other(self.firsts):
            return False
        self.done, self.reached, self.firsts = [], {}, {}
        self.by_time = self.by_host = True
        return True

    def write(self) -> None:
        """Write them, behind what was sent."""
        self.firsts = self.firsts or self.target.firsts()
        document = {
            "from": self.origin,
            "source": self.source,
            "to_topic": self.target.topic,
            "where": self.where,
            "done": self.done,
            "reached": self.reached,
            "by_time": self.by_time,
            "by_host": self.by_host,
            "firsts": [[queue.broker, queue.id, *first] for queue, first in self.firsts.items()],
        }
        self.folder.write(json.dumps(document, indent=2) + "\n", f"{self.name}.json")
