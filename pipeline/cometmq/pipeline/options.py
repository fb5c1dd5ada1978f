"""The options of `format("cometmq")`, read and checked once, where the frame is made.

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
"""Spark's switch for conditions that are offered to a source."""

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
"""Spark's own, which it passes on."""

_NOT_ZERO: Final = (
    "timeout_ms",
    "target_bytes_per_task",
    "parallelism",
    "pull_bytes",
    "batch_bytes",
)
"""Numbers of which 0 is none; of others it says that there is no limit, or that nothing is done."""
_MOST: Final = {"timeout_ms": 86_400_000, "pull_bytes": (1 << 31) - 1}
"""A day, which sockets can wait, and what a request has room for."""

_TAGS = re.compile(r"\S+|[^=<>()']*\|\|[^=<>()']*")
"""A word, or words with `||` between them, which SQL92 does not have."""
_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,120}", re.ASCII)
_SQL_SIGNS = re.compile(r"[=<>()']")
_SQL_WORDS = re.compile(r"\b(AND|OR|NOT|IS|BETWEEN)\b", re.ASCII | re.IGNORECASE)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NO_MS: Final = re.compile(r"(?:19|20)[0-9]{6}|[12][0-9]{9}")
"""As 20261121, or seconds since 1970."""

Options = TypeVar("Options", "ReadOptions", "WriteOptions")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reaching:
    """How to reach the cluster: the same for reading and writing."""

    nameserver: str = ""
    """`HOST:PORT`, several with semicolons. Required."""
    access_key: str = ""
    secret_key: str = ""
    tls: bool = False
    tls_ca: str = ""
    timeout_ms: int = 30_000
    """Without a byte of an answer for so long, a server counts as gone."""
    retries: int = 5
    """How often a server that is not there is asked again."""
    retry_interval_ms: int = 200
    """Before the first of them; it doubles each time."""

    def settings(self) -> Settings:
        """How connections are made."""
        return Settings(
            self.timeout_ms / 1000, self.access_key, self.secret_key, self.tls, self.tls_ca
        )

    def cluster(self) -> Cluster:
        """Return the cluster that they name."""
        return Cluster(read_nameservers(self.nameserver), self.settings())

    def retried(self, do: Callable[[], R]) -> R:
        """Do it, and again when a server is away or busy."""
        return retried(do, retries=self.retries, interval_ms=self.retry_interval_ms)

    def __repr__(self) -> str:
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        shown["secret_key"] = "***" if self.secret_key else ""
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReadOptions(_Reaching):
    """What is read, from where to where, and in which pieces."""

    topic: str = ""
    """One, or several separated by commas; or `topicPattern`."""
    topic_pattern: str = ""
    """A regular expression that whole names match; new topics are found while a stream runs."""
    starting_offsets: str = ""
    """`earliest`, `latest`, `group:NAME`, or JSON; see `bounds`. A batch begins with the earliest,
    a stream with the latest."""
    ending_offsets: str = LATEST
    """Of a batch."""
    starting_timestamp: str = ""
    """In ms or ISO 8601: with the first message that was stored then or later."""
    ending_timestamp: str = ""
    """Of a batch: before the first message that was stored then or later."""
    filter: str = ""
    """Tags (`paid || refused`) or SQL92 over properties (`amount > 100`); the broker filters."""
    tags: str = ""
    """`filter` that is tags for certain."""
    sql_filter: str = ""
    """`filter` that is SQL92 for certain."""
    group: str = ""
    """A consumer group that shows how far a stream is; it is not read as that group."""
    fail_on_data_loss: bool = True
    """Whether to fail when messages that were to be read are gone; else they are told, and passed
    over."""
    losses_note: str = ""
    """Of jobs: the file in which a stream notes where to ask what it lost; see `losses`."""
    max_offsets_per_trigger: int = 0
    """Of a stream: messages of a batch, at most; 0 is no limit."""
    align_by_time: bool = False
    """Whether all queues end at one store time where a batch is limited, so that none is read ahead
    of the others; else each gets its share of the backlog."""
    in_order: bool = False
    """Whether no queue is cut into tasks, of which each would write on its part beside the others;
    what is said of tasks here then counts for queues as a whole."""
    min_partitions: int = 0
    """Tasks, at least, when there are so many messages."""
    max_records_per_partition: int = 0
    """Messages of one task, at most; 0 leaves that to `targetBytesPerTask`."""
    target_bytes_per_task: int = 256 << 20
    parallelism: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Tasks that can run at a time; without it, the cores here."""
    columns: str = ""
    """Names separated by commas, for who cannot give a schema; `*` is all of them."""
    decompress: bool = True
    on_bad_body: str = "fail"
    """At a body that is not compressed as its flags say: `fail`, or `skip` it, so that the row has
    none (null), and tell it in the executor's log."""
    pull_bytes: int = 4 << 20
    """Of one answer of a broker, as far as it knows how."""
    filter_pushdown: bool = False
    """Whether to plan by conditions on topic, queue and offset. Of a frame that is asked by others,
    too, rows are missing then: see `PushingReader`. Needs
    `spark.sql.python.filterPushdown.enabled`, which `session()` sets."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named, if no pattern is."""
        return tuple(sorted(set(listed(self.topic))))

    def reads(self, topic: str) -> bool:
        """Whether a topic is one of those that are to be read, if it exists."""
        if self.topic:
            return topic in self.topics
        return re.fullmatch(self.topic_pattern, topic) is not None

    @property
    def expression(self) -> tuple[str, str]:
        """What the broker filters by: an expression, and its type."""
        if self.sql_filter:
            return self.sql_filter, "SQL92"
        text = self.tags or self.filter or "*"
        if not self.tags and (_SQL_SIGNS.search(text) or not _TAGS.fullmatch(text)):
            return text, "SQL92"
        return text, "TAG"

    @property
    def wanted_tags(self) -> frozenset[str]:
        """The tags that are wanted, if it is tags: brokers compare no more than their hashes."""
        text, kind = self.expression
        if kind != "TAG" or text == "*":
            return frozenset()
        return frozenset(tag for part in text.split("||") if (tag := part.strip()))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WriteOptions(_Reaching):
    """Where rows go, and what is promised of them."""

    topic: str = ""
    """Of all rows; without it each row has one in a column of that name."""
    delivery: str = "auto"
    """`idempotent`: a row that is sent again is stored once. `at-least-once`: it may be twice.
    `auto`: the first where rows have an identity and the broker knows how, else the other."""
    dedup_key: str = ""
    """A column that tells rows apart: what is sent again with the same value is stored once."""
    sink_id: str = ""
    """Names what is written here for good; without it a stream's checkpoint does."""
    empty_bodies: str = "fail"
    """`send`: a row with an empty body goes as it is, for a copy of a topic that has such; `fail`:
    it is an error, for clients of RocketMQ send none."""
    batch_bytes: int = 1 << 20
    """Of one request, at most, where several messages travel in one."""
    in_order: bool = False
    """Whether one request at a time goes to each queue. Else a busy broker may refuse one and take
    the next, and brokers of Apache's store two that come together in any order."""
    max_in_flight: int = 0
    """Requests that wait for an answer at a time; 0 is 4 of batches, 512 of single messages."""
    again_note: str = ""
    """Of jobs: the file in which a batch's write notes how many of its rows were there before."""


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Read what a frame is read with; an `OptionError` names the option that is wrong."""
    found = _parse(ReadOptions, options)
    _check_topics(found)
    if sum(map(bool, (found.filter, found.tags, found.sql_filter))) > 1:
        raise OptionError("filter: give one of `filter`, `tags` and `sqlFilter`")
    _check_filter(found)
    given = {_key(name) for name in options}
    for edge in ("starting", "ending"):
        if {f"{edge}offsets", f"{edge}timestamp"} <= given:
            raise OptionError(f"{edge}Offsets: give this or {edge}Timestamp, not both")
        if f"{edge}offsets" in given and not getattr(found, f"{edge}_offsets"):
            raise OptionError(f"{edge}Offsets: it is empty; write earliest, latest or JSON")
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
    """Refuse what an option says that is to be done at bodies that are not as their flags say."""
    if said not in ("fail", "skip"):
        raise OptionError(f"{option}: {said!r} is neither fail nor skip")


def _check_filter(found: ReadOptions) -> None:
    """Refuse words beside each other: to brokers they would be the first of them, in SQL92."""
    if not found.filter or found.expression[1] == "TAG":
        return
    if not (_SQL_SIGNS.search(found.filter) or _SQL_WORDS.search(found.filter)):
        raise OptionError(
            f"filter: {found.filter!r} is neither tags, such as 'paid || refused', nor SQL92, such"
            " as 'amount > 100'"
        )


def _check_edge(option: str, text: str) -> None:
    """Refuse where nothing can begin or end, whatever there is."""
    if text.startswith(GROUP_PREFIX):
        _check_group(option, text.removeprefix(GROUP_PREFIX))
    elif text not in ("", EARLIEST, LATEST):
        check_given_positions(option, text)


def _check_group(option: str, name: str) -> None:
    if not _GROUP.fullmatch(name):
        raise OptionError(
            f"{option}: {name!r} is no name of a group: up to 120 of letters, digits, _, -, % and |"
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
            "topic: say which topics to read, by `topic` (several with commas)"
            " or by `topicPattern`, and not by both"
        )
    if found.topic and not found.topics:
        raise OptionError(f"topic: {found.topic!r} names none")
    if found.topic.startswith(("[", "(", "{")):
        raise OptionError(f"topic: {found.topic} is a list; write commas alone, as orders,refunds")
    if found.topic_pattern:
        try:
            re.compile(found.topic_pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise OptionError(f"topicPattern: no regular expression: {error}") from None


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Read what a frame is written with."""
    found = _parse(WriteOptions, options)
    if found.delivery not in ("auto", "idempotent", "at-least-once"):
        raise OptionError(
            f"delivery: {found.delivery!r} is none of auto, idempotent and at-least-once"
        )
    if found.empty_bodies not in ("fail", "send"):
        raise OptionError(f"emptyBodies: {found.empty_bodies!r} is neither fail nor send")
    given = {_key(name) for name in options}
    for name, what in (("dedup_key", "a column"), ("sink_id", "who writes, for good")):
        if camel(name).lower() in given and not getattr(found, name):
            raise OptionError(f"{camel(name)}: it is empty; name {what}, or leave it out")
    return found


