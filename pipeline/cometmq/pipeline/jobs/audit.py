"""`audit`: check whether a store is sound, without its broker.

::

    cometmq pipeline audit --store /var/lib/cometmq/store --report audit.json

The setting `check` chooses among `CHECKS`. Nothing is written to the store and nothing is locked.
If a broker has the store open, the log is checked as it was when the job began. Anything after the
last sound record, such as a torn tail or a record that is being written, is no finding: its file is
`open`. So is the last file of a store that a broker has open, or had when it was killed. After a
clean stop, each file is `sound` or `damaged`.

    log         each record begins where the previous one ends, and has that offset; it has
                the checksums that are stored with it: that of its body, and its own if there is one
    blocks      the sealed blocks of a CometMQ store have the checksums in `integrity/`, which cover
                what those in records may not; only if tasks have `crc32c`
    gaps        the offsets of a queue are consecutive, from its first record to its last
    queues      each record of a queue has its entry; each entry names its record and has the hash
                of its tags. Except for what has expired, and for what is not dispatched yet: that
                is what follows the last entry or, while the store is open (a broker has it, or was
                killed), what follows the part that the checkpoint says is complete
    index       each item of the index names a record, and the files have the right length
    checkpoint  it claims no more than the log has; with `queues`, records that have entries by its
                claims do have them

`since` skips the files before the one that may have the first record of that time, and checks the
rest. `sample` only applies to checksums: everything else is checked in full.

A finding has a `kind`, a place, and a text that says what is wrong; findings end the job with
status 1.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.pipeline.jobs.audit_entries import ENTRIES, RECORDS, wrong_entries
from cometmq.pipeline.jobs.audit_settings import AuditSettings
from cometmq.pipeline.jobs.checkpoint_claims import (
    OURS,
    Claimed,
    read_claims,
    read_topics,
    wrong_claims,
)
from cometmq.pipeline.jobs.job import Job, Run, running
from cometmq.pipeline.jobs.report import Outcome, Report
from cometmq.pipeline.jobs.tables import kept, named
from cometmq.pipeline.jobs.tag_codes import with_tag_codes
from cometmq.pipeline.store.files import folders_of, is_open
from cometmq.pipeline.store.index import index_files
from cometmq.pipeline.store.places import first_since
from cometmq.pipeline.store.queues import BATCH
from cometmq.pipeline.store.splits import look

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from cometmq.pipeline.store.splits import Log

__all__ = ("JOB", "AuditSettings", "audit")

_NO_CRC32C: Final = (
    "the sealed blocks are not compared: install crc32c where tasks run, or run `cometmq store"
    " verify`"
)
_COUNTED: Final = ("count", "size", "compared", "blocks")
"""What is counted for each part of the log."""
_FINDING: Final = ("kind", "file", "start", "end", "detail")
"""The columns of a finding."""
_FINDINGS: Final = "kind string, file string, start bigint, end bigint, detail string"
"""The same with their types."""
_NOTHING: Final = (
    "SELECT '' AS kind, '' AS file, 0L AS start, 0L AS end, '' AS detail,"
    " 0L AS count, 0L AS size, 0L AS compared, 0L AS blocks WHERE false"
)
"""An empty table of findings, and of the rows between them: parts of the log, with their counts of
records and bytes."""


def audit(spark: SparkSession, settings: AuditSettings, run: Run | None = None) -> Report:
    """Check a store; the report's outcome is FINDINGS if something is wrong."""
    run = run or Run()
    report = run.report_of("audit")
    with running(spark, report), settings.results.held(spark, run):
        checks = settings.checks
        was_open = is_open(settings.store)  # Before anything of it is read.
        claimed = read_claims(settings.store) if "checkpoint" in checks else None
        known = claimed or _known_claims(settings)
        log = look(settings.store)
        since = settings.since_ms()
        first = log.first if since is None else first_since(log, since)
        report.details |= {"store": settings.store, "checks": list(checks)}
        report.details |= {"first": first, "end": log.end}
        if run.dry_run:
            report.details["would_read"] = log.end - first
            return report
        store = _Store(log, first, claimed, known, was_open=was_open)
        with ExitStack() as until:
            _Audit(spark, settings, run, report, store, until).judge(checks)
    return report


class _Store(NamedTuple):
    """What was known about a store when the job began."""

    log: Log
    first: int
    """Where in the log the checked files begin."""
    claimed: Claimed | None
    """What its checkpoint claims, if that is to be checked."""
    known: Claimed
    """What its checkpoint claims, for other checks that rely on it; only for a local store."""
    was_open: bool
    """Whether a broker may have had it open."""


