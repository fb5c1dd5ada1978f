"""Checking ConsumeQueues against the log: every record has its entry, every entry its record.

The records come in the order of the log. Each queue collects the entries that they call for, like a
writer's tail, and compares them with its files tens of kilobytes at a time; single entries are only
looked at where these differ. Ranges of right entries are noted; at the end of the log, all entries
outside these ranges must be explained.

A record may be sound by itself and not be the message that it says: no checksum of the body covers
its topic, queue and number, see `wrong_heads`.

A topic may have been deleted and recreated: then its queue offsets begin again at 0, and records of
the old topic have no entries. So missed entries count only at the end, and not if a later record
that has its entry began again before them.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from cometmq.store.checking.copied_queues import is_copied, report_copy
from cometmq.store.checking.journal_witness import JournalWitness
from cometmq.store.checking.queue_track import NOTHING, Missed, QueueTrack
from cometmq.store.checking.wrong_heads import WrongHeads, is_in
from cometmq.store.log.fillers import is_filler
from cometmq.store.log.log_scan import NEVER
from cometmq.store.looking.findings import Finding, Kind
from cometmq.store.looking.queue_files import AboutQueue
from cometmq.store.looking.right_heads import Place, placed, said_place
from cometmq.store.messages.dispatch import entry_tags_code, has_entry
from cometmq.store.queues.consume_queue import ENTRY, ENTRY_SIZE
from cometmq.store.queues.consume_queue_ext import ConsumeQueueExt, is_address
from cometmq.store.queues.consume_queues import SIMPLE_FOLDER
from cometmq.store.queues.entry_search import PRE_BLANK_SIZE
from cometmq.store.queues.queue_ends import QueueKey
from cometmq.store.queues.record_check import read_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.proto.message import StoredMessage
    from cometmq.store.looking.findings import Report
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.looking.log_check import Damage

COLLECTED_MAX: Final = 3000 * ENTRY_SIZE
"""Bytes of one queue's entries that are compared at a time."""
COLLECTED_TOTAL_MAX: Final = 32 << 20
MISSED_MAX: Final = 200_000
"""Missed entries of a queue that are remembered; a note says how many further ones there are."""


