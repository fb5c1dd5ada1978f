"""What a power cut can do to Spark's checkpoint, which Spark does not sync, made good.

Where a batch ends, and that it is done, Spark notes in files that are in the kernel's memory alone
for up to half a minute. Each is put on the disk before the next step, so a power cut can leave the
last one of a kind empty; of `mirror`, which has no hand in its batches, some more. A batch whose
end is not noted has not begun, and one that is not noted as done is repeated, which each job
stands. Which stream it is, is on the disk before anything is written; where that is empty nothing
was, and another one begins. With an empty file the stream would fail at each start.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.folders import Folder
    from cometmq.pipeline.jobs.job import Run

ENDS: Final = "offsets"
"""In a checkpoint: where each batch ends."""
DONE: Final = "commits"
"""In a checkpoint: which batches are done."""
STREAM: Final = "metadata"
"""In a checkpoint: which stream it is."""


def keep(checkpoint: Folder, batch_id: int) -> None:
    """Put on the disk, before a batch begins, where it ends and that those before it are done.

    A batch that an archive has is not written again: were its end forgotten, it could end later
    then, and what is between would be in none.
    """
    checkpoint.sync(ENDS, str(batch_id))
    if not batch_id:
        keep_stream(checkpoint)
    keep_done(checkpoint, batch_id - 1)


def keep_stream(checkpoint: Folder) -> None:
    """Put on the disk which stream it is: as another one it would send everything again."""
    checkpoint.sync(STREAM)


def keep_done(checkpoint: Folder, batch_id: int) -> None:
    """Put on the disk that a batch is done, if it is."""
    if checkpoint.exists(DONE, str(batch_id)):
        checkpoint.sync(DONE, str(batch_id))


def mend(checkpoint: Folder, run: Run) -> None:
    """Remove the last notes where a power cut has left them empty; the checkpoint must be held."""
    root = checkpoint.local_path
    if root is None:
        return
    for kind in (DONE, ENDS):
        numbers = sorted(int(name) for name in checkpoint.names(kind) if name.isdigit())
        for number in reversed(numbers):
            note = Path(root, kind, str(number))
            is_done = kind == ENDS and checkpoint.exists(DONE, note.name)
            if is_done or not _is_empty(note):
                break
            _remove(note)
            run.tell(warning=f"{note} is empty, as behind a power cut; batch {number} is repeated")
    stream = Path(root, STREAM)
    has_begun = any(name.isdigit() for name in (*checkpoint.names(ENDS), *checkpoint.names(DONE)))
    if not has_begun and stream.exists() and _is_empty(stream):
        _remove(stream)
        run.tell(warning=f"{stream} is empty, as behind a power cut; the stream begins anew")


def _is_empty(note: Path) -> bool:
    return not note.read_bytes().strip(b"\0")


def _remove(note: Path) -> None:
    note.with_name(f".{note.name}.crc").unlink(missing_ok=True)
    note.unlink()
