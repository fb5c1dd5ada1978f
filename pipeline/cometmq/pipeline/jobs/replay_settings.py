"""What `replay` is told: what to replay, where to, and how fast."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.credentials import NOBODY, Credentials
from cometmq.pipeline.jobs.job import check_settings, setting
from cometmq.pipeline.jobs.marks import read_mark
from cometmq.pipeline.jobs.places import ARCHIVE, STORE, Place, read_place
from cometmq.pipeline.jobs.tables import stored_between
from cometmq.pipeline.jobs.topic_names import check_read, check_written
from cometmq.pipeline.nameservers import read_nameservers
from cometmq.pipeline.store.files import check_store

_KIND: Final = re.compile(r"[a-z]+:(?!//)", re.IGNORECASE)
"""What no path begins with."""
_REPLAYS: Final = "_replays"
"""In an archive: a folder of notes."""
_SPEED: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)x", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """What to replay, and where to."""

    from_: str = setting("archive:DIR[#TOPIC], or store:DIR[#TOPIC].", "", metavar="PLACE")
    from_dir: str = setting("An archive; --from archive:DIR says the same.", "", metavar="DIR")
    topic: str = setting(
        "Only this one; must be said of a store that has several.", "", metavar="TOPIC"
    )
    broker: str = setting(
        "Of a store: its broker's name, for a message is known by where it was.", ""
    )
    on_damage: str = setting(
        "At damaged records, or lost files of an archive: fail, or skip.", "fail"
    )
    nameserver: str = setting("The cluster to write to.", metavar="HOST:PORT[;...]")
    credentials: Credentials = NOBODY
    to_topic: str = setting("The topic to write to.")
    where: str = setting("Only rows for which this SQL holds.", "")
    since: str = setting("Only what was stored then or later: ms, or ISO 8601.", "")
    until: str = setting("Only what was stored before.", "")
    rate: int = setting("Messages a second, at most; 0 is as fast as it goes.", 0)
    speed: str = setting("Or as far apart as they were stored: 1x; 10x is ten times as fast.", "")
    mark: str = setting("NAME=VALUE: a property of each message.", "")
    checkpoint: str = setting(
        "Where what is done is noted, of a store; of an archive in it, unless said.",
        "",
        metavar="DIR",
    )
    name: str = setting(
        "Names this replay: it goes on where one of this name ended; to-TOPIC unless said. Archives"
        " of two clusters want a name each.",
        "",
    )
    force: bool = setting("Replay into a topic that messages come from.", False)

    def __post_init__(self) -> None:
        check_settings(self)
        read_nameservers(self.nameserver)
        check_written("to-topic", self.to_topic, is_needed=True)
        self._check_place()
        if self.mark:
            read_mark(self.mark)
        if "/" in self.name or self.name.startswith("."):
            raise OptionError(f"name: {self.name!r} cannot be the name of a file")
        if self.rate < 0:
            raise OptionError("rate: must not be negative")
        if self.rate and self.speed:
            raise OptionError("rate, speed: say one of them")
        if self.speed and self.times_as_fast <= 0:
            raise OptionError(f"speed: {self.speed!r}: write such as 1x, 10x or 0.5x")
        condition(self)  # Looks at the times.

    def _check_place(self) -> None:
        place = self.place
        if self.on_damage not in ("fail", "skip"):
            raise OptionError(f"on-damage: {self.on_damage!r} is neither fail nor skip")
        check_read("topic", self.chosen_topic)
        if self.topic and place.topic and self.topic != place.topic:
            raise OptionError(f"topic: {self.topic} is not {place.topic}, which --from names")
        if place.kind == ARCHIVE:
            if self.broker:
                raise OptionError("broker: is of stores only")
            return
        if not (self.broker and self.checkpoint):
            check_store(place.path)  # Nobody is asked about a store that is none.
        if not self.broker:
            raise OptionError(
                "broker: say how the store's broker is called, such as broker-a: its files do not"
                " tell, and by that name a message is known which is replayed again"
            )
        if not self.checkpoint:
            raise OptionError("checkpoint: say where to note what is done: not in the store")

    @property
    def place(self) -> Place:
        """Where the messages are."""
        if bool(self.from_) == bool(self.from_dir):
            raise OptionError("from: say archive:DIR or store:DIR")
        if self.from_dir:
            return Place(ARCHIVE, self.from_dir, "")
        found = read_place(self.from_)
        if found is None and not _KIND.match(self.from_):
            found = Place(ARCHIVE, self.from_, "")
        if found is None or found.kind not in (ARCHIVE, STORE):
            raise OptionError(f"from: {self.from_!r} is neither archive:DIR nor store:DIR[#TOPIC]")
        return found

    @property
    def notes_folder(self) -> str:
        """Where what is done is noted."""
        return self.checkpoint or f"{self.place.path.rstrip('/')}/{_REPLAYS}"

    @property
    def notes_name(self) -> str:
        """The name under which it is: who says it again goes on."""
        return self.name or f"to-{self.to_topic}"

    @property
    def chosen_topic(self) -> str:
        """The only topic that is replayed; nothing where none is named."""
        return self.topic or self.place.topic

    @property
    def times_as_fast(self) -> float:
        """What `speed` says; 0 if that is no speed."""
        match = _SPEED.fullmatch(self.speed)
        return float(match[1]) if match else 0.0


def condition(settings: ReplaySettings) -> str:
    """Return the SQL that says which rows are replayed; nothing where all are."""
    parts = [f"({settings.where})"] if settings.where else []
    if settings.place.kind == ARCHIVE and settings.chosen_topic:
        parts.append(f"topic = '{settings.chosen_topic}'")
    if settings.since or settings.until:
        parts.append(stored_between(settings))
    return " AND ".join(parts)
