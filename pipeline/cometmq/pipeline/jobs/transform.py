"""`transform`: topic to topic with SQL; messages that do not fit a schema are put aside.

The SQL sees a view `messages`: the source's columns, the body as text in `text`, and, with a
schema, the contents of a JSON body in `value`. It returns the columns of the sink, such as `body`
and `to_topic`.

With a schema, bodies that do not fit it (see `json_bodies.py`) go to the dead-letter topic, if any,
with the reason in the property `DEAD_LETTER_REASON`; the SQL does not see them, and the stream
continues. Without that topic, the SQL sees them with `value` null as a whole.

The rows must keep the source's `topic`, `broker`, `queue_id` and `queue_offset`, by which a row
that is sent again is recognized. They must also keep `store_time` if the job continues with topics
that were deleted and recreated, whose offsets occur again, and from then on always (`timed_rows`).
SQL that combines messages is refused (`stateless`), as is SQL that would choose other rows the next
time (`repeatable`). It may call Python functions that `udf` names (`functions`). The report says in
`written` how many rows went to which topic.

Writing to a topic that is read is refused, except with `force`: the stream would feed itself. It is
refused before the start if it is known then; otherwise a row with such a `to_topic` ends the job.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.columns import ALWAYS_TIMED
from cometmq.pipeline.errors import OptionError, SinkError
from cometmq.pipeline.jobs import functions as python_functions
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.hidden_queues import tell_of_unread
from cometmq.pipeline.jobs.holding import STREAM, Places, held, in_folders
from cometmq.pipeline.jobs.job import Job, Run, running, setting
from cometmq.pipeline.jobs.json_bodies import with_text, with_value
from cometmq.pipeline.jobs.repeatable import require_repeatable
from cometmq.pipeline.jobs.spark_errors import told_as
from cometmq.pipeline.jobs.stateless import require_query, require_stateless
from cometmq.pipeline.jobs.streams import (
    ROWS_OF_BATCH,
    StreamSettings,
    check_checkpoint,
    counted,
    look_for_topics,
    query_id,
    read_stream,
    run_batches,
    would_read,
)
from cometmq.pipeline.jobs.tables import named
from cometmq.pipeline.jobs.timed_rows import TIME, drop_plan, note_timed, plan_timed, refuse_untimed
from cometmq.pipeline.jobs.topic_names import check_written
from cometmq.pipeline.options import write_options
from cometmq.pipeline.rows import row_form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.report import Report

_COORDINATES: Final = ("topic", "broker", "queue_id", "queue_offset")
_VIEW: Final = "messages"
_ROUTES_MAX: Final = 1000
"""How many topics the report lists with their numbers of rows."""
_REASON: Final = "DEAD_LETTER_REASON"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSettings(StreamSettings):
    """What to transform, how, and where to."""

    topic: str = setting("The topics to read, separated by commas.", metavar="TOPIC[,...]")
    sql: str = setting("A SELECT from `messages`, or @FILE for a file that contains one.")
    to_topic: str = setting("The topic for rows that have no column `to_topic`.", "")
    schema: str = setting(
        "The columns of JSON bodies, in Spark's DDL: 'id BIGINT, amount DOUBLE'.", ""
    )
    dead_letter: str = setting("The topic for messages whose body does not fit --schema.", "")
    udf: tuple[str, ...] = setting(
        "A Python function to use in the SQL; repeatable.", (), metavar="MODULE:FUNCTION"
    )
    max_rows: int = setting(ROWS_OF_BATCH, 100_000)
    force: bool = setting("Allow writing to a topic that is also read.", False)

    def __post_init__(self) -> None:
        StreamSettings.__post_init__(self)
        check_written("to-topic", self.to_topic)
        check_written("dead-letter", self.dead_letter)
        if not self.force:
            self.refuse_sources("to_topic", "dead_letter")
        if self.dead_letter and not self.schema:
            raise OptionError("dead-letter: without a schema every body fits; give a schema, too")
        python_functions.check_names(self.udf)
        self.read_sql()

    def read_sql(self) -> str:
        """Return the SQL, reading its file if necessary."""
        if not self.sql.startswith("@"):
            return self.sql
        try:
            return Path(self.sql[1:]).read_text("utf-8")
        except OSError as error:
            raise OptionError(f"sql: {self.sql[1:]}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise OptionError(f"sql: {self.sql[1:]}: not UTF-8 text ({error.reason})") from None


def transform(spark: SparkSession, settings: TransformSettings, run: Run | None = None) -> Report:
    """Transform once or continuously, as `trigger` says."""
    run = run or Run()
    report = run.report_of("transform", counts_bytes=True)
    transforming = _Transforming(spark, settings, report)
    checkpoint = Folder(spark, settings.checkpoint)
    with (
        running(spark, report),
        held(run, report.job, *in_folders(spark, _holds(settings))),
        python_functions.known(spark, settings.udf),
    ):
        stream = read_stream(spark, settings)
        columns = report.details["columns"] = transforming.check(stream)
        check_checkpoint(checkpoint, run, report)
        if TIME not in columns:
            refuse_untimed(checkpoint)
        if run.dry_run:
            report.details["would_read"] = would_read(spark, settings)
            return report
        report.details |= {"written": {}, "dead_letters": 0}
        stream = counted(stream, settings)
        timed = plan_timed(checkpoint) if TIME in columns else None
        if timed is None:
            drop_plan(checkpoint)
        note = cache(note_timed)

        def put(batch: DataFrame, batch_id: int) -> None:
            if timed is not None:
                note(checkpoint, timed)
            transforming.batch(batch, is_timed=timed is not None and batch_id >= timed)

        run_batches(stream, put, settings, run, report)
        tell_of_unread(settings, checkpoint, run)
    return report


class _Transforming:
    """One running transformation."""

    def __init__(self, spark: SparkSession, settings: TransformSettings, report: Report) -> None:
        self.spark = spark
        self.settings = settings
        self.report = report
        self.sql = settings.read_sql()
        self.looks_once = not settings.dead_letter and _names_once(self.sql)
        """Whether a batch is read only once, so that it need not be cached."""
        self.is_timed = False
        """Whether all rows ever sent of the current batch have their store time."""

    def check(self, stream: DataFrame) -> list[str]:
        """Check the SQL and return its columns."""
        with named(stream, _VIEW):  # The view of a batch is in the stream's own session.
            return self._check(stream)

    def _check(self, stream: DataFrame) -> list[str]:
        with told_as("sql"):
            require_query(self.spark, self.sql)
            selected = self._selected(self._parsed(stream))
            columns = selected.columns
        require_stateless(selected)
        require_repeatable(selected)
        row_form(selected.schema, write_options(self._target(columns)))
        if missing := [name for name in _COORDINATES if name not in columns]:
            raise OptionError(
                f"sql: the rows have no {', '.join(missing)}, by which a row that is sent again is"
                " recognized: select them, too"
            )
        if not self.settings.fail_on_data_loss and TIME not in columns:
            raise OptionError(
                f"fail-on-data-loss: the rows have no {TIME}, which tells the messages of a"
                " recreated topic from those of the one before: select it, too"
            )
        if "to_topic" not in columns and not self.settings.to_topic:
            raise OptionError("to-topic: name where to write, here or by a column `to_topic`")
        if "to_topic" in columns and not self.settings.force:
            self._refuse_circle(stream.schema)
        return columns

    def _refuse_circle(self, schema: Any) -> None:
        """Refuse SQL that sends every row of a topic to one that is read, if Spark can tell.

        It can for a constant, and for the column `topic`. Other SQL fails when such rows come.
        """
        from pyspark.sql import functions

        sources = self.settings.sources
        to_topic = functions.coalesce("to_topic", functions.lit(""))
        # Not a stream, which has no such plan, nor a local table, which Spark knows to be empty.
        messages = self.spark.createDataFrame(self.spark.sparkContext.emptyRDD(), schema)
        for topic in sources:
            of_topic = self._parsed(messages.withColumn("topic", functions.lit(topic)))
            elsewhere = self._selected(of_topic).where(~to_topic.isin(*sources))
            most = elsewhere._jdf.queryExecution().optimizedPlan().maxRows()
            if most.isDefined() and most.get() == 0:
                raise OptionError(
                    f"sql: each row of {topic} is sent to a topic that is read, and would be read"
                    " again; give --force if that is what you want"
                )

    def batch(self, frame: DataFrame, *, is_timed: bool) -> None:
        """Transform one batch; with `is_timed`, no run has sent rows of it without store times."""
        self.is_timed = is_timed
        parsed = self._parsed(frame)
        if self.looks_once:
            self._write(self._selected(parsed))
            return
        parsed = parsed.persist()
        try:
            if self.settings.dead_letter:
                self._write(self._selected(parsed.where("value IS NOT NULL")))
                self._put_aside(parsed.where("value IS NULL"))
            else:
                self._write(self._selected(parsed))
        finally:
            parsed.unpersist()

    def _put_aside(self, misfits: DataFrame) -> None:
        if count := misfits.count():
            self._write_dead_letters(misfits)
            self.report.details["dead_letters"] += count

    def _parsed(self, frame: DataFrame) -> DataFrame:
        frame = with_text(frame)
        return with_value(frame, self.settings.schema) if self.settings.schema else frame

    def _selected(self, frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView(_VIEW)
        selected: DataFrame = frame.sparkSession.sql(self.sql)
        # Drop what was added for the SQL and no message has, so that `*` is a copy.
        return selected.drop(*(frame[name] for name in ("text", "value") if name in frame.columns))

    def _target(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the sink's options for where rows with these columns go."""
        cluster = self.settings.credentials.at(self.settings.nameserver)
        return cluster if "to_topic" in columns else cluster | {"topic": self.settings.to_topic}

    def _write(self, selected: DataFrame) -> None:
        """Send the rows of the SQL, and count them by topic."""
        from pyspark.sql import Observation

        is_named = "to_topic" in selected.columns
        if is_named and not self.settings.force:
            selected = self._without_circles(selected)
        to_topic = "to_topic" if is_named else f"'{self.settings.to_topic}'"
        counted = Observation()
        frame = selected.observe(counted, _routes(to_topic))
        self._save(frame, self._target(frame.columns))
        written = self.report.details["written"]
        for route in counted.get["routes"]:
            written[route["item"]] = written.get(route["item"], 0) + route["count"]

    def _save(self, frame: DataFrame, target: dict[str, str], dead_letter: str = "") -> None:
        """Send rows; their identities differ from those of rows for the dead-letter topic."""
        if self.is_timed:
            # The topic may have been recreated since the SQL had no store time: what that SQL sent
            # from the same places would be taken for these rows.
            frame = frame.withMetadata(TIME, {ALWAYS_TIMED: True})
        query = query_id(Folder(self.spark, self.settings.checkpoint))
        options = target | {"sinkId": f"transform {query} {dead_letter}"}
        frame.write.format("cometmq").mode("append").options(**options).save()

    def _without_circles(self, frame: DataFrame) -> DataFrame:
        """Have a row for a topic that is read end the job, before its record batch is sent."""
        from pyspark.sql import functions

        to_topic = functions.col("to_topic")
        said = functions.concat(
            # On a separate line, so that it is found in all that Spark says.
            functions.lit(f"\n{SinkError.__module__}.{SinkError.__name__}: column to_topic: "),
            to_topic,
            functions.lit(" is read, and what is sent to it would be read again; fix the SQL, or"),
            functions.lit(" give --force if that is what you want"),
        )
        checked = functions.when(
            to_topic.isin(*self.settings.sources), functions.raise_error(said)
        ).otherwise(to_topic)
        apart: DataFrame = frame.withColumn("to_topic", checked)
        return apart

    def _write_dead_letters(self, misfits: DataFrame) -> None:
        from pyspark.sql import functions

        reason = functions.lit(f"the body is no JSON of {self.settings.schema}")
        marked = functions.map_concat(
            # Drop the reason of a dead letter that is transformed again: names in a map are unique.
            functions.expr(f"map_filter(properties, (name, _) -> name <> '{_REASON}')"),
            functions.create_map(functions.lit(_REASON), reason),
        )
        sent = (*_COORDINATES, TIME, "body", "key", "tag", "flag")
        rows = misfits.select(*sent, marked.alias("properties"))
        target = self._target(rows.columns) | {"topic": self.settings.dead_letter}
        # An empty body does not fit the schema, and the SQL cannot leave it out.
        self._save(rows, target | {"emptyBodies": "send"}, self.settings.dead_letter)


