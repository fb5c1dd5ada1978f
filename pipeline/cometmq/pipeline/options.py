"""The options of `format("cometmq")`, parsed and checked once, when the frame is made.

Each dataclass is the documentation of its options; see `option_reading`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from cometmq.pipeline.cluster import Cluster
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.nameservers import read_nameservers
from cometmq.pipeline.offsets import check_given_positions
from cometmq.pipeline.option_reading import FORGOTTEN, camel, listed, parse_options
from cometmq.pipeline.retrying import retried
from cometmq.pipeline.wire import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
GROUP_PREFIX: Final = "group:"
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
"""Spark's switch for offering conditions to a source."""

_ALIASES: Final = {
    "namesrv": "nameserver",
    "nameservers": "nameserver",
    "groupid": "group",
    "maxmessagespertrigger": "maxOffsetsPerTrigger",
    "access.key": "accessKey",
    "secret.key": "secretKey",
    "tls.enable": "tls",
    "tls.ca": "tlsCa",
    "fetchoffset.numretries": "retries",
    "fetchoffset.retryintervalms": "retryIntervalMs",
}
_PASSED_OVER: Final = frozenset({"path", "checkpointlocation", "queryname", "truncate", "numrows"})
"""Spark's own options, which it passes on."""

_NOT_ZERO: Final = (
    "timeout_ms",
    "target_bytes_per_task",
    "parallelism",
    "pull_bytes",
    "batch_bytes",
)
"""Numbers that must not be 0; for others, 0 means no limit, or that nothing is done."""
_MOST: Final = {"timeout_ms": 86_400_000, "pull_bytes": (1 << 31) - 1}
"""Maxima: a day, which sockets can wait, and what fits into a request's field."""

_TAGS = re.compile(r"\S+|[^=<>()']*\|\|[^=<>()']*")
"""One word, or words joined by `||`, which SQL92 does not have."""
_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,120}", re.ASCII)
_SQL_SIGNS = re.compile(r"[=<>()']")
_SQL_WORDS = re.compile(r"\b(AND|OR|NOT|IS|BETWEEN)\b", re.ASCII | re.IGNORECASE)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NO_MS: Final = re.compile(r"(?:19|20)[0-9]{6}|[12][0-9]{9}")
"""Numbers that are no ms: dates such as 20261121, or seconds since 1970."""

