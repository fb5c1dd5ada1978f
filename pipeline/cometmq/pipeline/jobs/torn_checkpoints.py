"""What a power cut can do to Spark's checkpoint, which Spark does not sync, made good.

Where a batch ends, and that it is done, Spark notes in files that are in the kernel's memory alone
for up to half a minute. Each is put on the disk before the next step, so a power cut can leave the
last one of a kind empty; of `mirror`, which has no hand in its batches, some more. A batch whose
end is not noted has not begun, and one that is not noted as done is repeated, which each job
stands. With an empty file the stream would fail at each start.
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
_STREAM: Final = "metadata"


def keep(checkpoint: Folder, batch_id: int) -> None:
    """Put on the disk, before a batch begins, where it ends and that those before it are done.

    A batch that an archive has is not written again: were its end forgotten, it could end later
    then, and what is between would be in none.
    """
    checkpoint.sync(ENDS, str(batch_id))
    if not batch_id:
        checkpoint.sync(_STREAM)
    keep_done(checkpoint, batch_id - 1)


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
            if is_done or note.read_bytes().strip(b"\0"):
                break
            note.with_name(f".{note.name}.crc").unlink(missing_ok=True)
            note.unlink()
            run.tell(warning=f"{note} is empty, as behind a power cut; batch {number} is repeated")
