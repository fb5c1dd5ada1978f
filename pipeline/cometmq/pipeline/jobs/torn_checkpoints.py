"""Repairing what a power cut can do to Spark's checkpoint, which Spark does not sync.

Spark notes where a batch ends, and that it is done, in files that are only in the kernel's memory
for up to half a minute. Jobs sync each file before the next step, so a power cut can only leave the
last file of a kind empty. A batch whose end is not noted has not begun, and a batch that is not
noted as done is repeated, which every job tolerates. The stream's id is on the disk before anything
is written; if that file is empty, nothing was, and another stream begins. With an empty file, the
stream would fail at each start.

`mirror` has no hook in its batches, so while it runs, a power cut may empty everything noted in
that half minute. What it has sent is recognized when it comes again, so it goes back to the last
batch whose end is known. For other jobs, only damage leaves the end of a begun batch empty, and
what they have written of it cannot be told apart from what they would write.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import DamagedFileError
from cometmq.pipeline.jobs.durable import Growing

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.folders import Folder
    from cometmq.pipeline.jobs.job import Run

ENDS: Final = "offsets"
"""The folder in a checkpoint with the ends of batches."""
DONE: Final = "commits"
"""The folder in a checkpoint that says which batches are done."""
STREAM: Final = "metadata"
"""The file in a checkpoint with the stream's id."""
_READ: Final = 2
"""How many of the last ends Spark reads when a stream is restarted."""
_STATE: Final = "state"
"""The folder in a checkpoint with the aggregates of windows; each batch makes a version."""
LOST: Final = (
    "put it back from a copy, or use a new --checkpoint, with --adopt where that is an option; a"
    " new one reads from --start on"
)
"""What to do about a lost file of a checkpoint."""
_IF_NO_START: Final = (
    "give --start earliest, or where it began as JSON, and all from there is sent again, except"
    " what brokers of CometMQ have; or use a new --checkpoint"
)


def keep(checkpoint: Folder, batch_id: int) -> None:
    """Sync, before a batch begins, its end and the note that the ones before it are done.

    A batch that an archive has is not written again: if its end were forgotten, it could end later
    the next time, and the messages in between would be in no batch.
    """
    if not batch_id:
        keep_stream(checkpoint)
    checkpoint.sync(ENDS, str(batch_id))
    keep_done(checkpoint, batch_id - 1)


def keep_stream(checkpoint: Folder) -> None:
    """Sync the stream's id: as another stream, it would send everything again."""
    checkpoint.sync(STREAM)


def keep_done(checkpoint: Folder, batch_id: int) -> None:
    """Sync the note that a batch is done, if it is."""
    if checkpoint.exists(DONE, str(batch_id)):
        checkpoint.sync(DONE, str(batch_id))


def kept_state(checkpoint: Folder) -> Growing:
    """Return the state between batches, which must be synced before a batch counts as done."""
    root = checkpoint.local_path
    return Growing(Path(root, _STATE) if root is not None else None)


def keep_last(checkpoint: Folder) -> None:
    """Sync what Spark reads when a stream that has ended is restarted."""
    ends = numbers(checkpoint, ENDS)
    for number in ends[-_READ:]:
        checkpoint.sync(ENDS, str(number))
    if ends:
        keep_done(checkpoint, ends[-1])


def mend(checkpoint: Folder, run: Run, *, repeats: bool = False, from_start: bool = True) -> None:
    """Remove the last notes if a power cut has left them empty; the checkpoint must be held.

    A stream that `repeats` may do its work again; with `from_start`, even all of it.
    """
    if (root := checkpoint.local_path) is None:
        _remove_halves(checkpoint)
        return
    noted = _noted(checkpoint, Path(root))
    before = noted.notes()
    emptied = noted.mend(repeats=repeats, from_start=from_start)
    for note in reversed(before):  # After a kill in between, the next run begins with the rest.
        if note not in noted.notes():
            _remove(note)
    for note in emptied:
        run.tell(warning=f"{note} is empty, as after a power cut; {noted.what_follows()}")
    _remove_checksums(noted)
    if not noted.notes():
        # A temporary note, cut off by a full disk or a kill: Spark would never begin a stream.
        for half in Path(root, ENDS).glob(".*"):
            half.unlink()
    stream = Path(root, STREAM)
    if not noted.notes() and stream.exists() and _is_empty(stream):
        _remove(stream)
        run.tell(warning=f"{stream} is empty, as after a power cut; the stream starts over")


def _remove_checksums(noted: _Noted) -> None:
    """Remove checksums of lost notes: Spark would not write these notes again."""
    for kind, there in ((ENDS, noted.ends), (DONE, noted.done)):
        for checksum in Path(noted.root, kind).glob(".*.crc"):
            number = checksum.name[1:-4]
            if number.isdigit() and int(number) not in there:
                checksum.unlink()


def _remove_halves(checkpoint: Folder) -> None:
    """On other file systems, remove what a kill left of the first note, as `mend` does here."""
    if not (numbers(checkpoint, ENDS) or numbers(checkpoint, DONE)):
        for half in checkpoint.names(ENDS):
            if half.startswith("."):
                checkpoint.remove(ENDS, half)