class QueueCheck:
    """The check of all ordinary queues of a store."""

    def __init__(self, store: Inspected, report: Report) -> None:
        self._store = store
        self._report = report
        self.journal = JournalWitness(store)
        self._tracks: dict[tuple[bytes, int], QueueTrack] = {}
        self._collected = 0
        self._damages: list[Damage] = []
        self._end_offset = 0
        """The log's end: known, like its damages, when the pass over the log has ended."""
        self._extension = ConsumeQueueExt(store.filesystem, store.root)
        self._levels = store.delay_levels
        settled = self.journal.settled_offset
        self._settled = settled if settled is not None else NEVER
        self.heads = WrongHeads(store, read_from=self._settled)
        self._root = f"{store.root}/{SIMPLE_FOLDER}"

    def take(self, message: StoredMessage, topic: str) -> None:
        """Take the next record of the log."""
        if not has_entry(message):
            if is_filler(message):
                self.heads.note_filler(message.physical_offset)
            return
        queue_offset = message.queue_offset
        key = (message.topic_raw, message.queue_id)
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = self._track(topic, message.queue_id)
        if queue_offset != track.next:
            self.heads.note_jump(track, message)
        track.last = message.physical_offset
        if not track.exists:
            track.next = queue_offset + 1
            self._miss_all(track, message, topic)
            return
        if queue_offset != track.next or len(track.collected) >= COLLECTED_MAX:
            self._compare(track)
            track.first = queue_offset
        code = entry_tags_code(message, self._levels)
        track.collected += ENTRY.pack(message.physical_offset, message.size, code)
        track.next = queue_offset + 1
        if message.physical_offset < self._settled:
            track.settled_to = track.next
        self._collected += ENTRY_SIZE
        if self._collected > COLLECTED_TOTAL_MAX:
            for each in self._tracks.values():
                self._compare(each)
            self._collected = 0

    def _track(self, topic: str, queue_id: int) -> QueueTrack:
        files = self.journal.files(QueueKey(is_batch=False, topic=topic, queue_id=queue_id))
        track = QueueTrack(AboutQueue(topic, queue_id, files), self._store.start.ours_from)
        if not track.exists:
            track.gone_to = self._store.gone_topics.gone_to(topic)
        return track

    def _miss_all(self, track: QueueTrack, message: StoredMessage, topic: str) -> None:
        """Count a record whose queue has no files; if its topic is gone, it needs none."""
        if not track.missed:
            track.missed.append(Missed(message.queue_offset, b"", NOTHING))
        if message.physical_offset < track.gone_to:
            self._report.records_of_deleted_topics += 1
        elif message.physical_offset >= self._settled or topic in self.journal.batch_topics:
            self._report.unsettled_entries += 1
        else:
            self._report.add(
                Finding(
                    kind=Kind.MISSING_ENTRY,
                    path=track.files.folder,
                    position=0,
                    problem="the queue has no file; `cometmq store rebuild` rebuilds it",
                    physical_offset=message.physical_offset,
                    topic=topic,
                    queue_id=message.queue_id,
                    queue_offset=message.queue_offset,
                )
            )

    # Comparing

    def _compare(self, track: QueueTrack) -> None:
        expected, first = bytes(track.collected), track.first
        if not expected:
            return
        track.collected.clear()
        self._report.entries += len(expected) // ENTRY_SIZE
        found = track.files.read(first, len(expected) // ENTRY_SIZE)
        track.files.close()  # There may be more queues than a process may have open files.
        if found == expected:
            track.note_matched(first, first + len(expected) // ENTRY_SIZE)
            return
        for place in range(0, len(expected), ENTRY_SIZE):
            index = first + place // ENTRY_SIZE
            wanted, there = expected[place : place + ENTRY_SIZE], found[place : place + ENTRY_SIZE]
            if there == wanted or self._is_extended(track, wanted, there):
                track.note_matched(index, index + 1)
            elif int.from_bytes(wanted[:8], "big") >= self._settled:
                self._report.unsettled_entries += 1
            elif len(track.missed) < MISSED_MAX:
                track.missed.append(Missed(index, wanted, there))
            else:
                track.unnamed += 1
                track.unnamed_to = int.from_bytes(wanted[:8], "big")

    def _is_extended(self, track: QueueTrack, wanted: bytes, there: bytes) -> bool:
        """Whether an entry differs only by having the address of a unit with the tags code."""
        physical_offset, size, code = ENTRY.unpack(wanted)
        address: int = ENTRY.unpack(there)[2]
        if there[:12] != wanted[:12] or not is_address(address):
            return False
        unit = self._extension.unit(track.queue.topic, track.queue.queue_id, address)
        if unit is None or unit.tags_code != code:
            return False
        record = read_record(self._store.segments, physical_offset, size)
        return record is not None and record.store_timestamp == unit.store_time

    # The end

    def finish(
        self, damages: list[Damage], end_offset: int, queues: Iterator[tuple[str, int, str]]
    ) -> Iterator[None]:
        """Report what is missing, and what is there without reason; one queue a step."""
        self._damages, self._end_offset = damages, end_offset
        if damages:
            self.heads.doubt_order()
        else:
            self.heads.fill_holes(self._tracks)
        tracks: dict[str, QueueTrack] = {}
        for track in self._tracks.values():
            self._compare(track)
            tracks[track.files.folder] = track
        seen: set[str] = set()
        for topic, queue_id, folder in chain(queues, self._in_journal()):
            if folder in seen:
                continue
            seen.add(folder)
            track = tracks.pop(folder) if folder in tracks else self._track(topic, queue_id)
            track.queue.report_files(self._report)
            self._report_missed(track)
            self._report_extra(track)
            track.files.close()
            yield
        for track in tracks.values():  # Queues without a folder.
            track.queue.report_files(self._report)
        self._extension.close()

    def _in_journal(self) -> Iterator[tuple[str, int, str]]:
        """Walk the queues of the entry journal, which need not have a folder yet."""
        for key in self.journal.keys:
            if not key.is_batch:
                yield key.topic, key.queue_id, f"{self._root}/{key.topic}/{key.queue_id}"

    def notes(self) -> Iterator[str]:
        """Name the queues of which not all missed entries are findings."""
        for each in self._tracks.values():
            if each.unnamed:
                name = f"{each.queue.topic} queue {each.queue.queue_id}"
                yield (
                    f"{name} has {each.unnamed} more entries that are missing or wrong, behind"
                    f" the first {MISSED_MAX}: these alone are counted as such"
                )

    def gaps(self) -> Iterator[str]:
        """Say which messages the log lacks, unless `heads` found a reason."""
        for (topic, queue_id), track in () if self.heads.found else self._tracks.items():
            first, end = track.gap
            if first < end:
                name = f"{topic.decode('utf-8', 'replace')} queue {queue_id}"
                yield f"missing from the log: {name} offset {first} to {end - 1}"

    def mixed(self) -> list[str]:
        """Return the queues in which messages of a deleted topic follow later ones."""
        tracks = self._tracks.values()
        return [f"{each.queue.topic}/{each.queue.queue_id}" for each in tracks if each.is_mixed]

    def _report_missed(self, track: QueueTrack) -> None:
        last, last_offset = track.last_matched()
        for missed in track.missed if track.exists else ():
            is_taken = is_in(track.matched, missed.index)
            if is_taken and missed.physical_offset < track.ours_from:
                continue
            physical_offset, size, code = ENTRY.unpack(missed.expected)
            kind = Kind.MISSING_ENTRY if missed.found == NOTHING else Kind.WRONG_ENTRY
            is_missing = kind is Kind.MISSING_ENTRY
            found = "there is none" if is_missing else _differences(missed.found, missed.expected)
            if is_taken:
                kind = Kind.OFFSET_TWICE
                found = f"the offset was given out again, to another message ({found})"
            elif missed.is_blank and missed.index < track.gap[1] <= track.first_matched():
                kind = Kind.OUT_OF_REACH
                found = (
                    f"messages up to {track.gap[1] - 1} are missing from the log, and the queue"
                    " begins after them"
                )
            elif last < missed.index and track.ours_from <= physical_offset < last_offset:
                kind = Kind.OFFSET_TWICE
                found = f"the offsets of the queue began again after this message ({found})"
            finding = track.queue.finding(
                kind,
                missed.index,
                found,
                f"physical offset {physical_offset}, size {size}, tags code {code}",
                physical_offset,
            )
            self._report.add(finding)

    def _report_extra(self, track: QueueTrack) -> None:
        wrong = {missed.index for missed in track.missed}
        first_offset = self._store.segments.first_offset
        deleted_to = self._store.deletions.deleted_to(track.queue.topic)
        for index, entry in track.files.entries_outside(sorted(track.matched)):
            physical_offset, size, _ = ENTRY.unpack(entry)
            if index in wrong or (size == PRE_BLANK_SIZE and physical_offset == 0):
                continue
            if 0 <= physical_offset < first_offset:
                continue  # Expired.
            if physical_offset >= self._settled or physical_offset < deleted_to:
                track.is_mixed |= physical_offset < deleted_to and index < track.last_matched()[0]
                self._report.unsettled_entries += 1
                continue
            self._report_one_extra(track, index, entry)

    def _report_one_extra(self, track: QueueTrack, index: int, entry: bytes) -> None:
        physical_offset, size, _ = ENTRY.unpack(entry)
        if any(damage.start <= physical_offset < damage.end for damage in self._damages):
            problem = f"the record of {size} bytes that it leads to is damaged"
            self._report.add(
                track.queue.finding(Kind.LOST_MESSAGE, index, problem, "", physical_offset)
            )
            return
        record = read_record(self._store.segments, physical_offset, size)
        original = None if record is None else self._copied(track, index, record, entry)
        if original is not None:
            report_copy(self._report, track.files.folder, original.topic, original.queue_id)
            return
        if index >= track.settled_to and not self._store.is_clean:
            self._report.unsettled_entries += 1  # A torn entry: the next start cuts it off.
            return
        kind = Kind.EXTRA_ENTRY
        if physical_offset >= self._end_offset:
            problem = f"leads past the end of the log, which is at {self._end_offset}"
        elif record is None or record.physical_offset != physical_offset:
            problem = f"leads to {size} bytes that are not a record"
        elif self._is_wrong(track, index, record):
            kind = Kind.LOST_MESSAGE
            problem = f"the record that it leads to says that it is {said_place(record)}"
            place = Place(track.queue.topic, track.queue.queue_id, index)
            truth = place if self._calls_for(track, record, place, entry) else None
            self.heads.note(record, f"the entry of {place} leads to it", truth)
        else:
            problem = f"leads to a record of {said_place(record)}"
        self._report.add(track.queue.finding(kind, index, problem, "", physical_offset))

    def _copied(
        self, track: QueueTrack, index: int, record: StoredMessage, entry: bytes
    ) -> AboutQueue | None:
        """Return the queue of which one without a record in the log has the very same entry."""
        said = self._tracks.get((record.topic_raw, record.queue_id))
        if said is None or track.last >= 0 or record.queue_offset != index:
            return None
        return said.queue if is_copied(entry, index, said.files) else None

    def _is_wrong(self, track: QueueTrack, index: int, record: StoredMessage) -> bool:
        said = self._tracks.get((record.topic_raw, record.queue_id))
        return said is not None and self.heads.is_wrong(track, index, said, record)

    def _calls_for(
        self, track: QueueTrack, record: StoredMessage, place: Place, entry: bytes
    ) -> bool:
        """Whether a record that says it is another message calls for exactly this entry."""
        message = placed(record, place)
        if message is None:
            return False
        code = entry_tags_code(message, self._levels)
        wanted = ENTRY.pack(message.physical_offset, message.size, code)
        return entry == wanted or self._is_extended(track, wanted, entry)


def _differences(found: bytes, expected: bytes) -> str:
    """Say which fields differ, and what is in them."""
    names = ("physical offset", "size", "tags code")
    pairs = zip(names, ENTRY.unpack(found), ENTRY.unpack(expected), strict=True)
    return ", ".join(f"{name} is {there}" for name, there, wanted in pairs if there != wanted)