class _Audit:
    """The check of one store."""

    def __init__(
        self,
        spark: SparkSession,
        settings: AuditSettings,
        run: Run,
        report: Report,
        store: _Store,
        until: ExitStack,
    ) -> None:
        """Prepare; at the end of `until`, Spark drops the tables that it caches."""
        self.spark = spark
        self.settings = settings
        self.run = run
        self.report = report
        self.store = store
        self.log = store.log
        self.first = store.first
        self.until = until
        self.found: list[DataFrame] = []
        self.has_told_of_damage = "log" in settings.checks

    def judge(self, checks: tuple[str, ...]) -> None:
        if self.settings.has_survey:
            survey = self._read(
                "survey",
                checksums=str("log" in checks).lower(),
                runs=str("gaps" in checks).lower(),
                # Other writers leave no block checksums.
                blocks=str("blocks" in checks and self.store.known.written_by == OURS).lower(),
                sample=self.settings.sample,
            )
            if "gaps" in checks:  # Otherwise it is read only once.
                survey = kept(survey, self.until)
                self.found.append(self._gaps(survey))
            kinds = "'part', 'block'" + ", 'damage'" * ("log" in checks)
            columns = ("kind", "file", "start", "end", "reason AS detail", *_COUNTED)
            self.found.append(survey.where(f"kind IN ({kinds})").selectExpr(*columns))
        if "queues" in checks:
            self.found.append(self._queues())
        if "index" in checks:
            short = self.spark.createDataFrame(self._short_index_files(), _FINDINGS)
            self.found += [self._index(), short]
        if self.store.claimed is not None:
            self.report.details["checkpoint"] = self.store.claimed.written_by
            wrong = wrong_claims(self.store.claimed, self.log, self._latest_ms)
            self.found.append(self.spark.createDataFrame(wrong, _FINDINGS))
        self._conclude()

    def _read(self, view: str, **options: object) -> DataFrame:
        reading = self.spark.read.format("cometmq-store").option("view", view)
        options = {
            "splitBytes": self.settings.split_size or 0,
            "firstOffset": self.first,
            # If the log is checked, damage is a finding; otherwise it is reported once.
            "onDamage": "silent" if self.has_told_of_damage else "skip",
            **options,
        }
        self.has_told_of_damage |= view == "records"
        for name, value in options.items():
            reading = reading.option(name, value)
        frame: DataFrame = reading.load(self.settings.store)
        return frame

    def _latest_ms(self) -> int:
        """Return the latest store time of all records; -1 without one."""
        times = self._read("records", columns="store_time", unwrap="false", checksums="false")
        (row,) = times.selectExpr("unix_millis(max(store_time)) AS ms").collect()
        return -1 if row["ms"] is None else int(row["ms"])

    def _gaps(self, survey: DataFrame) -> DataFrame:
        """Compare each run of a queue's offsets with the previous run in the log.

        A run that begins with 0 belongs to a topic that was deleted and made again. Offsets of
        batches count differently; for these there are the entries.
        """
        self.until.enter_context(named(survey.where("kind = 'run'"), "cometmq_audit_runs"))
        batches = ", ".join(f"'{name}'" for name in folders_of(self.settings.store, BATCH))
        found: DataFrame = self.spark.sql(
            "SELECT 'gap' AS kind, file, start, start AS end,"
            " format_string('queue %d of %s continues at %d after %d',"
            " queue_id, topic, first, expected - 1) AS detail FROM ("
            " SELECT *, lag(try_add(first, count))"  # With a damaged head, this may overflow.
            " OVER (PARTITION BY topic, queue_id ORDER BY start) AS expected"
            " FROM cometmq_audit_runs)"
            " WHERE expected IS NOT NULL AND first <> expected AND first <> 0"
            + (f" AND topic NOT IN ({batches})" if batches else "")
        )
        return found

    def _queues(self) -> DataFrame:
        """Join records and entries by their place in the log."""
        columns = "topic, queue_id, queue_offset, physical_offset, size, sys_flag, tag"
        records = self._read("records", columns=columns, unwrap="false", checksums="false")
        self.until.enter_context(named(with_tag_codes(records), RECORDS))
        entries = self._read("queues").where(f"physical_offset >= {self.log.first}")
        entries = kept(entries, self.until)
        self.until.enter_context(named(entries, ENTRIES))
        dispatched = self._dispatched(entries)
        # After the entries, as a topic may be deleted meanwhile.
        return wrong_entries(
            self.spark,
            self.first,
            dispatched,
            self.log.end,
            *read_topics(self.settings.store),
            self.store.known.ours_from,
            is_closed=not self._is_open(),
        )

    def _dispatched(self, entries: DataFrame) -> int:
        """Return the last position in the log at which a record must have its entry.

        Entries are made in the order of the log: a record after the last entry is not dispatched
        yet, unless the checkpoint says so. But a broker writes entries late, one queue before
        another, and queues are read one after the other. So if the store is open, the last entry
        says nothing about other queues, and only the checkpoint's earlier claim counts.
        """
        (row,) = entries.selectExpr("max(physical_offset) AS last").collect()
        if self._is_open():  # Asked after the entries have been read.
            return self.store.known.entries_to - 1
        claimed = self.store.claimed.entries_to - 1 if self.store.claimed is not None else -1
        return max(-1 if row["last"] is None else row["last"], claimed)

    def _is_open(self) -> bool:
        """Whether a broker has had the store open since the job began, or was killed before."""
        return self.store.was_open or is_open(self.settings.store)

    def _index(self) -> DataFrame:
        """Look for the record of each item."""
        records = self._read(
            "records", columns="physical_offset", unwrap="false", checksums="false"
        )
        items = self._read("index").where(
            f"physical_offset >= {self.first} AND physical_offset < {self.log.end}"
        )
        lost: DataFrame = items.join(records, "physical_offset", "left_anti").selectExpr(
            "'dangling item' AS kind",
            "file",
            "physical_offset AS start",
            "physical_offset AS end",
            "concat('item ', item, ' names no record') AS detail",
        )
        return lost

    def _short_index_files(self) -> list[tuple[str, str, int, int, str]]:
        """Look for index files that have lost their end, after a clean stop.

        Otherwise a broker may be making the last ones, or was killed while doing so.
        """
        if self._is_open():
            return []
        shape, sizes = index_files(self.settings.store)
        return [
            (
                *("short index", name, size, shape.file_size),
                f"has {size} bytes, but {shape.slots} slots and {shape.items} items make"
                f" {shape.file_size}",
            )
            for name, size in sizes.items()
            if shape is not None and size < shape.file_size
        ]

    def _conclude(self) -> None:
        """Collect the findings, and note the verdict on each file."""
        report, settings = self.report, self.settings
        every = self.spark.sql(_NOTHING)
        for found in self.found:
            every = every.unionByName(found, allowMissingColumns=True)
        # Findings of the log alone are rare, and are read again to show them; but findings that are
        # written must be the ones that were counted.
        if settings.checks != ("log",) or settings.findings:
            every = kept(every, self.until)
        kinds: dict[str, int] = {}
        damaged: set[str] = set()
        compared = 0
        blocks: int | None = 0
        for row in _by_file(every):
            if row["kind"] == "part":
                report.rows += row["records"]
                report.count_bytes(row["bytes"])
                compared += row["compared"]
                blocks = None if row["blocks"] is None or blocks is None else blocks + row["blocks"]
                # Spark's reader looked later, and the broker may have continued.
                report.details["end"] = max(report.details["end"], row["end"])
            else:
                kinds[row["kind"]] = kinds.get(row["kind"], 0) + row["rows"]
                damaged.add(row["file"])
        if "log" in settings.checks:
            report.details["sample"] = settings.sample
            report.details["checksums_compared"] = compared
        if "blocks" in settings.checks:
            report.details["blocks_compared"] = blocks
            if blocks is None:
                self.run.tell(warning=_NO_CRC32C)
        if settings.has_survey:  # Other checks do not read the log itself.
            report.count_bytes(0)
            self.run.tell(records=report.rows, bytes=report.size)
        findings = every.where("kind <> 'part'").select(*_FINDING).orderBy("start", "kind")
        if settings.findings:
            settings.results.write(findings)
        report.details["findings"] = sum(kinds.values())
        report.details["kinds"] = kinds
        report.details["shown"] = [
            row.asDict() for row in (findings.limit(settings.shown).collect() if kinds else ())
        ]
        is_open = self._is_open()
        report.details["files"] = {
            file.path: self._verdict(file, damaged, is_open=is_open) for file in self.log.files
        }
        report.outcome = Outcome.FINDINGS if kinds else Outcome.DONE

    def _verdict(self, file: Any, damaged: set[str], *, is_open: bool) -> str:
        log = self.log
        if file.path in damaged:
            return "damaged"
        if file.start + file.size <= self.first:
            return "passed over"
        if log.end >= file.start + file.size:
            return "sound"
        if log.data_end > max(log.end, file.start):
            return "open"  # A torn tail, or a record that is being written.
        return "open" if is_open and log.end >= file.start else "sound"


