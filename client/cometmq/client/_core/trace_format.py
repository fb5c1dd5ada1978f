"""The format of Apache's message traces, which its clients write and its tools read.

Records end with \\x02, and \\x01 separates their fields::

    Pub             time region group topic id tags keys store-host size cost type offset-id success
    SubBefore       time region group request-id id retries keys
    SubAfter        request-id id cost success keys code time group
    EndTransaction  time region group topic id tags keys store-host type transaction-id state check

Older clients leave out the last fields, newer ones add some.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cometmq.client.hooks import SendKind

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TYPES: Final[dict[SendKind, int]] = {
    "normal": 0, "transaction": 1, "delayed": 3, "ordered": 4, "batch": 0,
}  # fmt: skip
CONSUMED: Final = 0
FAILED: Final = 4
_FIELD: Final = "\x01"
_RECORD: Final = "\x02"
_ID_PLACE: Final = {"Pub": 5, "SubBefore": 5, "SubAfter": 2, "EndTransaction": 5}
_LAST_MS: Final = 253_402_300_799_000
"""The last second of the year 9999."""
_DIVIDERS: Final = str.maketrans({_FIELD: " ", _RECORD: " "})


def record(*fields: object) -> str:
    """Write one record."""
    return _FIELD.join(_text(each) for each in fields) + _RECORD


def read_records(text: str) -> list[list[str]]:
    """Read the records of a trace message."""
    return [each.split(_FIELD) for each in text.split(_RECORD) if each]


TraceKind = Literal["sent", "consumed", "ended"]


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step in the life of a message, as a client traced it.

    ::

        for step in await mq.admin.message_trace(receipt.id):
            print(step.at, step.kind, step.group, step.result)

    `kind` is "sent" (by a producer's group), "consumed" (by a consumer's), or "ended" (of a
    transaction). `result` is "ok" or "failed", the state with which a transaction ended, or "began"
    for a consumption whose end was not traced. `took_ms` is the duration, `where` the broker that
    took the message, `attempt` the number of the delivery.
    """

    at: datetime
    kind: TraceKind
    group: str
    result: str
    topic: str = ""
    where: str = ""
    took_ms: int | None = None
    attempt: int = 1


def steps_of(message_id: str, texts: Iterable[str]) -> list[TraceStep]:
    """Return the steps of a message in order, from the bodies of trace messages."""
    steps: list[TraceStep] = []
    begun: dict[str, tuple[datetime, str, int]] = {}
    ended: dict[str, tuple[str, int]] = {}
    for fields in _about(message_id, texts):
        match fields:
            case ["Pub", time, _, group, topic, _, _, _, where, _, took, _, *rest]:
                result = "failed" if rest[1:2] == ["false"] else "ok"
                at, took_ms = _time(time), _number(took)
                steps.append(TraceStep(at, "sent", group, result, topic, where, took_ms))
            case ["SubBefore", time, _, group, request, _, retries, *_]:
                begun[request] = _time(time), group, _number(retries) + 1
            case ["SubAfter", request, _, took, success, *_]:
                ended[request] = "ok" if success == "true" else "failed", _number(took)
            case ["EndTransaction", time, _, group, topic, _, _, _, where, _, _, state, *_]:
                steps.append(TraceStep(_time(time), "ended", group, state, topic, where))
            case _:
                pass
    for request, (at, group, attempt) in begun.items():
        result, spent_ms = ended.get(request, ("began", None))
        steps.append(TraceStep(at, "consumed", group, result, took_ms=spent_ms, attempt=attempt))
    return sorted(steps, key=lambda step: step.at)


def _about(message_id: str, texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the records about a message; records of others may have the same key."""
    for text in texts:
        for fields in read_records(text):
            place = _ID_PLACE.get(fields[0])
            if place is not None and fields[place : place + 1] == [message_id]:
                yield fields


def _time(text: str) -> datetime:
    return datetime.fromtimestamp(min(_number(text), _LAST_MS) / 1000, UTC)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).translate(_DIVIDERS)
