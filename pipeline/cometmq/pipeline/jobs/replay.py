"""`replay`: an archive back into a topic.

Batch by batch, the oldest first. A row keeps the identity that its message had in the source, so
one that is replayed again, after a crash or by another run with the same `name`, is stored once;
and what is done is noted in `FROM/_replays/NAME.json`, so another run goes on behind it.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.cluster import read_nameservers
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive import manifests
from cometmq.pipeline.jobs.job import Job, Report, Run, setting, timed
from cometmq.pipeline.jobs.streams import Folder
from cometmq.pipeline.options import read_time_ms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_REPLAYS: Final = "_replays"
_NAMES: Final = {
    "source_topic": "topic",
    "source_broker": "broker",
    "source_queue_id": "queue_id",
    "source_offset": "queue_offset",
}
_SENT: Final = ("body", "key", "tag", "properties", "flag")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """What to replay, and where to."""

    from_dir: str = setting("The archive.", metavar="DIR")
    nameserver: str = setting("The cluster to write to.", metavar="HOST:PORT[;...]")
    to_topic: str = setting("The topic to write to.")
    where: str = setting("Only rows for which this SQL holds.", "")
    since: str = setting("Only what was stored then or later: ms, or ISO 8601.", "")
    until: str = setting("Only what was stored before.", "")
    rate: int = setting("Messages a second, at most; 0 is as fast as it goes.", 0)
    mark: str = setting("NAME=VALUE: a property of each message.", "")
    name: str = setting("Names this replay: it goes on where one of this name ended.", "")
    force: bool = setting("Replay into a topic that the archive was made from.", False)

    def __post_init__(self) -> None:
        read_nameservers(self.nameserver)
        if self.mark and "=" not in self.mark:
            raise OptionError(f"mark: {self.mark!r}: write NAME=VALUE")
        if self.rate < 0:
            raise OptionError("rate: must not be negative")
        _condition(self)  # Looks at the times.


def replay(spark: SparkSession, settings: ReplaySettings, run: Run | None = None) -> Report:
    """Write what an archive holds to a topic, but what an earlier run of this name wrote."""
    run = run or Run()
    report = run.report_of("replay")
    replaying = _Replaying(spark, settings)
    with timed(report):
        done = replaying.done()
        for name in manifests(replaying.folder):
            if name in done:
                continue
            if run.is_stopping:
                report.stopped = True
                break
            began = time.monotonic()
            rows = replaying.batch(name, dry_run=run.dry_run)
            report.rows += rows
            report.batches.append(int(name.removesuffix(".json")))
            run.tell(batch=name.removesuffix(".json"), rows=rows, total=report.rows)
            if not run.dry_run:
                done.append(name)
                replaying.note(done)
                if settings.rate:
                    run.pause(max(rows / settings.rate - (time.monotonic() - began), 0))
    return report


class _Replaying:
    """One replay."""

    def __init__(self, spark: SparkSession, settings: ReplaySettings) -> None:
        self.spark = spark
        self.settings = settings
        self.folder = Folder(spark, settings.from_dir)
        self.name = settings.name or f"to-{settings.to_topic}"
        if not manifests(self.folder):
            raise OptionError(f"from-dir: {settings.from_dir} is no archive, or has nothing in it")
        self.condition = _condition(settings)

    def done(self) -> list[str]:
        """Return the manifests that were replayed."""
        if not self.folder.exists(_REPLAYS, f"{self.name}.json"):
            return []
        said = json.loads(self.folder.read(_REPLAYS, f"{self.name}.json"))
        if (said["to_topic"], said["where"]) != (self.settings.to_topic, self.condition):
            raise OptionError(
                f"name: {self.name} was another replay, to {said['to_topic']} where"
                f" {said['where'] or 'everything'}; choose another name"
            )
        found: list[str] = said["done"]
        return found

    def note(self, done: list[str]) -> None:
        """Note what was replayed."""
        document = {"to_topic": self.settings.to_topic, "where": self.condition, "done": done}
        self.folder.write(json.dumps(document, indent=2) + "\n", _REPLAYS, f"{self.name}.json")

    def batch(self, manifest: str, *, dry_run: bool) -> int:
        """Replay one batch of the archive, and return how many rows that are."""
        path = self.folder.of(f"batch={manifest.removesuffix('.json')}")
        frame = self.spark.read.option("basePath", self.folder.path).parquet(path)
        if self.condition:
            frame = frame.where(self.condition)
        self._refuse_its_source(frame)
        count: int = frame.count()
        if dry_run or not count:
            return count
        writer = self._rows(frame).write.format("cometmq").mode("append")
        writer.options(
            nameserver=self.settings.nameserver,
            topic=self.settings.to_topic,
            sinkId=f"replay {self.name}",
        ).save()
        return count

    def _refuse_its_source(self, frame: DataFrame) -> None:
        if self.settings.force:
            return
        topic = self.settings.to_topic
        if frame.where(frame["topic"] == topic).limit(1).count():
            raise OptionError(
                f"to-topic: the archive has messages of {topic} itself, which would be there twice;"
                " say --force if that is what you want"
            )

    def _rows(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        properties = functions.col("properties")
        if self.settings.mark:
            name, _, value = self.settings.mark.partition("=")

            def other(key: Column, _value: Column) -> Column:
                differs: Column = key != name
                return differs

            properties = functions.map_concat(
                functions.map_filter(properties, other),
                functions.create_map(functions.lit(name), functions.lit(value)),
            )
        coordinates = [functions.col(name).alias(own) for own, name in _NAMES.items()]
        sent = [functions.col(name) for name in _SENT if name != "properties"]
        ordered = frame.select(*coordinates, *sent, properties.alias("properties"))
        place = ("source_topic", "source_broker", "source_queue_id")
        spread = ordered.repartition(*place)
        sorted_rows: DataFrame = spread.sortWithinPartitions(*place, "source_offset")
        return sorted_rows


def _condition(settings: ReplaySettings) -> str:
    parts = [f"({settings.where})"] if settings.where else []
    for name, sign in (("since", ">="), ("until", "<")):
        if text := getattr(settings, name):
            parts.append(f"store_time {sign} timestamp_millis({read_time_ms(name, text)})")
    return " AND ".join(parts)


JOB: Final = Job("replay", ReplaySettings, replay, "An archive back into a topic.")
