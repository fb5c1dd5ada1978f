"""The options of `format("cometmq-store")`, parsed and checked once, when the frame is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.option_reading import listed, parse_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.pipeline.option_reading import Verbatim

RECORDS: Final = "records"
QUEUES: Final = "queues"
INDEX: Final = "index"
SURVEY: Final = "survey"
VIEWS: Final = (RECORDS, QUEUES, INDEX, SURVEY)

ON_DAMAGE: Final = ("fail", "skip", "silent")
_SPLIT_SIZE_MIN: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What is read of a store, and how."""

    path: Verbatim = ""
    """The folder of the store, or its URI; the same as `load(path)`. Required."""
    view: str = RECORDS
    """`records`: a row for each message of the log. `queues`: for each entry of the ConsumeQueues.
    `index`: for each item of the index. `survey`: what an audit needs; see `survey`."""
    columns: str = ""
    """Names separated by commas, if you cannot give a schema; columns left out cost nothing. `*` is
    all of them."""
    topic: str = ""
    """Only this topic, or several separated by commas."""
    broker: str = ""
    """The value of the column `broker`."""
    decompress: bool = True
    """Whether bodies are as sent rather than as stored."""
    unwrap: bool = True
    """Whether a batch that is stored as one record is a row for each of its messages."""
    checksums: bool = True
    """Whether records are compared with the checksums in them; see `checksums`."""
    on_damage: str = "fail"
    """`fail`: the job fails at a damaged place and says where it is. `skip`: the place is reported
    in the executor's log and skipped. `silent`: it is skipped without a report."""
    runs: bool = True
    """For a survey: whether it describes how the offsets of queues follow one another."""
    blocks: bool = False
    """For a survey: whether sealed blocks are compared with their checksums; see `blocks`."""
    sample: float = 1.0
    """For a survey: the share of the log whose checksums are compared; see `scan.sampled`."""
    first_offset: int = 0
    """Files of the log that end before this physical offset are skipped."""
    filter_pushdown: bool = False
    """Whether to skip what conditions on topic, queue, place and time exclude. If the frame is also
    used by other queries, these miss rows: see `PushingReader`."""
    split_bytes: int = 0
    """About how many bytes of the log a task reads; 0 leaves that to its size and the cores."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named."""
        return tuple(sorted(set(listed(self.topic))))


def store_options(options: Mapping[str, str]) -> StoreOptions:
    """Parse the options for reading a frame; an `OptionError` names the wrong option."""
    found = parse_options(StoreOptions, options)
    if not found.path:
        raise OptionError("path: is required; name the folder of a store, the one with commitlog/")
    if found.view not in VIEWS:
        raise OptionError(f"view: {found.view!r} is not one of {', '.join(VIEWS)}")
    if found.on_damage not in ON_DAMAGE:
        raise OptionError(f"onDamage: {found.on_damage!r} is not one of {', '.join(ON_DAMAGE)}")
    if found.split_bytes and found.split_bytes < _SPLIT_SIZE_MIN:
        raise OptionError(f"splitBytes: {found.split_bytes} is less than {_SPLIT_SIZE_MIN}")
    if not 0 < found.sample <= 1:
        raise OptionError(f"sample: {found.sample} must be more than 0 and at most 1")
    if found.topic and found.view not in (RECORDS, QUEUES):
        raise OptionError(
            f"topic: is for records and queues; the view {found.view} is of all topics"
        )
    if found.topic and not found.topics:
        raise OptionError(f"topic: {found.topic!r} names no topic")
    return found
