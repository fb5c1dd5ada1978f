"""Checks of topic names before Spark starts, instead of by a broker a minute later."""

from __future__ import annotations

from cometmq.client import UsageError
from cometmq.client._core.names import RETRY_PREFIX, check_topic, check_topic_to_send
from cometmq.pipeline.errors import OptionError


def check_read(option: str, topic: str) -> None:
    """Refuse an invalid name of a topic; '' means no topic."""
    if topic:
        try:
            check_topic(topic)
        except UsageError as error:
            raise OptionError(f"{option}: {error}") from None


def check_written(option: str, topic: str, *, is_needed: bool = False) -> None:
    """Also refuse topics that brokers write themselves; with `is_needed`, refuse '' as well."""
    if is_needed and not topic:
        raise OptionError(f"{option}: give the name of a topic")
    check_read(option, topic)
    if topic.startswith(RETRY_PREFIX):
        raise OptionError(
            f"{option}: topic {topic!r}: brokers put there what a group is to consume again; give"
            " the topic that it consumes"
        )
    try:
        check_topic_to_send(topic or "none")
    except UsageError as error:
        raise OptionError(f"{option}: {error}") from None