def read_time_ms(option: str, text: str) -> int:
    """Read a time: ms since 1970, or ISO 8601, in UTC unless it says otherwise."""
    if re.fullmatch(r"-?[0-9]{1,15}", text.strip(), re.ASCII):  # More are micro- or nanoseconds.
        if _NO_MS.fullmatch(text.strip()):
            raise OptionError(
                f"{option}: {text!r} is a day or seconds, and would be a time in 1970; write ms"
                " since 1970, which have 13 digits, or 2026-11-21T14:30:00"
            )
        return int(text)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(
            f"{option}: {text!r} is no time; write ms since 1970, or 2026-11-21T14:30:00"
        ) from None
    # As a float of seconds, it may be one less.
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def _parse(kind: type[Options], options: Mapping[str, str]) -> Options:
    given: dict[str, str] = {}
    for name, text in options.items():
        if given.setdefault(_key(name), text) != text:
            raise OptionError(f"{name}: is another name of an option that says something else")
    ours = {name: text for name, text in given.items() if name not in _PASSED_OVER}
    found = parse_options(kind, ours)
    if not found.nameserver:
        hint = "" if ours else f". Of CREATE TABLE there are none: {FORGOTTEN}"
        raise OptionError(f"nameserver: is required; write HOST:PORT, such as 127.0.0.1:9876{hint}")
    read_nameservers(found.nameserver)
    for name in _NOT_ZERO:
        if getattr(found, name, None) == 0:
            raise OptionError(f"{camel(name)}: 0 is too little; write 1 or more")
    for name, most in _MOST.items():
        if getattr(found, name, 0) > most:
            raise OptionError(f"{camel(name)}: is more than {most}, the most there can be")
    found.settings()  # Looks at the credentials.
    return found


def _key(given: str) -> str:
    key = given.lower()
    return _ALIASES.get(key, key).lower()
