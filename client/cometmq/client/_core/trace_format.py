"""Apache's message traces, as its clients write them and its tools read them.

Records end with \\x02, their fields are divided by \\x01::

    Pub        time region group topic id tags keys store-host size cost type offset-id success
    SubBefore  time region group request-id id retries keys
    SubAfter   request-id id cost success keys code time group
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.client.hooks import SendKind

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TYPES: Final[dict[SendKind, int]] = {
    "normal": 0, "transaction": 1, "delayed": 3, "ordered": 4, "batch": 0,
}  # fmt: skip
CONSUMED: Final = 0
FAILED: Final = 4
_FIELD: Final = "\x01"
_RECORD: Final = "\x02"
_DIVIDERS: Final = str.maketrans({_FIELD: " ", _RECORD: " "})


def record(*fields: object) -> str:
    """Write one record."""
    return _FIELD.join(_text(each) for each in fields) + _RECORD


def read_records(text: str) -> list[list[str]]:
    """Read the records of a trace message."""
    return [each.split(_FIELD) for each in text.split(_RECORD) if each]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).translate(_DIVIDERS)
