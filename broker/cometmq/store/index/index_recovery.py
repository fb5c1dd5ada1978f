"""Repairing the files of the index after an unclean stop.

Physical offsets decide what is kept. Files that this store synced have all items of records below
the checkpoint. Nothing is known about Apache's files: their items count as far as their chains are
right, and those of the last record are taken back, because it may have had more keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.store.index.index_format import IndexHeader, begun_before

if TYPE_CHECKING:
    from cometmq.store.index.index_file import IndexFile
    from cometmq.store.index.index_folder import IndexFolder
    from cometmq.store.index.index_keys import CountSound


def recover_files(folder: IndexFolder, start: int, count_sound: CountSound, *, synced: bool) -> int:
    """Repair the files; return from where on records must be added, see `Index.recover`."""
    for known in folder.files[:-1]:
        if known.header.next_item <= 1:
            folder.remove(known)  # Its creation failed, and so did its removal.
    _verify(folder, start, count_sound, chains=not synced)
    folder.doubt_names()
    if synced:
        return start
    last = min(start, folder.files[-1].header.end_offset) if folder.files else 0
    _verify(folder, last, count_sound, chains=False)
    for known in folder.files:
        folder.touch(known)
    return last


def _verify(folder: IndexFolder, below: int, count_sound: CountSound, *, chains: bool) -> None:
    """Cut every file that is not full or has records at or after an offset.

    In any case cut, with `chains`, the two newest; without, the newest and the last that begins
    before the offset: it was the newest at the checkpoint, with its slots in memory.
    """
    files, predecessor = folder.files, IndexHeader()
    begun = begun_before([known.header for known in files], below)[-1:]
    doubted = files[-2:] if chains else [*(files[each] for each in begun), *files[-1:]]
    for number, known in enumerate(files):
        header = known.header
        is_full = header.is_begun and header.next_item >= folder.shape.items
        full = is_full and known not in doubted
        if not full or header.end_offset >= below:
            file = folder.opened(known)
            whole = file.recover(below, predecessor, chains=chains)
            while sound := _sound_end(file, count_sound):
                whole = file.recover(below, predecessor, chains=chains, end=sound)
            known.header = file.header
            file.write_slots()
            folder.touch(known)
            if not whole:
                for each in files[number + (file.header.next_item > 1) :]:
                    folder.remove(each)
                return
        predecessor = known.header


def _sound_end(file: IndexFile, count_sound: CountSound) -> int | None:
    """Return the item before which a file must end; None if its last items are right."""
    hashes = file.last_hashes()
    torn = len(hashes) - count_sound(file.header.end_offset, hashes) if hashes else 0
    return file.header.next_item - torn if torn else None
