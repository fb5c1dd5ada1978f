"""How the files and folders of a store are named, which tells them from foreign ones.

People keep copies and notes in a store. Among the files of the log these are refused, as by Apache;
in the folders of the queues and of the index they are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.store.errors import LEADS_NOWHERE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.store.disk.filesystem import Entry

PIPE: Final = "pipe or device"
"""The word in texts for what is neither file nor folder."""
NAMED_MAX: Final = 8
"""Topics, or queues, that are named in one text; the others are only counted."""
OFFSET_DIGITS: Final = 20
_OFFSET_MAX: Final = f"{(1 << 63) - 1:0{OFFSET_DIGITS}d}"
_TIME_DIGITS: Final = 17
_QUEUE_ID_MAX: Final = (1 << 31) - 1


def is_offset_file(entry: Entry) -> bool:
    """Whether it is a file with a name like those of the log, of queues and of checksums."""
    name = entry.name
    is_offset = _is_number(name) and len(name) == OFFSET_DIGITS and name <= _OFFSET_MAX
    return is_offset and is_file(entry)


def is_index_file(entry: Entry) -> bool:
    """Whether it is a file with a name like those of the index: the time of its creation."""
    return is_file(entry) and _is_number(entry.name) and len(entry.name) == _TIME_DIGITS


def is_file(entry: Entry) -> bool:
    """Whether it is a file: no folder, and nothing whose opening may block."""
    return not (entry.is_directory or entry.is_special)


def has_place_of(entry: Entry, is_named: Callable[[Entry], bool]) -> bool:
    """Whether it has the name of such a file, but is no file."""
    return not is_file(entry) and is_named(entry._replace(is_directory=False, is_special=False))


def in_place_of(entry: Entry, what: str) -> str:
    """Say that something else is in the place of a file."""
    return f"a {called(entry)} in place of a {what}"


def called(entry: Entry) -> str:
    """Return the word in texts for an entry that is no file."""
    if entry.leads_nowhere:
        return LEADS_NOWHERE
    return "folder" if entry.is_directory else PIPE


def is_folder_name(name: str) -> bool:
    """Whether a topic of that name can have a folder of exactly that name."""
    return "/" not in name and "\0" not in name and name not in {".", ".."}


def is_topic_folder(entry: Entry) -> bool:
    """Whether it may be the folder of a topic: a folder whose name is UTF-8."""
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        return False
    return entry.is_directory


def is_queue_folder(entry: Entry) -> bool:
    """Whether it is a folder named like a queue's, by the queue's id: `7`, not `007`."""
    name = entry.name
    is_id = _is_number(name) and (name[0] != "0" or name == "0") and int(name) <= _QUEUE_ID_MAX
    return is_id and entry.is_directory


def some_of(names: Sequence[str], named_max: int = NAMED_MAX) -> str:
    """List up to `named_max` names, and say how many more there are."""
    rest = len(names) - named_max
    return f"{', '.join(names[:named_max])}{f' and {rest} more' if rest > 0 else ''}"


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()
