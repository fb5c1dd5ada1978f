"""Damage that no crash causes: sectors that read as zeros, lost files, flipped bits.

A disk that lies about its syncs leaves zeros where data was safe; a check of the file system or an
operator loses a file or a folder; and bytes not synced yet may be anything. Each `Damage` is one of
these, done to a stopped store after a power cut, alone or with another one. `spoilt` says what may
come of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.crash.checks import log_of
from tests.crash.content import BLOCK, SECTOR
from tests.crash.oracle import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.crash.oracle import Record
    from tests.crash.spoilt import Spoilt

LOG: Final = f"{ROOT}/commitlog"
QUEUE_FOLDERS: Final = (f"{ROOT}/consumequeue", f"{ROOT}/batchconsumequeue")
INDEX: Final = f"{ROOT}/index"
JOURNAL: Final = f"{ROOT}/entryjournal"
SIDECARS: Final = f"{ROOT}/integrity"
CHECKPOINT: Final = f"{ROOT}/checkpoint"
ENDS: Final = f"{ROOT}/queue_ends.json"
ABORT: Final = f"{ROOT}/abort"
LOCK: Final = f"{ROOT}/lock"
DELETED: Final = f"{ROOT}/deleted_topics.json"
TOPICS: Final = f"{ROOT}/config/topics.json"

FIELDS: Final = {
    "size": range(4),
    "magic": range(4, 8),
    "checksum": range(8, 12),
    "queue": range(12, 16),
    "flag": range(16, 20),
    "number": range(20, 28),
    "offset": range(28, 36),
    "system flag": range(36, 40),
    "rest": range(40, 84),
    "body size": range(84, 88),
}
"""Where the fields of a record's head are; all but the last have a fixed place."""
COVERED: Final = frozenset({"size", "magic", "checksum", "number", "offset", "body size"})
"""The fields that always show a torn record, even if it has no checksum of its own."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done, and to what."""

    name: str
    path: str
    start: int = 0
    end: int = 0
    """Both delimit a part of the file; 0 if all of it is gone."""
    field: str = ""
    """For a flipped bit: which field of a record it is in."""
    record: Record | None = None
    """And in which record."""

    @property
    def is_of_log(self) -> bool:
        """Whether it concerns messages, not what is derived from them."""
        return self.path.startswith(f"{LOG}/")

    @property
    def is_of_queues(self) -> bool:
        """Whether it concerns queues."""
        return self.path.startswith(QUEUE_FOLDERS)

    @property
    def is_lost(self) -> bool:
        """Whether a file or a folder is gone."""
        return self.name == "lost"

    @property
    def queue(self) -> tuple[str, int] | None:
        """The queue, if it concerns exactly one; else None."""
        for folder in QUEUE_FOLDERS:
            parts = self.path.removeprefix(f"{folder}/").split("/")
            if self.path.startswith(f"{folder}/") and len(parts) >= 2:
                return parts[0], int(parts[1])
        return None

    def __str__(self) -> str:
        return f"{self.name}: {self.path} {self.start}..{self.end} {self.field}"


Choice: TypeAlias = "Callable[[Spoilt, Random], Damage | None]"


def choose(spoilt: Spoilt, rng: Random) -> Damage | None:
    """Choose a damage to a store; None if the die fell on something that is not there."""
    return rng.choices(_KINDS, _WEIGHTS)[0](spoilt, rng)


def choose_more(spoilt: Spoilt, rng: Random) -> list[Damage]:
    """Choose two damages, small files included; fewer if one is impossible or hides the other."""
    table = _TABLE + _SMALL
    kinds = rng.choices([kind for _, kind in table], [weight for weight, _ in table], k=2)
    found = [damage for kind in kinds if (damage := kind(spoilt, rng)) is not None]
    is_listed = spoilt.disk.exists(ENDS)
    return found[:1] if len(found) > 1 and _is_hidden(*found, is_listed=is_listed) else found


def _is_hidden(left: Damage, right: Damage, *, is_listed: bool) -> bool:
    """Whether one of two damages removes what would show the other, or what the other is done to.

    Nothing shows that a queue is lost if the list that names it is lost too, or the checkpoint that
    the list depends on; nor that the log's first files are, without the checkpoint, which needs
    them. A store with neither a checkpoint nor `abort`, nor a list yet, may be one of Apache's.
    """
    pair = ((left, right), (right, left))
    return any(
        f"{other.path}/".startswith(f"{one.path}/")
        or (one.path in (ENDS, CHECKPOINT) and other.is_of_queues)
        or (one.path == CHECKPOINT and other.is_of_log and other.is_lost)
        or (one.path == CHECKPOINT and other.path == ABORT and other.is_lost and not is_listed)
        for one, other in pair
    )


def inflict(spoilt: Spoilt, damage: Damage, rng: Random) -> None:
    """Do a damage, and sync it."""
    disk = spoilt.disk
    if damage.is_lost:
        _lose(spoilt, damage.path)
        disk.sync_directory(damage.path.rpartition("/")[0])
        return
    file = disk.open(damage.path, create=damage.name == "made")
    data = bytes(damage.end - damage.start)
    if damage.field:
        data = bytes((file.read(1, damage.start)[0] ^ 1 << rng.randrange(8),))
    file.write(data, damage.start)
    file.sync()
    file.close()
    disk.sync_directory(damage.path.rpartition("/")[0])