Options = TypeVar("Options", "ReadOptions", "WriteOptions")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reaching:
    """How to reach the cluster, for reading and writing alike."""

    nameserver: str = ""
    """`HOST:PORT`, several separated by semicolons. Required."""
    access_key: str = ""
    secret_key: str = ""
    tls: bool = False
    tls_ca: str = ""
    timeout_ms: int = 30_000
    """After so long without a byte of an answer, a server counts as gone."""
    retries: int = 5
    """How often a request to a server that is away is retried."""
    retry_interval_ms: int = 200
    """The pause before the first retry; it doubles each time."""

    def settings(self) -> Settings:
        """Return the settings of connections."""
        return Settings(
            self.timeout_ms / 1000, self.access_key, self.secret_key, self.tls, self.tls_ca
        )

    def cluster(self) -> Cluster:
        """Return the cluster that the options name."""
        return Cluster(read_nameservers(self.nameserver), self.settings())

    def retried(self, do: Callable[[], R]) -> R:
        """Do it, and retry while a server is away or busy."""
        return retried(do, retries=self.retries, interval_ms=self.retry_interval_ms)

    def __repr__(self) -> str:
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        shown["secret_key"] = "***" if self.secret_key else ""
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReadOptions(_Reaching):
    """What is read, from where to where, and in which pieces."""

    topic: str = ""
    """One topic, or several separated by commas; or use `topicPattern`."""
    topic_pattern: str = ""
    """A regular expression for full names; a running stream finds new topics, too."""
    starting_offsets: str = ""
    """`earliest`, `latest`, `group:NAME`, or JSON; see `bounds`. The default is `earliest` for a
    batch, `latest` for a stream."""
    ending_offsets: str = LATEST
    """For a batch."""
    starting_timestamp: str = ""
    """In ms or ISO 8601: begin with the first message stored then or later."""
    ending_timestamp: str = ""
    """For a batch: end before the first message stored then or later."""
    filter: str = ""
    """Tags (`paid || refused`) or SQL92 over properties (`amount > 100`); the broker filters."""
    tags: str = ""
    """A `filter` that is always read as tags."""
    sql_filter: str = ""
    """A `filter` that is always read as SQL92."""
    group: str = ""
    """A consumer group that shows a stream's progress; it is not used to read."""
    fail_on_data_loss: bool = True
    """Whether to fail if messages that were to be read are gone; otherwise they are reported and
    skipped."""
    losses_note: str = ""
    """For jobs: the file in which a stream notes where to ask what it lost; see `losses`."""
    absent_queues: str = ""
    """For jobs: where a new stream is in queues that cannot be read at the moment, as JSON."""
    max_offsets_per_trigger: int = 0
    """For a stream: the most messages of a batch; 0 is no limit."""
    align_by_time: bool = False
    """Whether all queues of a limited batch end at one store time, so that none is read ahead of
    the others; otherwise each gets its share of the backlog."""
    in_order: bool = False
    """Whether queues are not divided among tasks, which would write their parts concurrently; the
    limits for tasks then apply to whole queues."""
    min_partitions: int = 0
    """The least number of tasks, if there are so many messages."""
    max_records_per_partition: int = 0
    """The most messages of a task; 0 leaves that to `targetBytesPerTask`."""
    target_bytes_per_task: int = 256 << 20
    parallelism: int = field(default_factory=lambda: os.cpu_count() or 1)
    """How many tasks can run at a time; the default is the number of cores here."""
    columns: str = ""
    """Names separated by commas, if you cannot give a schema; `*` is all of them."""
    decompress: bool = True
    on_bad_body: str = "fail"
    """For a body that is not compressed as its flags say: `fail`, or `skip` it, so that the row's
    body is null, and report it in the executor's log."""
    pull_bytes: int = 4 << 20
    """The size of a broker's answer, if the broker supports that."""
    filter_pushdown: bool = False
    """Whether to plan by conditions on topic, queue and offset. If the frame is also used by other
    queries, these miss rows: see `PushingReader`. Needs
    `spark.sql.python.filterPushdown.enabled`, which `session()` sets."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named, unless there is a pattern."""
        return tuple(sorted(set(listed(self.topic))))

    def reads(self, topic: str) -> bool:
        """Whether a topic is to be read, if it exists."""
        if self.topic:
            return topic in self.topics
        return re.fullmatch(self.topic_pattern, topic) is not None

    @property
    def expression(self) -> tuple[str, str]:
        """The broker's filter: an expression and its type."""
        if self.sql_filter:
            return self.sql_filter, "SQL92"
        text = self.tags or self.filter or "*"
        if not self.tags and (_SQL_SIGNS.search(text) or not _TAGS.fullmatch(text)):
            return text, "SQL92"
        return text, "TAG"

    @property
    def wanted_tags(self) -> frozenset[str]:
        """The wanted tags, if the filter is tags: brokers compare only their hashes."""
        text, kind = self.expression
        if kind != "TAG" or text == "*":
            return frozenset()
        return frozenset(tag for part in text.split("||") if (tag := part.strip()))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WriteOptions(_Reaching):
    """Where rows go, and what is promised about them."""

    topic: str = ""
    """The topic of all rows; without it, each row has one in a column of that name."""
    delivery: str = "auto"
    """`idempotent`: a row that is sent again is stored once. `at-least-once`: maybe twice. `auto`:
    the former if rows have an identity and the broker supports it, else the latter."""
    dedup_key: str = ""
    """A column that identifies rows: a row sent again with the same value is stored once."""
    sink_id: str = ""
    """A permanent name for what is written here; without one, a stream's checkpoint is used."""
    empty_bodies: str = "fail"
    """`send`: send a row with an empty body as it is, to copy a topic that has such messages.
    `fail`: it is an error, as RocketMQ clients do not send any."""
    batch_bytes: int = 1 << 20
    """The most bytes of a request with several messages."""
    in_order: bool = False
    """Whether each queue gets one request at a time. Otherwise a busy broker may refuse one and
    accept the next, and Apache's brokers may store concurrent ones in any order."""
    max_in_flight: int = 0
    """How many requests may wait for an answer; 0 means 4 of batches, 512 of single messages."""
    again_note: str = ""
    """For jobs: the file in which a batch's write notes how many of its rows were stored before."""


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options for reading a frame; an `OptionError` names the wrong option."""
    found = _parse(ReadOptions, options)
    _check_topics(found)
    if sum(map(bool, (found.filter, found.tags, found.sql_filter))) > 1:
        raise OptionError("filter: give only one of `filter`, `tags` and `sqlFilter`")
    _check_filter(found)
    given = {_key(name) for name in options}
    for edge in ("starting", "ending"):
        if {f"{edge}offsets", f"{edge}timestamp"} <= given:
            raise OptionError(f"{edge}Offsets: give this or {edge}Timestamp, not both")
        if f"{edge}offsets" in given and not getattr(found, f"{edge}_offsets"):
            raise OptionError(f"{edge}Offsets: must not be empty; write earliest, latest or JSON")
        _check_edge(f"{edge}Offsets", getattr(found, f"{edge}_offsets"))
    if found.group:
        _check_group("group", found.group)
    for name in ("starting_timestamp", "ending_timestamp"):
        if camel(name).lower() in given:
            read_time_ms(camel(name), getattr(found, name))
    _check_order(found)
    check_bad_body(found.on_bad_body)
    return found


def check_bad_body(said: str, option: str = "onBadBody") -> None:
    """Refuse an unknown value of the option for bodies that are not as their flags say."""
    if said not in ("fail", "skip"):
        raise OptionError(f"{option}: {said!r} is neither fail nor skip")


def _check_filter(found: ReadOptions) -> None:
    """Refuse adjacent words, of which brokers would take only the first, as SQL92."""
    if not found.filter or found.expression[1] == "TAG":
        return
    if not (_SQL_SIGNS.search(found.filter) or _SQL_WORDS.search(found.filter)):
        raise OptionError(
            f"filter: {found.filter!r} is neither tags, such as 'paid || refused', nor SQL92, such"
            " as 'amount > 100'"
        )


def _check_edge(option: str, text: str) -> None:
    """Refuse positions that are invalid, whatever queues exist."""
    if text.startswith(GROUP_PREFIX):
        _check_group(option, text.removeprefix(GROUP_PREFIX))
    elif text not in ("", EARLIEST, LATEST):
        check_given_positions(option, text)


def _check_group(option: str, name: str) -> None:
    if not _GROUP.fullmatch(name):
        raise OptionError(
            f"{option}: {name!r} is not a name of a group: up to 120 letters, digits, _, -, % and |"
        )


def _check_order(found: ReadOptions) -> None:
    first, end = found.starting_timestamp, found.ending_timestamp
    if not (first and end):
        return
    if read_time_ms("startingTimestamp", first) > read_time_ms("endingTimestamp", end):
        raise OptionError(f"endingTimestamp: {end!r} is before startingTimestamp, {first!r}")


def _check_topics(found: ReadOptions) -> None:
    if bool(found.topic) == bool(found.topic_pattern):
        raise OptionError(
            "topic: name the topics to read, either by `topic` (several with commas) or by"
            " `topicPattern`"
        )
    if found.topic and not found.topics:
        raise OptionError(f"topic: {found.topic!r} names no topic")
    if found.topic.startswith(("[", "(", "{")):
        raise OptionError(
            f"topic: {found.topic} is a list; separate topics with commas, as in orders,refunds"
        )
    if found.topic_pattern:
        try:
            re.compile(found.topic_pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise OptionError(f"topicPattern: not a regular expression: {error}") from None


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options for writing a frame."""
    found = _parse(WriteOptions, options)
    if found.delivery not in ("auto", "idempotent", "at-least-once"):
        raise OptionError(f"delivery: {found.delivery!r} is not auto, idempotent or at-least-once")
    if found.empty_bodies not in ("fail", "send"):
        raise OptionError(f"emptyBodies: {found.empty_bodies!r} is neither fail nor send")
    given = {_key(name) for name in options}
    for name, what in (("dedup_key", "a column"), ("sink_id", "the writer, for good")):
        if camel(name).lower() in given and not getattr(found, name):
            raise OptionError(f"{camel(name)}: must not be empty; name {what}, or leave it out")
    return found


