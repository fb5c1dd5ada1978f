"""The index of a store: records by key, in files that follow one another as they fill.

`add` only notes a record; `build` takes its keys out and puts them into the newest file, in the
background and by hundreds, because numpy's price is per call. A query first builds what waits, so
that it finds every record that was added.

The newest file's slots are in memory, see `index_file`; those of a file that has just become full
are written in slices by the following builds, and until they are, `settled_offset` stays low.
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
"""Records, of some 0.5 µs each, that a query may have to build first."""
SLOT_PAGES_A_BUILD: Final = 32
"""128 KiB of a full file's slots are written with each build: some 30 µs."""

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
        self._hashed: Hashed | None = None  # Hashes of records that are noted no more.
        self.write_error: OSError | None = None
        """Why keys cannot be written now; None again as soon as some could be."""
        self.is_loaded = False
        """Whether numpy is, which takes 100 ms."""
        self._building = Lock()
        self._resume_offset = self._files[-1].header.end_offset + 1 if self._files else 0

    # Filling

    def add(self, topic: bytes, properties: bytes, physical_offset: int, store_time: int) -> None:
        """Note a record, in the order of the log, for the next `build`."""
        self._waiting.add([(physical_offset, topic, properties, store_time)], 1)

    def add_many(self, records: Sequence[Noted], count: int) -> None:
        """Note so many records; builds some if too many wait for the next query."""
        self._waiting.add(records, count)
        if self._waiting.count > WAITING_MAX and self.is_loaded:
            # Many at once: thirty take 150 µs, a thousand 500.
            self.build(max(self.waiting - WAITING_MAX, WAITING_MAX // 4), records[-1][3])

    @property
    def waiting(self) -> int:
        """How many records were added and not built."""
        return self._waiting.count

    @property
    def needs_preparation(self) -> bool:
        """Whether the next `build` would take long, unless `prepare` is called in a thread."""
        is_closed = bool(self._files) and self._files[-1].open is None
        return not self.is_loaded or (is_closed and self.waiting > 0)

    def prepare(self) -> None:
        """Load numpy, 100 ms, and if records wait the newest file's slots, 20 MB. For any thread.

        A `build` meanwhile waits for it. An error is left for that to meet.
        """
        from cometmq.store.index.index_hash import make_tables

        make_tables()
        with self._building, suppress(OSError):
            if self._files and self.waiting:
                self._folder.opened(self._files[-1])
        self.is_loaded = True

    def build(self, records_max: int, now_ms: int) -> bool:
        """Index so many of the records that wait, batches whole; whether all are done.

        When the disk refuses it, `write_error` says why, and the keys stay in memory.
        """
        with self._building:
            try:
                self._put(now_ms)  # What the disk refused the last time.
                self._hash(records_max)
                self._put(now_ms)
                sealed = self._write_slots(SLOT_PAGES_A_BUILD)
            except OSError as error:
                self.write_error = error
                return False
            self.write_error = None
            return sealed and not self._waiting.count

    def finish(self, now_ms: int) -> bool:
        """Write everything, the newest file's slots too: for a clean stop. Whether it worked."""
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
        """Hash the keys of records that wait."""
        if noted := self._waiting.take(records_max):
            from cometmq.store.index.index_hash import hash_noted

            self._hashed = hash_noted(noted)
            self.is_loaded = True

    def _put(self, now_ms: int) -> None:
        """Put what is hashed into the newest file, and those that follow when it is full."""
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
        """Return the file that has room, making it when there is none."""
        if self._files and self._files[-1].header.next_item < self._shape.items:
            return self._files[-1]
        self._write_slots()  # The file before had a whole file's time for it.
        return self._folder.make(now_ms)

    def _write_slots(self, pages_max: int | None = None) -> bool:
        """Write slots of the file before the newest; whether that one is done with."""
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
        """Begin to search the records that may have a key.

        Only hashes are compared, and times only to the second: `accept` says by the record itself
        whether it counts. With `kind` "T" the key is the tags of records. What waits to be built
        is not found: build it first.
        """
        hashed = positive_hash(string_hash(query_key(topic, key, kind)))
        wanted = Wanted(hashed, count, begin_ms, end_ms)
        return KeySearch(self._folder, wanted, accept, self._files_without_slots)

    # The disk

    @property
    def settled_offset(self) -> int | None:
        """The physical offset below which every record's keys are in the files; None for any.

        Not what the disk holds: for that, sync what `take_unsynced` then returns.
        """
        bounds = [known.header.end_offset for known in self._files[-2:-1] if known.open]
        if self._hashed is not None:
            bounds.append(int(self._hashed.offsets[0]))
        if (waiting := self._waiting.first_offset) is not None:
            bounds.append(waiting)
        return min(bounds, default=None)

    def sealed_below(self, physical_offset: int) -> tuple[int, int | None]:
        """Tell what of the files is final, if records below an offset count as safe.

        The store time of the last record in files that are full, written out and safe, 0 without
        any; and the physical offset of the first record in a file that is not, None for none.
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
        """Return what was changed since the last time this was asked."""
        return self._folder.take_unsynced()

    def expire(self, min_physical_offset: int) -> list[str]:
        """Forget the files of which no record is in the log any more; never the newest one.

        Returns their paths: they are the caller's to remove, in a thread, for they are large.
        """
        expired: list[str] = []
        while len(self._files) > 1 and self._files[0].header.end_offset < min_physical_offset:
            expired.append(self._folder.path(self._files[0]))
            self._folder.forget(self._files[0])
        return expired

    def close(self) -> None:
        """Close the files; what `finish` did not write has to be recovered."""
        self._folder.close()

    # Opening

    def recover(self, start: int, *, synced: bool, count_sound: CountSound = all_sound) -> int:
        """Repair the files after an unclean stop; returns from where on records must be added.

        `start` is where the store begins to read the log back. `synced` says that the index was
        synced, too, up to there; without it the answer may be lower than `start`. `count_sound`
        says of the last items of a file how many are of the record that they name: a torn item may
        name any.
        """
        self._resume_offset = recover_files(self._folder, start, count_sound, synced=synced)
        return self._resume_offset