def files_below(spoilt: Spoilt, folder: str) -> list[str]:
    """Return the paths of all files below a folder, sorted."""
    found: list[str] = []
    for entry in spoilt.disk.list(folder):
        path = f"{folder}/{entry.name}"
        found += files_below(spoilt, path) if entry.is_directory else [path]
    return found


def _lose(spoilt: Spoilt, path: str) -> None:
    disk = spoilt.disk
    parent, _, name = path.rpartition("/")
    if not any(entry.name == name and entry.is_directory for entry in disk.list(parent)):
        disk.remove(path)
        return
    for entry in disk.list(path):
        _lose(spoilt, f"{path}/{entry.name}")
    disk.remove_directory(path)


def _zeros_in(*places: str) -> Choice:
    def zeros(spoilt: Spoilt, rng: Random) -> Damage | None:
        files = _all_of(spoilt, places)
        return _zeros(spoilt, rng, rng.choice(files)) if files else None

    return zeros


def _zeros(spoilt: Spoilt, rng: Random, path: str) -> Damage | None:
    """Zero a sector or a page, mostly one that is not blank."""
    file = spoilt.disk.open(path, read_only=True)
    data = file.read(file.size(), 0)
    file.close()
    unit = rng.choice((SECTOR, SECTOR, BLOCK))
    starts = list(range(0, len(data), unit))
    used = [start for start in starts if any(data[start : start + unit])]
    if not starts:
        return None
    start = rng.choice(used if used and rng.random() < 0.9 else starts)
    return Damage("zeros", path, start, min(start + unit, len(data)))


def _loss_in(*places: str) -> Choice:
    def loss(spoilt: Spoilt, rng: Random) -> Damage | None:
        files = _all_of(spoilt, places)
        return Damage("lost", rng.choice(files)) if files else None

    return loss


def _loss_of(path: str) -> Choice:
    return lambda spoilt, _: Damage("lost", path) if spoilt.disk.exists(path) else None


def _zeros_of(path: str) -> Choice:
    return lambda spoilt, rng: _zeros(spoilt, rng, path) if spoilt.disk.exists(path) else None


def _made(path: str) -> Choice:
    return lambda spoilt, _: None if spoilt.disk.exists(path) else Damage("made", path, end=4)


def _loss_of_queue(spoilt: Spoilt, rng: Random) -> Damage | None:
    files = _all_of(spoilt, QUEUE_FOLDERS)
    folders = sorted({path.rpartition("/")[0] for path in files})
    return Damage("lost", rng.choice(folders)) if folders else None


def _flip_in_tail(spoilt: Spoilt, rng: Random) -> Damage | None:
    """Flip a bit in the head of a record that was not promised."""
    tail = [each for each in log_of(spoilt.disk).records if each.physical_offset >= spoilt.safe]
    if not tail:
        return None
    record = rng.choice(tail)
    field = rng.choice(list(FIELDS))
    segment = record.physical_offset - record.physical_offset % spoilt.config.segment_size
    at = record.physical_offset - segment + rng.choice(FIELDS[field])
    return Damage("flipped", f"{LOG}/{segment:020d}", at, at + 1, field, record)


def _all_of(spoilt: Spoilt, places: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for place in places:
        if place not in (CHECKPOINT, ENDS):
            found += files_below(spoilt, place)
        elif spoilt.disk.exists(place):
            found.append(place)
    return found


_TABLE: Final[list[tuple[int, Choice]]] = [
    (6, _zeros_in(LOG)),
    (5, _zeros_in(*QUEUE_FOLDERS)),
    (2, _zeros_in(INDEX)),
    (2, _zeros_in(CHECKPOINT)),
    (2, _zeros_in(ENDS)),
    (1, _zeros_in(JOURNAL)),
    (1, _zeros_in(SIDECARS)),
    (3, _loss_in(LOG)),
    (4, _loss_in(*QUEUE_FOLDERS)),
    (3, _loss_of_queue),
    (2, _loss_in(INDEX)),
    (1, _loss_of(INDEX)),
    (1, _loss_of(QUEUE_FOLDERS[0])),
    (1, _loss_of(QUEUE_FOLDERS[1])),
    (1, _loss_of(CHECKPOINT)),
    (1, _loss_of(ENDS)),
    (1, _loss_in(SIDECARS)),
    (1, _loss_in(JOURNAL)),
    (4, _flip_in_tail),
]
_WEIGHTS: Final = [weight for weight, _ in _TABLE]
_KINDS: Final = [kind for _, kind in _TABLE]

_SMALL: Final[list[tuple[int, Choice]]] = [
    (4, _loss_of(ABORT)),
    (2, _made(ABORT)),
    (1, _zeros_of(ABORT)),
    (1, _loss_of(LOCK)),
    (3, _loss_of(DELETED)),
    (3, _zeros_of(DELETED)),
    (1, _loss_of(TOPICS)),
    (1, _zeros_of(TOPICS)),
]
"""Damage to small files, which is done only where two damages are chosen."""