def last_done(checkpoint: Folder, *, repeats: bool = False, from_start: bool = True) -> int:
    """Return the last batch that would be done after `mend`; -1 without one.

    Nothing is removed. What `mend` refuses is refused here, too.
    """
    if (root := checkpoint.local_path) is None:
        return next_batch(checkpoint) - 1
    noted = _noted(checkpoint, Path(root))
    noted.mend(repeats=repeats, from_start=from_start)
    return noted.last_done


def next_batch(checkpoint: Folder) -> int:
    """Return the number of the first batch of a stream that is not done.

    A batch is also done if the next one has begun: a power cut may have taken the note.
    """
    return _last_done(numbers(checkpoint, ENDS), numbers(checkpoint, DONE)) + 1


def _last_done(ends: list[int], done: list[int]) -> int:
    return max(max(done, default=-1), max(ends, default=0) - 1)


def begins_anew(checkpoint: Folder) -> bool:
    """Whether the only note is an empty one with the stream's id, which `mend` would remove."""
    if (root := checkpoint.local_path) is None:
        return False
    noted = _noted(checkpoint, Path(root))
    noted.drop_empty()
    return not noted.notes() and _is_empty(Path(root, STREAM))


def _noted(checkpoint: Folder, root: Path) -> _Noted:
    return _Noted(root, numbers(checkpoint, ENDS), numbers(checkpoint, DONE))


@dataclass
class _Noted:
    """The batches whose notes count."""

    root: Path
    ends: list[int]
    done: list[int]

    def notes(self) -> list[Path]:
        """Return the files of the notes."""
        of_kinds = ((ENDS, self.ends), (DONE, self.done))
        return [self._note(kind, number) for kind, numbers in of_kinds for number in numbers]

    def mend(self, *, repeats: bool, from_start: bool) -> list[Path]:
        """Discount notes that a power cut left empty and what follows; return the empty ones."""
        emptied = self.drop_empty()
        if (lost := self.lost_end()) is not None:
            raise DamagedFileError(f"{lost} is missing, but that batch was begun: {LOST}")
        if (torn := self.torn_end()) is not None:
            if not repeats:
                raise DamagedFileError(f"{torn} is empty, but that batch was begun: {LOST}")
            emptied.append(torn)
            self.go_back()
            emptied += self.drop_empty()
        if repeats and emptied and not (self.ends or from_start):
            raise DamagedFileError(
                f"{emptied[-1]} is empty, as after a power cut, and nothing else says how far the"
                f" stream was: {_IF_NO_START}"
            )
        return emptied

    def drop_empty(self) -> list[Path]:
        """Discount the last empty notes (an end only if its batch is not done); return them.

        Without the stream's id, its first batch has not begun, whatever notes its end.
        """
        dropped: list[Path] = []
        while self.done and _is_empty(self._note(DONE, self.done[-1])):
            dropped.append(self._note(DONE, self.done.pop()))
        while self.ends and self.ends[-1] not in self.done and _is_empty(self._last_end):
            dropped.append(self._last_end)
            self.ends.pop()
        stream = self.root / STREAM
        if self.ends == [0] and not self.done and stream.exists() and _is_empty(stream):
            self.ends.pop()
        return dropped

    @property
    def last_done(self) -> int:
        """The last batch that is done, whether or not that is noted; -1 without one."""
        return _last_done(self.ends, self.done)

    def lost_end(self) -> Path | None:
        """Return a missing end that Spark reads, or of a batch that is done.

        Spark would fail at each start, and take it for another run at work.
        """
        read = {*self.done[-1:], *(last - 1 for last in self.ends[-1:] if last)}
        lost = sorted(read.difference(self.ends))
        return self._note(ENDS, lost[0]) if lost else None

    def torn_end(self) -> Path | None:
        """Return an empty end that Spark reads."""
        read = [self._note(ENDS, number) for number in self.ends[-_READ:]]
        return next((each for each in reversed(read) if _is_empty(each)), None)

    def go_back(self) -> None:
        """Discount everything after the last batch at which Spark can read all that it needs."""
        while self.ends and (self.torn_end() or self.ends[0] == self.ends[-1] > 0):
            self.ends.pop()
        last = self.ends[-1] if self.ends else -1
        self.done = [number for number in self.done if number <= last]

    def what_follows(self) -> str:
        """Return what the stream does next, as text."""
        if not self.ends:
            return "the stream starts over"
        last = self.ends[-1]
        if last in self.done:
            return f"the stream continues after batch {last}"
        return f"batch {last} is repeated"

    @property
    def _last_end(self) -> Path:
        return self._note(ENDS, self.ends[-1])

    def _note(self, kind: str, number: int) -> Path:
        return self.root / kind / str(number)


def numbers(checkpoint: Folder, kind: str) -> list[int]:
    """Return the batches with a note of a kind, in order."""
    return sorted(int(name) for name in checkpoint.names(kind) if name.isdigit())


def _is_empty(note: Path) -> bool:
    return not note.read_bytes().strip(b"\0")


def _remove(note: Path) -> None:
    note.with_name(f".{note.name}.crc").unlink(missing_ok=True)
    note.unlink()
