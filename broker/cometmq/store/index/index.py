"""The index of a store: records by key, in files that follow one another as they fill.

`add` only notes a record; `build` extracts its keys and puts them into the newest file, in the
background and hundreds at a time, because numpy costs per call. A query first builds what waits, so
that it finds every record that was added.

The newest file's slots are in memory, see `index_file`. Those of a file that has just become full
are written in slices by the following builds; until they are, `settled_offset` stays low.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final

from cometmq.proto.java import string_hash
from cometmq.store.index.index_folder import INDEX_FOLDER, IndexFolder
from cometmq.store.index.index_format import positive_hash
from cometmq.store.index.index_keys import all_sound, query_key
from cometmq.store.index.index_recovery import recover_files
from cometmq.store.index.index_waiting import WaitingRecords
from cometmq.store.index.key_search import KeySearch, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.disk.unsynced import Unsynced
    from cometmq.store.index.index_folder import KnownFile
    from cometmq.store.index.index_hash import Hashed
    from cometmq.store.index.index_keys import CountSound, Noted

WAITING_MAX: Final = 4096
"""Records that a query may have to build first, at some 0.5 µs each."""
SLOT_PAGES_A_BUILD: Final = 32
"""128 KiB of a full file's slots are written with each build, in some 30 µs."""

_EVERYTHING: Final = 1 << 62


