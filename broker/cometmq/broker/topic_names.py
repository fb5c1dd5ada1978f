"""The rules for names of topics and groups, and the topics that are the broker's own."""

from __future__ import annotations

import re
from typing import Final

from cometmq.store.disk.names import is_folder_name

TOPIC_LENGTH_MAX: Final = 127
DERIVED_TOPIC_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = 255

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"

TEMPLATE: Final = "TBW102"
"""The template for topics that are created by a send."""

SYSTEM_TOPICS: Final = frozenset(
    {
        TEMPLATE,
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
"""System topics, besides those that begin with `SYSTEM_PREFIX`."""

CLOSED_TOPICS: Final = SYSTEM_TOPICS - {
    TEMPLATE,
    "BenchmarkTest",
    "RMQ_SYS_TRACE_TOPIC",
    "CHECKPOINT_TOPIC",
}
"""Topics that clients may not send to: only the broker itself writes there."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)


def topic_problem(name: str) -> str | None:
    """Return what is wrong with a topic's name, in Apache's words, or None."""
    if not name.strip():
        return "The specified topic is blank."
    if _LEGAL.fullmatch(name) is None:
        return (
            f"The specified topic: {name}, contains illegal characters,"
            " allowing only ^[%|a-zA-Z0-9_-]+$"
        )
    derived = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    length_max = DERIVED_TOPIC_LENGTH_MAX if derived else TOPIC_LENGTH_MAX
    if len(name) > length_max:
        return f"The specified topic: {name}, is longer than topic max length: {length_max}"
    return None


def own_topic_problem(name: str) -> str | None:
    """Return what is wrong with the name of a broker or a cluster, or None.

    A topic of the broker's own has this name. Apache does not check it, and uses the host name by
    default, so it may contain dots and much else that is illegal in other topic names.
    """
    if not name.strip():
        return "is blank"
    if not name.isprintable() or not is_folder_name(name):
        return (
            "cannot be the name of the topic that the broker makes of it: no /, no control"
            " characters, and neither . nor .. alone"
        )
    if (size := len(name.encode())) > TOPIC_LENGTH_MAX:
        return f"has {size} bytes; as the name of a topic it can have {TOPIC_LENGTH_MAX} at most"
    return None


def group_problem(name: str) -> str | None:
    """Return what is wrong with a group's name, or None."""
    if not name.strip():
        return "The specified group is blank."
    if _LEGAL.fullmatch(name) is None:
        return (
            f"The specified group: {name}, contains illegal characters,"
            " allowing only ^[%|a-zA-Z0-9_-]+$"
        )
    if len(RETRY_PREFIX) + len(name) > GROUP_LENGTH_MAX:
        return f"The specified group: {name}, is longer than group max length: {GROUP_LENGTH_MAX}"
    return None


def retry_topic(group: str) -> str:
    """Return the topic of the messages that a group is to consume again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of the messages that a group does not get any more."""
    return DLQ_PREFIX + group


def pop_retry_topics(topic: str, group: str) -> tuple[str, str]:
    """Return the topics for messages of a topic that a group pops again: since 5.2, and before."""
    return f"{RETRY_PREFIX}{group}+{topic}", f"{RETRY_PREFIX}{group}_{topic}"