def _known_claims(settings: AuditSettings) -> Claimed:
    """Return what the checkpoint claims if other checks rely on it, even if it is not checked."""
    is_asked = not {"blocks", "queues"}.isdisjoint(settings.checks) and "://" not in settings.store
    return read_claims(settings.store) if is_asked else Claimed(settings.store, None)


def _by_file(every: DataFrame) -> list[Row]:
    """Count what was found by kind and file; if nothing is wrong, that is all there is."""
    from pyspark.sql.functions import expr

    counted = every.groupBy("kind", "file").agg(
        expr("count(*) AS rows"),
        expr("sum(count) AS records"),
        expr("sum(size) AS bytes"),
        expr("sum(compared) AS compared"),
        expr("sum(blocks) AS blocks"),
        expr("max(end) AS end"),
    )
    found: list[Row] = counted.collect()
    return found


def _look(settings: AuditSettings) -> None:
    look(settings.store)
    settings.results.look()


JOB: Final = Job(
    "audit",
    AuditSettings,
    audit,
    "Check the files of a store, without its broker.",
    about=(
        "Works on stores of CometMQ and of Apache RocketMQ, in parallel, and changes nothing."
        " The exit status is 1 if anything is wrong. `cometmq store verify` checks more, on one"
        " core, and says what to do."
    ),
    examples=(
        "audit --store /var/lib/cometmq",
        "audit --store /var/lib/cometmq --check log --sample 0.1 --report audit.json",
    ),
    goes_on=False,
    holds=lambda settings: settings.results.places,
    look=_look,
)
