"""What `audit` finds if records and the entries of queues do not agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.pipeline.jobs.tables import named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

RECORDS: Final = "cometmq_audit_records"
ENTRIES: Final = "cometmq_audit_entries"
"""The names of the views that are compared."""
_DELETED: Final = "cometmq_audit_deleted"
_LISTED: Final = "cometmq_audit_listed"
_ENTRY: Final = "concat('of queue ', queue_id, ' of ', topic, ' at offset ', queue_offset"
_ENTRY_FINDINGS: Final = (
    (
        "missing entry",
        # Half messages and those that were rolled back have no entry, nor have records before the
        # mark of a deleted topic. Where deletions are not noted, a topic without any entry counts
        # as deleted, unless the table of topics has it.
        "topic IS NULL AND (begins IS NOT NULL OR place >= noted_from OR is_listed)"
        " AND place <= dispatched"
        " AND place >= coalesce(deleted_to, 0) AND (sys_flag & 12) IN (0, 8)",
        "concat('the record of queue ', record_queue, ' of ', record_topic, ' at offset ',"
        " record_offset, ' has none')",
    ),
    # Records that a broker has dispatched meanwhile are after the end that the log had.
    ("dangling entry", "record_topic IS NULL AND (place < log_end OR is_closed)", f"{_ENTRY})"),
    (
        "wrong entry",
        "topic IS NOT NULL AND record_topic IS NOT NULL AND NOT (topic = record_topic AND"
        " queue_id = record_queue AND queue_offset = record_offset AND size = record_size)",
        f"{_ENTRY}, ' names the record of queue ', record_queue, ' of ', record_topic,"
        " ' at offset ', record_offset, ' of ', record_size, ' bytes')",
    ),
    (
        "wrong tags code",
        # For delayed messages it is a time; up to -2147483649 it is a place in an extension.
        "topic = record_topic AND NOT is_batch AND tags_code <> tag_code"
        " AND topic <> 'SCHEDULE_TOPIC_XXXX' AND tags_code > -2147483649",
        f"{_ENTRY}, ' is ', tags_code, ', the record has ', tag_code)",
    ),
)
"""What may be wrong about an entry, or its absence: the kind, the condition and the text."""
_IN_FRONT: Final = "(found.kind = 'missing entry' AND start < least(begins, noted_from))"
"""Whether a record is before all entries of its topic, and where no deletions were noted."""
_GONE_TO: Final = f"max(CASE WHEN {_IN_FRONT} AND record_offset >= first_offset THEN start END)"
"""The last such record with a number that its queue gave out again: its topic was recreated."""
_IS_GONE: Final = f"({_IN_FRONT} AND (start <= gone_to OR first_offset IS NULL AND gone_to >= 0))"
"""Whether a record belongs to a topic's earlier life; in a queue without entries in the present
life, these are all records before the entries of the other queues."""


def wrong_entries(
    spark: SparkSession,
    first: int,
    dispatched: int,
    log_end: int,
    deleted: Mapping[str, int],
    listed: Iterable[str],
    noted_from: int,
    *,
    is_closed: bool,
) -> DataFrame:
    """Join records and entries, from `first` on, by their place in the log; return the findings.

    `listed` are the topics in the table of topics. `deleted` says up to which place the records of
    topics were deleted; CometMQ notes that for records stored from `noted_from` on. Apache notes
    nothing: a recreated topic is recognized there by its entries, which all follow a record with
    one of their numbers. With `is_closed`, no broker has the store open, and even an entry that
    points past the end of the log is a finding.
    """
    marks = spark.createDataFrame([*deleted.items()], "topic string, deleted_to bigint")
    topics = spark.createDataFrame([(each,) for each in listed], "topic string")
    kinds = " ".join(
        f"WHEN {condition} THEN struct('{kind}' AS kind, {detail} AS detail)"
        for kind, condition, detail in _ENTRY_FINDINGS
    )
    sql = (
        f"SELECT CASE {kinds} END AS found, 'consumequeue' AS file, place AS start,"
        " place AS end, record_topic, record_offset, begins, first_offset, noted_from"
        " FROM (SELECT r.topic AS record_topic, r.queue_id AS record_queue,"
        " r.queue_offset AS record_offset, r.size AS record_size, r.tag_code, r.sys_flag,"
        " e.*, coalesce(r.physical_offset, e.physical_offset) AS place,"
        f" {dispatched}L AS dispatched, {log_end}L AS log_end, {noted_from}L AS noted_from,"
        f" t.begins, q.first_offset, d.deleted_to, l.topic IS NOT NULL AS is_listed,"
        f" {str(is_closed).lower()} AS is_closed"
        f" FROM {RECORDS} r"
        f" FULL JOIN (SELECT * FROM {ENTRIES} WHERE physical_offset >= {first}) e"
        " ON r.physical_offset = e.physical_offset"
        " LEFT JOIN (SELECT topic, min(physical_offset) AS begins"
        # An entry that points past the log says nothing about where a topic begins.
        f" FROM {ENTRIES} WHERE physical_offset < {log_end} GROUP BY topic) t"
        " ON r.topic = t.topic"
        " LEFT JOIN (SELECT topic, queue_id, min(queue_offset) AS first_offset"
        f" FROM {ENTRIES} WHERE physical_offset < {log_end} GROUP BY topic, queue_id) q"
        " ON r.topic = q.topic AND r.queue_id = q.queue_id"
        f" LEFT JOIN {_DELETED} d ON r.topic = d.topic"
        f" LEFT JOIN {_LISTED} l ON r.topic = l.topic)"
    )
    with named(marks, _DELETED), named(topics, _LISTED):
        found = spark.sql(sql)
    wrong = found.where("found IS NOT NULL").selectExpr(
        "*", f"{_GONE_TO} OVER (PARTITION BY record_topic) AS gone_to"
    )
    kept: DataFrame = wrong.where(f"NOT coalesce({_IS_GONE}, false)").selectExpr(
        "found.kind AS kind", "file", "start", "end", "found.detail AS detail"
    )
    return kept
