"""Message traces in Apache's format: what was sent and consumed, in a topic of the brokers.

How it works. A hook writes one record for each send and two for each consumption; a background task
of the client sends them together, some times a second. They are lost if they cannot be sent, or if
there are too many: a trace must never hold up what it traces. `mqadmin queryMsgTraceById` and the
dashboards read them.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

import anyio

from cometmq.client._connections import elapsed_ms
from cometmq.client._core.identity import now_ms
from cometmq.client._core.outgoing import AT_ONCE, NewMessage
from cometmq.client._core.trace_format import CONSUMED, FAILED, TRACE_TOPIC, TYPES, record
from cometmq.client.errors import ClientError
from cometmq.client.hooks import ConsumeWatch, Hook, Sending, SendWatch, Sent, Settled

if TYPE_CHECKING:
    from cometmq.client._parts import Parts
    from cometmq.client.messages import ReceivedMessage

_log = logging.getLogger("cometmq.client")

WAIT_SECONDS: Final = 0.5
RECORDS_MAX: Final = 10_000
"""Records that wait to be sent; more are lost."""

SIZE_MAX: Final = 120_000
"""The size in bytes of one trace message, as with Apache's clients."""

_REGION: Final = "DefaultRegion"


class Trace(Hook):
    """Traces one client."""

    def __init__(self, producer_group: str) -> None:
        self._group = producer_group
        self._records: list[tuple[str, set[str]]] = []
        self._came = anyio.Event()
        self.lost = 0

    def sending(self, sending: Sending) -> SendWatch:
        """Begin to trace a send."""
        if sending.topic == TRACE_TOPIC:
            return SendWatch()
        return _TracedSend(self, sending, self._group)

    def consuming(self, message: ReceivedMessage, group: str) -> ConsumeWatch:
        """Trace that a message is handed out, and begin to trace its outcome."""
        if message.topic == TRACE_TOPIC:
            return ConsumeWatch()
        return _TracedConsumption(self, message, group)

    def add(self, text: str, keys: set[str]) -> None:
        """Add a record to the waiting ones."""
        if len(self._records) >= RECORDS_MAX:
            self.lost += 1
            return
        self._records.append((text, keys))
        self._came.set()

    async def run(self, parts: Parts) -> None:
        """Send waiting records, for ever."""
        while True:
            await self._came.wait()
            self._came = anyio.Event()
            await anyio.sleep(WAIT_SECONDS)
            await self.flush(parts)

    async def flush(self, parts: Parts) -> None:
        """Send the records that wait now."""
        while self._records:
            texts: list[str] = []
            keys: set[str] = set()
            size = 0
            while self._records and size < SIZE_MAX:
                text, its_keys = self._records.pop(0)
                texts.append(text)
                keys |= its_keys
                size += len(text)
            body = "".join(texts).encode()
            message = NewMessage(body=body, keys=sorted(keys))
            try:
                parcel = parts.packing.pack(TRACE_TOPIC, message, body, AT_ONCE, None)
                await parts.producer.send(
                    TRACE_TOPIC, parcel, queue=None, sharding_key=None, timeout=WAIT_SECONDS * 6
                )
            except ClientError as error:
                self.lost += len(texts)
                _log.info("%d traces are lost: %s", len(texts), error)


class _TracedSend(SendWatch):
    def __init__(self, trace: Trace, sending: Sending, group: str) -> None:
        self._trace = trace
        self._sending = sending
        self._group = group
        self._began_ms = elapsed_ms()
        self._time_ms = now_ms()

    def ended(self, result: Sent | BaseException | None) -> None:
        """Write the record."""
        sending = self._sending
        sent = result if isinstance(result, Sent) else None
        text = record(
            "Pub",
            self._time_ms,
            _REGION,
            self._group,
            sending.topic,
            sending.id,
            sending.tag or "",
            " ".join(sending.keys),
            sent.broker_address if sent else "",
            sending.body_size,
            elapsed_ms() - self._began_ms,
            TYPES[sending.kind],
            sent.offset_id if sent else "",
            not isinstance(result, BaseException),
        )
        self._trace.add(text, {sending.id, *sending.keys})


class _TracedConsumption(ConsumeWatch):
    def __init__(self, trace: Trace, message: ReceivedMessage, group: str) -> None:
        self._trace = trace
        self._id, self._keys, self._group = message.id, message.keys, group
        self._request_id = uuid.uuid4().hex.upper()
        self._began_ms = elapsed_ms()
        self._add(
            "SubBefore", now_ms(), _REGION, group, self._request_id, self._id,
            message.attempt - 1, " ".join(self._keys),
        )  # fmt: skip

    def ended(self, how: Settled, error: Exception | None) -> None:  # noqa: ARG002  # A hook's
        """Write the second record."""
        is_consumed = how == "ack"
        self._add(
            "SubAfter", self._request_id, self._id, elapsed_ms() - self._began_ms, is_consumed,
            " ".join(self._keys), CONSUMED if is_consumed else FAILED, now_ms(), self._group,
        )  # fmt: skip

    def _add(self, *fields: object) -> None:
        self._trace.add(record(*fields), {self._id, *self._keys})
