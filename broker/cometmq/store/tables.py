"""The config files of a store, in Apache's JSON: topics, groups, offsets, delays, filters.

Saving has two halves, so that ten thousand topics do not hold up the caller. The caller owns a
`Table`, which keeps each entry of the large maps as encoded text, encodes only what changes, and
gives a `Snapshot` for the price of two list copies. `TableFile.write` takes the snapshot, may run
in a thread, and assembles the text in chunks between its writes. The caller chooses when to save:
once for many changes.

The files on the disk::

    F       the table
    F.bak   the previous table, as Apache keeps it
    F.tmp   a table being written; of no meaning to anybody else

A save writes and syncs `F.tmp`, renames `F` to `F.bak`, then `F.tmp` to `F`, and syncs the folder.
Whenever a power cut happens, loading finds the whole old or the whole new table: `F` is never
incomplete, and if it is missing, `F.bak` is the old one. (Apache renames first and writes `F` in
place, so after a crash a damaged `F` is normal, and `F.bak` is the good one.)

One table is saved by one thread at a time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from cometmq.proto import fastjson
from cometmq.proto.errors import BodyError
from cometmq.store.disk.filesystem import read_whole
from cometmq.store.errors import StoreFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cometmq.store.disk.filesystem import FileSystem

TOPICS = "topics.json"
TOPIC_QUEUE_MAPPING = "topicQueueMapping.json"
SUBSCRIPTION_GROUPS = "subscriptionGroup.json"
CONSUMER_OFFSETS = "consumerOffset.json"
CONSUMER_ORDER_INFO = "consumerOrderInfo.json"
CONSUMER_FILTERS = "consumerFilter.json"
MESSAGE_REQUEST_MODES = "messageRequestMode.json"
DELAY_OFFSETS = "delayOffset.json"
TIMER_METRICS = "timermetrics"
TRANSACTION_METRICS = "transactionMetrics"

SECTIONS: dict[str, tuple[str, ...]] = {
    TOPICS: ("topicConfigTable",),
    TOPIC_QUEUE_MAPPING: ("topicQueueMappingInfoMap",),
    SUBSCRIPTION_GROUPS: ("forbiddenTable", "subscriptionGroupTable"),
    CONSUMER_OFFSETS: ("groupTopicMap", "offsetTable", "pullOffsetTable"),
    CONSUMER_ORDER_INFO: ("table",),
    CONSUMER_FILTERS: ("filterDataByTopic",),
    MESSAGE_REQUEST_MODES: ("messageRequestModeMap",),
    DELAY_OFFSETS: ("offsetTable",),
}
"""The members of each file that are maps and may be large; their entries are kept encoded."""

TABLES = frozenset({*SECTIONS, TIMER_METRICS, TRANSACTION_METRICS, "timercheck"})
"""What the settings folder may hold before there is a store."""

FILE_SIZE_MAX = 256 << 20
MEMBERS_MAX = 20_000_000
_CHUNK = 500

_ENCODER = msgspec.json.Encoder()


def encode(value: Any, depth: int = 0) -> bytes:
    """Write a tree in Apache's form: TABs, sorted keys, integer keys bare, no null members.

    `depth` is the number of TABs before the closing bracket. A struct is written as its object on
    the wire. A list of integers is written on one line, as Apache writes arrays.
    """
    parts: list[bytes] = []
    _write(value, b"\n" + b"\t" * depth, parts)
    return b"".join(parts)


def encode_line(value: Any) -> bytes:
    """Write a tree on one line, as `TIMER_METRICS` and `TRANSACTION_METRICS` are."""
    return fastjson.dumps(_sorted(value))


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # Any tree.
    return value


def _write(value: Any, gap: bytes, parts: list[bytes]) -> None:
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        _write_object(value, gap, parts)  # pyright: ignore[reportUnknownArgumentType]  # Any tree.
    elif isinstance(value, list | tuple) and any(not isinstance(item, int) for item in value):  # pyright: ignore[reportUnknownVariableType]  # Any tree.
        opening = b"["
        for item in value:  # pyright: ignore[reportUnknownVariableType]  # Any tree.
            parts += (opening, gap, b"\t")
            _write(item, gap + b"\t", parts)
            opening = b","
        parts += (gap, b"]")
    else:
        parts.append(_ENCODER.encode(value))


def _write_object(members: Mapping[Any, Any], gap: bytes, parts: list[bytes]) -> None:
    opening = b"{"
    for key in sorted(members):
        if members[key] is not None:
            parts += (opening, gap, b"\t", _ENCODER.encode(key), b":")
            _write(members[key], gap + b"\t", parts)
            opening = b","
    parts += (gap, b"}") if opening == b"," else (b"{}",)


class _Section:
    """One large map: its keys in order, and each entry as text."""

    __slots__ = ("keys", "texts")

    def __init__(self, keys: list[Any], texts: dict[Any, bytes]) -> None:
        self.keys = keys
        self.texts = texts

    def chunks(self) -> Iterator[bytes]:
        """The text of the map in pieces that take some ten microseconds each to put together."""
        opening = b"{"
        for start in range(0, len(self.keys), _CHUNK):
            yield opening
            yield b",".join([self.texts[key] for key in self.keys[start : start + _CHUNK]])
            opening = b","
        yield b"\n\t}" if self.keys else b"{}"


class Snapshot:
    """A table at one moment, ready to be written; it never changes."""

    __slots__ = ("_members",)

    def __init__(self, members: dict[str, bytes | _Section]) -> None:
        self._members = members

    def chunks(self) -> Iterator[bytes]:
        """The text of the file, piece by piece."""
        opening = b"{\n\t"
        for name in sorted(self._members):
            yield opening + _ENCODER.encode(name) + b":"
            member = self._members[name]
            if isinstance(member, _Section):
                yield from member.chunks()
            else:
                yield member
            opening = b",\n\t"
        yield b"\n}" if self._members else b"{}"


class Table:
    """The content of one config file, kept as encoded text."""

    def __init__(self, sections: Iterable[str]) -> None:
        self._members: dict[str, bytes] = {}
        self._sections = {name: _Section([], {}) for name in sections}

    def set_member(self, name: str, value: Any) -> None:
        """Set a small member of the file, such as `dataVersion`."""
        assert name not in self._sections, f"{name} is set entry by entry"
        self._members[name] = encode(value, 1)

    def put(self, section: str, key: str | int, value: Any) -> None:
        """Set one entry of a large map. The keys of one map are all texts or all integers."""
        held = self._sections[section]
        if key not in held.texts:
            insort(held.keys, key)
        held.texts[key] = b"\n\t\t" + _ENCODER.encode(key) + b":" + encode(value, 2)

    def discard(self, section: str, key: str | int) -> None:
        """Remove one entry of a large map, if it is there."""
        held = self._sections[section]
        if held.texts.pop(key, None) is not None:
            del held.keys[bisect_left(held.keys, key)]

    def snapshot(self) -> Snapshot:
        """The table as it is now, for `TableFile.write`."""
        members: dict[str, bytes | _Section] = dict(self._members)
        for name, section in self._sections.items():
            members[name] = _Section(section.keys.copy(), section.texts.copy())
        return Snapshot(members)


class _NoContentError(BodyError):
    """A file exists but is empty: it counts as missing."""


class Loaded(NamedTuple):
    """What loading a table found."""

    tree: dict[str, Any]
    """The file's object, empty if there is no file. Integer keys may be `int` or `str`."""
    from_backup: bool
    """Whether the file itself was missing or damaged, and this is its `.bak`."""
    is_found: bool = True
    """Whether either of the two has content."""
    problem: str | None = None
    """What is wrong with the file itself, if it exists but the `.bak` was taken; if nothing was
    found although one of the two exists, what is wrong with that one."""