def _routes(to_topic: str) -> Any:
    """Count the rows of each topic while they are written."""
    from pyspark.sql import functions

    return functions.expr(f"approx_top_k({to_topic}, {_ROUTES_MAX}, {100 * _ROUTES_MAX})").alias(
        "routes"
    )


def _names_once(sql: str) -> bool:
    """Whether SQL certainly reads the messages only once.

    The query of a WITH may be used several times, and to sort, Spark first samples the rows.
    """
    return len(re.findall(rf"\b{_VIEW}\b", sql, re.IGNORECASE)) == 1 and not re.search(
        r"\b(with|order|sort)\b", sql, re.IGNORECASE
    )


def _holds(settings: TransformSettings) -> Places:
    return ((settings.checkpoint, STREAM),)


def _look(settings: TransformSettings) -> None:
    python_functions.look_for_modules(settings.udf)
    look_for_topics(settings)


JOB: Final = Job(
    "transform",
    TransformSettings,
    transform,
    "Turn messages into other messages with SQL.",
    about=(
        "The SQL selects from `messages`: the columns of the source, the body as `text`, and"
        " with --schema the fields of a JSON body as `value`. A column `to_topic` says where a"
        " row goes. After a kill, start it again with the same --checkpoint."
    ),
    examples=(
        "transform --topic orders --to-topic paid --checkpoint /data/paid \\\n"
        '    --sql "SELECT topic, broker, queue_id, queue_offset, body, key FROM messages'
        " WHERE tag = 'paid'\"",
        "transform --topic orders --to-topic paid --checkpoint /data/paid --sql @paid.sql",
    ),
    holds=_holds,
    look=_look,
)
