"""The options of `format("cometmq-store")`, read and checked once, where the frame is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.option_reading import listed, parse_options

if TYPE_CHECKING:
    from collections.abc import Mapping

RECORDS: Final = "records"
QUEUES: Final = "queues"
INDEX: Final = "index"
SURVEY: Final = "survey"
VIEWS: Final = (RECORDS, QUEUES, INDEX, SURVEY)

ON_DAMAGE: Final = ("fail", "skip", "silent")
_SPLIT_SIZE_MIN: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What of a store is read, and how."""

    path: str = ""
    """The folder of the store, or its URI; `load(path)` says the same. Required."""
    view: str = RECORDS
    """`records`: a row for each message of the log. `queues`: for each entry of the ConsumeQueues.
    `index`: for each item of the index. `survey`: what an audit wants, see `survey`."""
    columns: str = ""
    """Names separated by commas, for who cannot give a schema; what is left out costs nothing. `*`
    is all of them."""
    topic: str = ""
    """Only these, several separated by commas."""
    broker: str = ""
    """What the column `broker` says."""
    decompress: bool = True
    """Whether bodies are what was sent, or what is stored."""
    unwrap: bool = True
    """Whether a batch that is stored as one record is a row for each of its messages."""
    checksums: bool = True
    """Whether bodies are compared with the checksums that were stored with them."""
    on_damage: str = "fail"
    """`fail`: the job fails at a damaged place, and says where it is. `skip`: it is told in the
    executor's log, and passed over. `silent`: the same without a word, for who knows of it."""
    runs: bool = True
    """Of a survey: whether it says how the offsets of queues follow one another."""
    blocks: bool = False
    """Of a survey: whether sealed blocks are compared with their checksums, see `blocks`."""
    sample: float = 1.0
    """Of a survey: of which share of the log the checksums are compared, see `scan.sampled`."""
    first_offset: int = 0
    """Files of the log that end in front of this physical offset are passed over."""
    filter_pushdown: bool = False
    """Whether to leave out what conditions on topic, queue, place and time leave out. Of a frame
    that is asked by others, too, rows are missing then: see `PushingReader`."""
    split_bytes: int = 0
    """Bytes of the log that one task reads, about; 0 leaves that to its size and the cores."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named."""
        return tuple(sorted(set(listed(self.topic))))


def store_options(options: Mapping[str, str]) -> StoreOptions:
    """Read what a frame is read with; an `OptionError` names the option that is wrong."""
    found = parse_options(StoreOptions, options)
    if not found.path:
        raise OptionError("path: is required; name the folder of a store, the one with commitlog/")
    if found.view not in VIEWS:
        raise OptionError(f"view: {found.view!r} is none of {', '.join(VIEWS)}")
    if found.on_damage not in ON_DAMAGE:
        raise OptionError(f"onDamage: {found.on_damage!r} is none of {', '.join(ON_DAMAGE)}")
    if found.split_bytes and found.split_bytes < _SPLIT_SIZE_MIN:
        raise OptionError(f"splitBytes: {found.split_bytes} is under {_SPLIT_SIZE_MIN}")
    if not 0 < found.sample <= 1:
        raise OptionError(f"sample: {found.sample} is no share above 0, up to 1")
    if found.topic and found.view not in (RECORDS, QUEUES):
        raise OptionError(
            f"topic: is for records and queues; the view {found.view} is of all topics"
        )
    if found.topic and not found.topics:
        raise OptionError(f"topic: {found.topic!r} names none")
    return found
