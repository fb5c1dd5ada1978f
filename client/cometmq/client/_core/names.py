"""The names that topics and groups may have, checked before anything is sent."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from cometmq.client.errors import UsageError

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
TEMPLATE: Final = "TBW102"
"""The template: a topic that is created by a send gets the queues of this topic."""
READER_GROUP: Final = "cometmq-reader"
"""The group of pulls that do not name one."""

TOPIC_LENGTH_MAX: Final = 127
DERIVED_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = 120

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
_CLOSED: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
_NOT_FOR_USERS: Final = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER", "CLIENT_INNER_PRODUCER"})


def check_topic(name: object) -> str:
    """Return a topic's name, or say what is wrong with it."""
    found = _legal(name, "topic")
    derived = found.startswith((RETRY_PREFIX, DLQ_PREFIX))
    length_max = DERIVED_LENGTH_MAX if derived else TOPIC_LENGTH_MAX
    if len(found) > length_max:
        raise UsageError(
            f"topic {found[:40]!r}…: {len(found)} characters, but at most {length_max} are allowed"
        )
    return found


def check_topic_to_send(name: object) -> str:
    """Return the name of a topic that clients may send to."""
    return _check_topic_to_send(name) if isinstance(name, str) else check_topic(name)


@lru_cache(maxsize=1024)
def _check_topic_to_send(name: str) -> str:
    found = check_topic(name)
    if found in _CLOSED:
        raise UsageError(f"topic {found!r}: only the broker itself writes to it")
    return found


def check_group(name: object, what: str = "group") -> str:
    """Return a group's name, or say what is wrong with it."""
    found = _legal(name, what)
    if len(found) > GROUP_LENGTH_MAX:
        raise UsageError(
            f"{what} {found[:40]!r}…: {len(found)} characters, but at most {GROUP_LENGTH_MAX} are"
            " allowed"
        )
    if found in _NOT_FOR_USERS:
        raise UsageError(
            f"{what} {found!r}: this name is reserved for Apache's clients; use another"
        )
    return found


def _legal(name: object, what: str) -> str:
    if not isinstance(name, str):
        raise UsageError(f"{what}: must be a str, not {type(name).__name__}")
    if not name:
        raise UsageError(f"{what}: must not be empty; give its name")
    if _LEGAL.fullmatch(name) is None:
        raise UsageError(
            f"{what} {name[:80]!r}: only letters, digits and the characters % | _ - are allowed"
        )
    return name


def retry_topic(group: str) -> str:
    """Return the topic through which a group gets messages again that it gave back."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of the messages that a group has given up."""
    return DLQ_PREFIX + group


def in_namespace(namespace: str, name: str) -> str:
    """Return the name of a topic or group as brokers know it: Java's `namespace%name`.

    System names are the same in all namespaces, and a name that has the prefix is unchanged.
    """
    if not namespace or _is_system(name):
        return name
    prefix, bare = _divided(name)
    if bare.startswith(f"{namespace}%"):
        return name
    return f"{prefix}{namespace}%{bare}"


def without_namespace(namespace: str, name: str) -> str:
    """Return a name as it is within the namespace, without the prefix."""
    if not namespace:
        return name
    prefix, bare = _divided(name)
    return prefix + bare.removeprefix(f"{namespace}%")


def check_namespace(name: str) -> None:
    """Refuse a name that cannot be a namespace."""
    if name and (_LEGAL.fullmatch(name) is None or "%" in name or "|" in name):
        raise UsageError(
            f"namespace {name!r}: only letters, digits and the characters _ - are allowed"
        )


def _divided(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def _is_system(name: str) -> bool:
    return (
        name in _CLOSED
        or name in (TEMPLATE, "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC")
        or name.startswith(("rmq_sys_", "CID_RMQ_SYS_"))
    )
