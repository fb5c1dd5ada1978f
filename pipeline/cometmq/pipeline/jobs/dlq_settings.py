"""The settings of `dlq`: whose dead letters, how they are grouped, and where they are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.credentials import NOBODY, Credentials
from cometmq.pipeline.jobs.job import check_settings, setting
from cometmq.pipeline.jobs.streams import BAD_BODY
from cometmq.pipeline.jobs.tables import stored_between
from cometmq.pipeline.jobs.topic_names import check_written
from cometmq.pipeline.jobs.writable import require_file
from cometmq.pipeline.nameservers import read_nameservers
from cometmq.pipeline.option_reading import listed
from cometmq.pipeline.options import check_bad_body

PREFIX: Final = "%DLQ%"
ORIGIN: Final = "origin"
_TEXT: Final = "try_validate_utf8(cast(body AS string))"
CLUSTER_BY: Final = {
    "topic": "origin",
    "reason": "coalesce(properties['DEAD_LETTER_REASON'], properties['exception'])",
    "shape": "CASE WHEN body IS NULL THEN 'bad body'"
    f" WHEN {_TEXT} IS NULL THEN 'binary'"
    f" WHEN try_parse_json({_TEXT}) IS NULL THEN 'text'"
    f" ELSE coalesce('json: ' || array_join(json_object_keys({_TEXT}), ', '), 'json') END",
    "key": "regexp_replace(key, '[0-9]+', '#')",
    "tag": "tag",
    "host": "regexp_replace(born_host, ':[0-9]+$', '')",
}
"""The ways to group dead letters, with their SQL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DlqSettings:
    """Whose dead letters, and what to do with them."""

    nameserver: str = setting("The name servers of the cluster.", metavar="HOST:PORT[;...]")
    credentials: Credentials = NOBODY
    group: str = setting("The consumer group whose dead letters are read.", metavar="GROUP")
    since: str = setting("Only messages that died at or after this time: ms, or ISO 8601.", "")
    until: str = setting("Only messages that died before this time.", "")
    cluster_by: str = setting(
        f"What to group dead letters by: {', '.join(CLUSTER_BY)}.", "topic,shape"
    )
    examples: int = setting("How many message ids per group to put into the report.", 3)
    redrive: str = setting("Send those again that match this SQL condition; `true` for all.", "")
    to: str = setting(
        "Where to send them: origin (the topic that they came from), or a topic.",
        ORIGIN,
        metavar="origin|TOPIC",
    )
    rate: int = setting("Send at most this many messages a second; 0 for no limit.", 0)
    receipts: str = setting(
        "Write a line of JSON to this file for each message sent again.", "", metavar="FILE"
    )
    on_bad_body: str = setting(BAD_BODY, "fail")

    def __post_init__(self) -> None:
        check_settings(self)
        read_nameservers(self.nameserver)
        check_bad_body(self.on_bad_body, "on-bad-body")
        for each in self.names or [""]:
            if each not in CLUSTER_BY:
                raise OptionError(f"cluster-by: {each!r} is not one of {', '.join(CLUSTER_BY)}")
        if self.rate < 0 or self.examples < 0:
            raise OptionError("rate, examples: must not be negative")
        check_written("to", self.to, is_needed=True)
        if self.to == PREFIX + self.group:
            raise OptionError(
                f"to: {self.to} is the topic that is read; give origin, or another topic"
            )
        stored_between(self)  # Checks the times.
        require_file("receipts", self.receipts, is_read=True)
        if not self.redrive and (self.to != ORIGIN or self.receipts):
            raise OptionError(
                "redrive: give what to send again, `true` for all; to and receipts need it"
            )

    @property
    def where(self) -> dict[str, str]:
        """The options for reaching the cluster."""
        return self.credentials.at(self.nameserver)

    @property
    def names(self) -> list[str]:
        """The ways in which they are grouped."""
        return listed(self.cluster_by)
