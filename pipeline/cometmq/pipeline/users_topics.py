"""Which topics belong to users, and which ones brokers keep for themselves."""

from __future__ import annotations

from typing import Final

OF_GROUPS: Final = "%"
"""The first character of the names of topics for retries and dead letters."""
_KEPT: Final = (
    "TBW102",
    "BenchmarkTest",
    "OFFSET_MOVED_EVENT",
    "SCHEDULE_TOPIC_XXXX",
    "SELF_TEST_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
)


def is_users(topic: str, *, of_groups: bool = False) -> bool:
    """Whether a topic belongs to users, not to brokers and not for retries or dead letters.

    With `of_groups`, the latter two count as users' topics.
    """
    if topic.startswith(OF_GROUPS) and not of_groups:
        return False
    is_named = topic in _KEPT or topic.endswith("_REPLY_TOPIC")
    return not is_named and not topic.lower().startswith("rmq_sys_")