class Index:
    """The index files of one store. For one thread; `Unsynced.sync` may run in another."""

    def __init__(
        self,
        filesystem: FileSystem,
        root: str,
        config: StoreConfig,
        *,
        clean: bool,
        read_only: bool = False,
    ) -> None:
        self._shape = config.index_shape
        self._folder = IndexFolder(filesystem, f"{root}/{INDEX_FOLDER}", self._shape, clean=clean)
        self._files = self._folder.files
        self._files_without_slots = 2 if read_only and not clean else 0
        self._waiting = WaitingRecords()
        self._hashed: Hashed | None = None  # Hashes of records that are no longer noted.
        self.write_error: OSError | None = None
        """Why keys cannot be written now; None again as soon as a write succeeds."""
        self.is_loaded = False
        """Whether numpy is loaded, which takes 100 ms."""
        self._building = Lock()
        self._resume_offset = self._files[-1].header.end_offset + 1 if self._files else 0

    # Filling

    def add(self, topic: bytes, properties: bytes, physical_offset: int, store_time: int) -> None:
        """Note a record, in the order of the log, for the next `build`."""
        self._waiting.add([(physical_offset, topic, properties, store_time)], 1)

    def add_many(self, records: Sequence[Noted], count: int) -> None:
        """Note `count` records; build some if too many wait for the next query."""
        self._waiting.add(records, count)
        if self._waiting.count > WAITING_MAX and self.is_loaded:
            # Many at once: thirty take 150 µs, a thousand 500.
            self.build(max(self.waiting - WAITING_MAX, WAITING_MAX // 4), records[-1][3])

    @property
    def waiting(self) -> int:
        """How many records were added but not built."""
        return self._waiting.count

    @property
    def needs_preparation(self) -> bool:
        """Whether the next `build` would take long, unless `prepare` is called in a thread."""
        is_closed = bool(self._files) and self._files[-1].open is None
        return not self.is_loaded or (is_closed and self.waiting > 0)

    def prepare(self) -> None:
        """Load numpy (100 ms) and, if records wait, the newest file's slots (20 MB); in any thread.

        A `build` meanwhile waits for this. Errors are left for `build` to report.
        """
        from cometmq.store.index.index_hash import make_tables

        make_tables()
        with self._building, suppress(OSError):
            if self._files and self.waiting:
                self._folder.opened(self._files[-1])
        self.is_loaded = True

    def build(self, records_max: int, now_ms: int) -> bool:
        """Index up to `records_max` waiting records, batches whole; return whether all are done.

        If the disk refuses, `write_error` says why, and the keys stay in memory.
        """
        with self._building:
            try:
                self._put(now_ms)  # What the disk refused last time.
                self._hash(records_max)
                self._put(now_ms)
                sealed = self._write_slots(SLOT_PAGES_A_BUILD)
            except OSError as error:
                self.write_error = error
                return False
            self.write_error = None
            return sealed and not self._waiting.count

    def finish(self, now_ms: int) -> bool:
        """Write everything, with the newest file's slots, for a clean stop; whether that worked."""
        while not self.build(self._waiting.count, now_ms):
            if self.write_error is not None:
                return False
        try:
            self._write_slots()
            for known in self._files[-1:]:
                if known.open is not None:
                    known.open.write_slots()
                    self._folder.touch(known)
            self._folder.remove_half_made()
        except OSError as error:
            self.write_error = error
            return False
        return True

    def _hash(self, records_max: int) -> None:
        """Hash the keys of waiting records."""
        if noted := self._waiting.take(records_max):
            from cometmq.store.index.index_hash import hash_noted

            self._hashed = hash_noted(noted)
            self.is_loaded = True

    def _put(self, now_ms: int) -> None:
        """Put the hashed keys into the newest file, and into following ones when it is full."""
        while self._hashed is not None:
            known = self._newest(now_ms)
            file = self._folder.opened(known)
            room = file.room
            hashes, offsets, times = self._hashed
            file.put(hashes[:room], offsets[:room], times[:room])
            known.header = file.header
            self._folder.touch(known)
            self._hashed = self._hashed.behind(room)

    def _newest(self, now_ms: int) -> KnownFile:
        """Return the file that has room, making one if there is none."""
        if self._files and self._files[-1].header.next_item < self._shape.items:
            return self._files[-1]
        self._write_slots()  # Mostly done: the builds of a whole file had time for it.
        return self._folder.make(now_ms)

    def _write_slots(self, pages_max: int | None = None) -> bool:
        """Write slots of the file before the newest; return whether that file is finished."""
        for known in self._files[-2:-1]:
            if known.open is not None:
                self._folder.touch(known)
                if not known.open.write_slots(pages_max):
                    return False
                known.close()
        return True

    # Asking

    def search(
        self,
        topic: str,
        key: str,
        count: int,
        *,
        begin_ms: int = 0,
        end_ms: int = _EVERYTHING,
        kind: str = "",
        accept: Callable[[int], bool] | None = None,
    ) -> KeySearch:
        """Begin a search for the records that may have a key.

        Only hashes are compared, and times only to the second: `accept` decides by the record
        itself whether it counts. With `kind` "T" the key is the tags of records. Records that wait
        to be built are not found: build them first.
        """
        hashed = positive_hash(string_hash(query_key(topic, key, kind)))
        wanted = Wanted(hashed, count, begin_ms, end_ms)
        return KeySearch(self._folder, wanted, accept, self._files_without_slots)

    # The disk

    @property
    def settled_offset(self) -> int | None:
        """The physical offset below which every record's keys are in the files; None for any.

        That does not mean on the disk: for that, sync what `take_unsynced` then returns.
        """
        bounds = [known.header.end_offset for known in self._files[-2:-1] if known.open]
        if self._hashed is not None:
            bounds.append(int(self._hashed.offsets[0]))
        if (waiting := self._waiting.first_offset) is not None:
            bounds.append(waiting)
        return min(bounds, default=None)

    def sealed_below(self, physical_offset: int) -> tuple[int, int | None]:
        """Return which part of the files is final, if records below an offset count as safe.

        Return the store time of the last record in files that are full, written out and safe, or 0;
        and the physical offset of the first record in a file that is not, or None.
        """
        time = 0
        for number, known in enumerate(self._files):
            header = known.header
            is_final = number < len(self._files) - 1 and known.open is None
            if not is_final or header.end_offset >= physical_offset:
                return time, header.begin_offset if header.next_item > 1 else None
            time = header.end_time
        return time, None

    @property
    def resume_offset(self) -> int:
        """The physical offset from which on records are not indexed."""
        return self._resume_offset

    def take_unsynced(self) -> Unsynced:
        """Return what has changed since the last call."""
        return self._folder.take_unsynced()

    def expire(self, min_physical_offset: int) -> list[str]:
        """Forget the files whose records have all expired; never the newest one.

        Return their paths: the caller removes them, in a thread, because they are large.
        """
        expired: list[str] = []
        while len(self._files) > 1 and self._files[0].header.end_offset < min_physical_offset:
            expired.append(self._folder.path(self._files[0]))
            self._folder.forget(self._files[0])
        return expired

    def close(self) -> None:
        """Close the files; what `finish` has not written must be recovered."""
        self._folder.close()

    # Opening

    def recover(self, start: int, *, synced: bool, count_sound: CountSound = all_sound) -> int:
        """Repair the files after an unclean stop; return from where on records must be added.

        `start` is where the store begins to read the log back. `synced` says that the index was
        also synced up to there; without it the result may be lower than `start`. `count_sound`
        returns how many of a file's last items belong to the record that they name: a torn item may
        name any record.
        """
        self._resume_offset = recover_files(self._folder, start, count_sound, synced=synced)
        return self._resume_offset