class TableFile:
    """One config file with its backup."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        name: str,
        *,
        without: str = "it starts empty",
    ) -> None:
        """`without` tells an operator who has to choose a remedy what removing the file means."""
        self.path = f"{folder}/{name}"
        self._without = without
        self._folder = folder
        self._filesystem = filesystem
        self._backup = f"{self.path}.bak"
        self._temporary = f"{self.path}.tmp"
        self._is_good: bool | None = None

    def load(self, check: Callable[[dict[str, Any]], object] = lambda _: None) -> Loaded:
        """Read the file, or its backup if the file is missing, empty or damaged.

        Nothing is changed or removed. If neither exists or has content, the table is empty; damaged
        content without a good backup is a `StoreFormatError`, because an empty table would forget
        every topic. `check` raises a `BodyError` for a tree of a wrong shape, which counts as
        damage, too: a tree that is returned has passed it.
        """
        problems: list[str] = []
        own_problem: str | None = None
        for path in (self.path, self._backup):
            try:
                tree = self._read(path)
                if tree is not None:
                    check(tree)
            except _NoContentError as error:
                own_problem = own_problem or str(error)
                continue
            except BodyError as error:
                problems.append(f"{path}: {error}")
                own_problem = own_problem or str(error)
                continue
            if tree is not None:
                self._is_good = path == self.path
                return Loaded(tree, path == self._backup, problem=own_problem)
        self._is_good = False
        if problems:
            raise StoreFormatError(
                f"{'; '.join(problems)}: damaged; restore it from a copy, correct it by hand, or"
                f" remove it, and its .bak if there is one: then {self._without}"
            )
        return Loaded({}, from_backup=False, is_found=False, problem=own_problem)

    def _read(self, path: str) -> dict[str, Any] | None:
        data = read_whole(self._filesystem, path)
        if data is None:
            return None
        if not data.strip(b"\0 \t\r\n"):  # A power cut left only the name, or the length.
            raise _NoContentError("it has no content")
        try:
            tree = fastjson.loads(data, size_max=FILE_SIZE_MAX, members_max=MEMBERS_MAX)
        except BodyError as error:
            raise BodyError(_with_line(data, error)) from error
        if not isinstance(tree, dict):
            raise BodyError("not a JSON object")
        return tree  # pyright: ignore[reportUnknownVariableType]  # Any tree.

    def write(self, chunks: Iterable[bytes]) -> None:
        """Save the table: when this returns, the new table survives a power cut.

        After an `OSError` the old table still holds. A damaged file never becomes the backup.
        """
        if self._is_good is None:
            self._find_out_if_good()
        if not self._filesystem.exists(self._folder):
            self._filesystem.make_directories(self._folder)
            self._filesystem.sync_directory(self._folder.rpartition("/")[0] or "/")
        self._write_temporary(chunks)
        if self._is_good:
            self._filesystem.rename(self.path, self._backup)
            self._is_good = False
        self._filesystem.rename(self._temporary, self.path)
        self._is_good = True
        self._filesystem.sync_directory(self._folder)

    def _find_out_if_good(self) -> None:
        try:
            self.load()
        except StoreFormatError:
            self._is_good = False

    def _write_temporary(self, chunks: Iterable[bytes]) -> None:
        if self._filesystem.exists(self._temporary):
            self._filesystem.remove(self._temporary)
        with closing(self._filesystem.open(self._temporary, create=True)) as file:
            position = 0
            for chunk in chunks:
                file.write(chunk, position)
                position += len(chunk)
            file.sync()


def _with_line(data: bytes, error: BodyError) -> str:
    """Say where the text of a file stops being JSON, counting lines and columns as editors do."""
    if error.at is None:
        return str(error)
    before = data.decode()[: error.at]
    line, column = before.count("\n") + 1, error.at - before.rfind("\n")
    return f"line {line}, column {column}: not JSON: {error.problem}"
