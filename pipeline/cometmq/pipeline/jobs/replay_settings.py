"""The settings of `replay`: what to replay, where to, and how fast."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.credentials import NOBODY, Credentials
from cometmq.pipeline.jobs.job import check_settings, setting
from cometmq.pipeline.jobs.marks import read_mark
from cometmq.pipeline.jobs.places import ARCHIVE, STORE, Place, read_place
from cometmq.pipeline.jobs.tables import SINCE, UNTIL, stored_between
from cometmq.pipeline.jobs.topic_names import check_read, check_written
from cometmq.pipeline.nameservers import read_nameservers
from cometmq.pipeline.rows import SHARDING_KEY
from cometmq.pipeline.store.files import check_store

_KIND: Final = re.compile(r"[a-z]+:(?!//)", re.IGNORECASE)
"""A prefix that no path has."""
_REPLAYS: Final = "_replays"
"""The folder of notes in an archive."""
_NAME_MAX: Final = 255 - len("..json.new")
"""The most bytes of a name that the notes are written under: `.NAME.json.new`, then renamed."""
QUEUE, KEY = "queue", "key"
"""What messages have in common that are sent in their order."""
_SPEED: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)x", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """What to replay, and where to."""

    from_: str = setting(
        "What to replay: archive:DIR[#TOPIC] or store:DIR[#TOPIC].", "", metavar="PLACE"
    )
    from_dir: str = setting("Short for --from archive:DIR.", "", metavar="DIR")
    topic: str = setting(
        "Replay only this topic; required for a store with several.", "", metavar="TOPIC"
    )
    broker: str = setting(
        "The name of the store's broker: messages are identified by where they were.", ""
    )
    on_damage: str = setting(
        "At a damaged record or a lost file of an archive: fail or skip.", "fail"
    )
    nameserver: str = setting(
        "The name servers of the cluster to write to.", metavar="HOST:PORT[;...]"
    )
    credentials: Credentials = NOBODY
    to_topic: str = setting("The topic to write to.")
    where: str = setting("Only rows that match this SQL condition.", "")
    since: str = setting(SINCE, "")
    until: str = setting(UNTIL, "")
    rate: int = setting("Send at most this many messages a second; 0 for no limit.", 0)
    speed: str = setting("Keep the original pace instead: 1x, or 10x for ten times as fast.", "")
    preserve_order: str = setting(
        f"{QUEUE}: keep the order within each source queue; {KEY}: send messages with one key to"
        " one queue, in the order in which they were stored.",
        QUEUE,
    )
    mark: str = setting("Add the property NAME=VALUE to each message.", "")
    checkpoint: str = setting(
        "The folder for its progress; required for a store, by default inside an archive.",
        "",
        metavar="DIR",
    )
    name: str = setting(
        "The name of this replay, to-TOPIC by default: it continues where the last one of that"
        " name ended. Give the archives of two clusters a name each.",
        "",
    )
    force: bool = setting("Allow replaying into a topic that the messages came from.", False)

    def __post_init__(self) -> None:
        check_settings(self)
        read_nameservers(self.nameserver)
        check_written("to-topic", self.to_topic, is_needed=True)
        self._check_place()
        if self.mark and read_mark(self.mark)[0] == SHARDING_KEY and self.preserve_order == KEY:
            raise OptionError(f"mark: {SHARDING_KEY} is set by --preserve-order key")
        if "/" in self.name or self.name.startswith("."):
            raise OptionError(f"name: {self.name!r} cannot be the name of a file")
        if (size := len(self.name.encode())) > _NAME_MAX:
            raise OptionError(
                f"name: of {size} bytes: must be at most {_NAME_MAX}; it names a file"
            )
        if self.rate < 0:
            raise OptionError("rate: must not be negative")
        if self.rate and self.speed:
            raise OptionError("rate, speed: give only one of them")
        if self.speed and self.times_as_fast <= 0:
            raise OptionError(f"speed: {self.speed!r} is not a speed such as 1x, 10x or 0.5x")
        if self.preserve_order not in (QUEUE, KEY):
            raise OptionError(
                f"preserve-order: {self.preserve_order!r} is neither {QUEUE} nor {KEY}"
            )
        condition(self)  # Checks the times.

    def _check_place(self) -> None:
        place = self.place
        if self.on_damage not in ("fail", "skip"):
            raise OptionError(f"on-damage: {self.on_damage!r} is neither fail nor skip")
        check_read("topic", self.chosen_topic)
        if self.topic and place.topic and self.topic != place.topic:
            raise OptionError(f"topic: {self.topic} is not {place.topic}, which --from names")
        if place.kind == ARCHIVE:
            if self.broker:
                raise OptionError("broker: is for stores only")
            return
        if not (self.broker and self.checkpoint):
            check_store(place.path)  # An error about a wrong path comes first.
        if not self.broker:
            raise OptionError(
                "broker: give the name of the store's broker, such as broker-a: its files do not"
                " contain it, and a message that is replayed again is recognized by it"
            )
        if not self.checkpoint:
            raise OptionError("checkpoint: give a folder for the progress, outside the store")

    @property
    def place(self) -> Place:
        """Where the messages are."""
        if bool(self.from_) == bool(self.from_dir):
            raise OptionError("from: give archive:DIR or store:DIR")
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
        """The folder for notes of progress."""
        return self.checkpoint or f"{self.place.path.rstrip('/')}/{_REPLAYS}"

    @property
    def notes_name(self) -> str:
        """The name of the notes; a run with the same name continues."""
        return self.name or f"to-{self.to_topic}"

    @property
    def chosen_topic(self) -> str:
        """The only topic to replay; '' if none is named."""
        return self.topic or self.place.topic

    @property
    def times_as_fast(self) -> float:
        """The factor of `speed`; 0 if it is invalid."""
        match = _SPEED.fullmatch(self.speed)
        return float(match[1]) if match else 0.0


def condition(settings: ReplaySettings) -> str:
    """Return the SQL condition for the rows to replay; '' for all rows."""
    parts = [f"({settings.where})"] if settings.where else []
    if settings.place.kind == ARCHIVE and settings.chosen_topic:
        parts.append(f"topic = '{settings.chosen_topic}'")
    if settings.since or settings.until:
        parts.append(stored_between(settings))
    return " AND ".join(parts)
