"""`audit`: whether a store is sound, without its broker.

::

    cometmq pipeline audit --store /var/lib/cometmq/store --report audit.json

What is looked at is said by `check`, of which the names are those of `CHECKS`. Nothing is written
to the store and nothing is locked; of one that a broker has open, the state is judged that the log
had when the job began. What stands behind the last sound record, a torn tail or a record that is
being written, is no finding: its file is `open`, and so is the last one of a store that a broker
has open or was killed with. Behind a clean stop each file is `sound`, or `damaged`.

    log         each record is where the one before it ends, and says that it is there; the bodies
                have the checksums that were stored with them
    blocks      the sealed blocks of a store of CometMQ have the checksums in `integrity/`, which
                cover what those of bodies do not; where tasks have `crc32c`
    gaps        the offsets of a queue follow one another, from its first record to its last
    queues      each record of a queue has its entry, each entry names its record and has the hash
                of its tags; but for what expired, and for what is not dispatched yet: that is what
                stands behind the last entry or, while the store is open (a broker has it, or was
                killed), behind what the checkpoint says is complete
    index       each item of the index names a record, and its files are as long as they must be
    checkpoint  it says no more than the log has; with `queues`, records that have their entries by
                what it says have them

`since` passes over the files in front of the one in which the first record of that time may be, and
judges the rest. `sample` is for checksums alone: all else is judged as a whole.

Findings have a `kind`, a place, and say what is wrong; they end the job with status 1.
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
"""What is counted of each part of the log."""
_FINDING: Final = ("kind", "file", "start", "end", "detail")
"""The columns of a finding."""
_FINDINGS: Final = "kind string, file string, start bigint, end bigint, detail string"
"""The same with their types."""
_NOTHING: Final = (
    "SELECT '' AS kind, '' AS file, 0L AS start, 0L AS end, '' AS detail,"
    " 0L AS count, 0L AS size, 0L AS compared, 0L AS blocks WHERE false"
)
"""No findings, and none of what stands between them: the parts of the log, of which records and
bytes are counted."""


def audit(spark: SparkSession, settings: AuditSettings, run: Run | None = None) -> Report:
    """Judge a store; the report's outcome is FINDINGS when something is wrong."""
    run = run or Run()
    report = run.report_of("audit")
    with running(spark, report), settings.results.held(spark, run):
        checks = settings.checks
        was_open = is_open(settings.store)  # Before anything is read of it.
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
    """What was known of a store when the job began."""

    log: Log
    first: int
    """Where in the log the files begin that are looked at."""
    claimed: Claimed | None
    """What its checkpoint says, if that is to be judged."""
    known: Claimed
    """What it says, for the checks that go by it, of a local store."""
    was_open: bool
    """Whether a broker may have had it open."""


class _Audit:
    """One store that is being judged."""

    def __init__(
        self,
        spark: SparkSession,
        settings: AuditSettings,
        run: Run,
        report: Report,
        store: _Store,
        until: ExitStack,
    ) -> None:
        """`until` its end Spark keeps what is looked at several times."""
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
                # Others note no blocks where they write.
                blocks=str("blocks" in checks and self.store.known.written_by == OURS).lower(),
                sample=self.settings.sample,
            )
            if "gaps" in checks:  # Else it is read once.
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
            # What is damaged is a finding, where the log is checked; else it is told once.
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
        """Compare each run of a queue's offsets with the one before it in the log.

        A run that begins with 0 is that of a topic that was deleted and made again. Offsets of
        batches count otherwise; those the entries tell.
        """
        self.until.enter_context(named(survey.where("kind = 'run'"), "cometmq_audit_runs"))
        batches = ", ".join(f"'{name}'" for name in folders_of(self.settings.store, BATCH))
        found: DataFrame = self.spark.sql(
            "SELECT 'gap' AS kind, file, start, start AS end,"
            " format_string('queue %d of %s goes on at %d behind %d',"
            " queue_id, topic, first, expected - 1) AS detail FROM ("
            " SELECT *, lag(try_add(first, count))"  # Of a damaged head that may be no number.
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
        # Behind the entries, for a topic may be deleted meanwhile.
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
        """Return up to where records must have their entries, those that begin there included.

        Entries come in the order of the log: what stands behind the last is not dispatched yet, but
        for what the checkpoint says was. A broker writes them to one queue before another, and
        later than it has them, and queues are read one after the other: so of a store that is open
        the last entry says nothing of other queues, and what the checkpoint said before is all.
        """
        (row,) = entries.selectExpr("max(physical_offset) AS last").collect()
        if self._is_open():  # They are read by now.
            return self.store.known.entries_to - 1
        claimed = self.store.claimed.entries_to - 1 if self.store.claimed is not None else -1
        return max(-1 if row["last"] is None else row["last"], claimed)

    def _is_open(self) -> bool:
        """Whether a broker has had the store open since the job began, or was killed with it."""
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
        """Look for files of the index that have lost their end, behind a clean stop.

        A broker may be making the last ones, or have been killed at that.
        """
        from cometmq.pipeline.store_source import index_files

        if self._is_open():
            return []
        shape, sizes = index_files(self.settings.store)
        return [
            (
                *("short index", name, size, shape.file_size),
                f"has {size} bytes, where {shape.slots} slots and {shape.items} items make"
                f" {shape.file_size}",
            )
            for name, size in sizes.items()
            if shape is not None and size < shape.file_size
        ]

    def _conclude(self) -> None:
        """Collect the findings, and say of each file what it is."""
        report, settings = self.report, self.settings
        every = self.spark.sql(_NOTHING)
        for found in self.found:
            every = every.unionByName(found, allowMissingColumns=True)
        # Those of the log alone are seldom any, and read again to be shown; what is written must
        # be what was counted.
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
                # Its reader looked later, and so did the broker go on.
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
        if settings.has_survey:  # Others read none as such.
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
            return "open"  # A torn tail, or what is being written.
        return "open" if is_open and log.end >= file.start else "sound"


def _known_claims(settings: AuditSettings) -> Claimed:
    """Return what the checkpoint says where nobody asked to have it judged, if others need it."""
    is_asked = not {"blocks", "queues"}.isdisjoint(settings.checks) and "://" not in settings.store
    return read_claims(settings.store) if is_asked else Claimed(settings.store, None)


def _by_file(every: DataFrame) -> list[Row]:
    """Count what was found by kind and file; that is all, where nothing is wrong."""
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
