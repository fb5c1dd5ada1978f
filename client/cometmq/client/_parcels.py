"""Packing of messages and batches: checked and encoded, independent of where they are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.client._core.outgoing import (
    AT_ONCE,
    bare_properties,
    check_sharding_key,
    needs_timers,
    properties_text,
    shrink,
    timing_properties,
)
from cometmq.client._watching import sending_of, tell_each
from cometmq.client.hooks import Sending
from cometmq.proto import property_names as names
from cometmq.proto.batch import encode_items
from cometmq.proto.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cometmq.client._core.identity import Identity
    from cometmq.client._core.outgoing import NewMessage, Timing
    from cometmq.client.config import ClientConfig
    from cometmq.client.hooks import Hook, SendWatch
    from cometmq.proto.batch import BatchItem

SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)


class Parcel:
    """The contents of one send, whichever queue it goes to."""

    __slots__ = (
        "body", "code", "flag", "id", "is_batch", "may_repeat", "needs_timers", "properties",
        "sys_flag", "watches",
    )  # fmt: skip

    def __init__(
        self,
        body: bytes,
        properties: str,
        message_id: str,
        *,
        sys_flag: int = 0,
        flag: int = 0,
        is_batch: bool = False,
        needs_timers: bool = False,
    ) -> None:
        self.body = body
        self.properties = properties
        self.id = message_id
        self.sys_flag = sys_flag
        self.flag = flag
        self.is_batch = is_batch
        self.code = _SEND_BATCH if is_batch else SEND
        self.needs_timers = needs_timers
        self.may_repeat = False  # True: do not ask a broker that can to store it only once.
        self.watches: list[SendWatch] | None = None


class Packing:
    """Packs for one client, and tells its hooks of each send that begins."""

    def __init__(self, config: ClientConfig, identity: Identity, hooks: Sequence[Hook]) -> None:
        self._config = config
        self._identity = identity
        self._hooks = hooks

    def pack(
        self,
        topic: str,
        message: NewMessage,
        body: bytes,
        timing: Timing,
        sharding_key: str | None,
        more: Mapping[str, str] | None = None,
    ) -> Parcel:
        """Check a message and encode its properties; a `UsageError` says what is wrong with it."""
        added: dict[str, str] = dict(more) if more else {}
        if timing is not AT_ONCE:
            added |= timing_properties(timing)
        if self._config.namespace:
            added[names.INSTANCE_ID] = self._config.namespace
        if sharding_key is not None:
            added[names.SHARDING_KEY] = check_sharding_key(sharding_key)
        message_id = self._identity.new_message_id()
        watches = None
        if self._hooks:
            sending = sending_of(topic, message, message_id, len(body), added)
            watches = tell_each(self._hooks, lambda hook: hook.sending(sending))
            added |= sending.properties
        properties = properties_text(message, message_id, added)
        body, sys_flag = shrink(body, self._config.compress_from)
        parcel = Parcel(
            body,
            properties,
            message_id,
            sys_flag=sys_flag,
            flag=message.flag,
            needs_timers=needs_timers(timing),
        )
        parcel.watches = watches
        return parcel

    def pack_batch(self, topic: str, items: Sequence[BatchItem]) -> Parcel:
        """Make one parcel of several messages that have been checked.

        None of them has a property that batches must not have: users cannot set those.
        """
        message_id = self._identity.new_message_id()
        properties = bare_properties(message_id)
        parcel = Parcel(encode_items(items), properties, message_id, is_batch=True)
        if self._hooks:
            sending = Sending(
                topic=topic,
                id=message_id,
                kind="batch",
                body_size=len(parcel.body),
                count=len(items),
            )
            parcel.watches = tell_each(self._hooks, lambda hook: hook.sending(sending))
        return parcel
