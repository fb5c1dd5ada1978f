"""The settings of `aggregate`: what to compute, over which windows, and where results go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs import aggregations
from cometmq.pipeline.jobs.job import setting
from cometmq.pipeline.jobs.streams import ROWS_OF_BATCH, StreamSettings
from cometmq.pipeline.jobs.topic_names import check_written
from cometmq.pipeline.spark_settings import read_interval

TIME: Final = "store_time"
_WINDOWS_MAX: Final = 1_000
"""The most windows that contain a message: each is an expression in Spark's plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSettings(StreamSettings):
    """What to compute, over which windows, and where results go."""

    topic: str = setting("The topics to read, separated by commas.", metavar="TOPIC[,...]")
    to_topic: str = setting("The topic that results are sent to; or use --to.", "")
    to: str = setting("The folder that results are written to, as Parquet.", "", metavar="DIR")
    schema: str = setting(
        "The columns of JSON bodies, in Spark's DDL; --key and --aggregations can use them.", ""
    )
    key: str = setting("An SQL expression to group by, such as 'tag'.", "")
    window: str = setting("The length of a window.", "1 minute")
    slide: str = setting(
        "How often a window begins; by default one begins where the last ends.", ""
    )
    watermark: str = setting("How late a message may arrive and still be counted.", "1 minute")
    time: str = setting("An SQL expression for a message's time.", TIME)
    aggregations: str = setting(
        "What to compute: count, sum(x), avg(x), min(x), max(x), p95(x).", "count"
    )
    mode: str = setting(
        "append: emit each window once, when it is complete; update: whenever it changes.", "append"
    )
    max_rows: int = setting(ROWS_OF_BATCH, 500_000)
    checkpoint: str = setting("The folder for its progress and its open windows.", metavar="DIR")
    force: bool = setting("Allow writing to a topic that is also read.", False)

    @property
    def align_by_time(self) -> bool:
        """True: a queue that is read ahead of others would make their messages late."""
        return True

    def __post_init__(self) -> None:
        StreamSettings.__post_init__(self)
        check_written("to-topic", self.to_topic)
        if not self.force:
            self.refuse_sources("to_topic")
        if not self.time:
            raise OptionError(
                f"time: must not be empty; leave it out, or write an expression such as {TIME}"
            )
        if self.mode not in ("append", "update"):
            raise OptionError(f"mode: {self.mode!r} is neither append nor update")
        if bool(self.to_topic) == bool(self.to):
            raise OptionError("to-topic, to: give one of them")
        if self.to and self.mode != "append":
            raise OptionError("mode: files cannot be updated; use append with --to")
        self._check_times()
        names = [name.lower() for name in aggregations.names(self.aggregations)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise OptionError(
                f"aggregations: {len(twice)} of them would be columns named {twice[0]};"
                " leave one out, or run another job for it"
            )

    def _check_times(self) -> None:
        """Check the durations here, as Spark does so only half a minute later."""
        given = {"window": self.window, "watermark": self.watermark}
        given |= {"slide": self.slide} if self.slide else {}
        seconds: dict[str, float] = {}
        for name, text in given.items():
            seconds[name] = read_interval(name, text)
            if not seconds[name] and name != "watermark":
                raise OptionError(f"{name}: {text!r} must be longer than 0")
        if seconds.get("slide", 0) > seconds["window"]:
            raise OptionError(
                f"slide: {self.slide!r} is longer than a window, {self.window!r}, so messages"
                " between two windows would be in none"
            )
        if (count := seconds["window"] / seconds.get("slide", seconds["window"])) > _WINDOWS_MAX:
            raise OptionError(
                f"slide: each message would be in {count:,.0f} windows of {self.window!r}, and"
                f" {_WINDOWS_MAX:,} is the most there can be; write a longer one"
            )