def read_time_ms(option: str, text: str) -> int:
    """Parse a time: ms since 1970, or ISO 8601, which is in UTC unless it has a zone."""
    if re.fullmatch(r"-?[0-9]{1,15}", text.strip(), re.ASCII):  # More: micro- or nanoseconds.
        if _NO_MS.fullmatch(text.strip()):
            raise OptionError(
                f"{option}: {text!r} is a day or in seconds, and would be a time in 1970; write"
                " ms since 1970, which have 13 digits, or 2026-11-21T14:30:00"
            )
        return int(text)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(
            f"{option}: {text!r} is not a time; write ms since 1970, or 2026-11-21T14:30:00"
        ) from None
    # Not via float seconds: the result could be one less.
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def _parse(kind: type[Options], options: Mapping[str, str]) -> Options:
    given: dict[str, str] = {}
    for name, text in options.items():
        if given.setdefault(_key(name), text) != text:
            raise OptionError(f"{name}: is another name of an option that is given another value")
    ours = {name: text for name, text in given.items() if name not in _PASSED_OVER}
    found = parse_options(kind, ours)
    if not found.nameserver:
        hint = "" if ours else f". A CREATE TABLE has none: {FORGOTTEN}"
        raise OptionError(f"nameserver: is required; write HOST:PORT, such as 127.0.0.1:9876{hint}")
    read_nameservers(found.nameserver)
    for name in _NOT_ZERO:
        if getattr(found, name, None) == 0:
            raise OptionError(f"{camel(name)}: must be 1 or more, not 0")
    for name, most in _MOST.items():
        if getattr(found, name, 0) > most:
            raise OptionError(f"{camel(name)}: is more than {most}, the most there can be")
    found.settings()  # Checks the credentials.
    return found


def _key(given: str) -> str:
    key = given.lower()
    return _ALIASES.get(key, key).lower()
