"""The properties of a send that concern the broker: its unique id, and what it asks for.

The messages of a producer mostly have the same properties except for the unique id, which comes
first. So the rest is looked at once and remembered.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias, TypeVar

from cometmq.broker.idempotence import ASKED
from cometmq.proto.properties import property_finder, remove_property, set_property

UNIQUE_ID: Final = b"UNIQ_KEY\x01"
HALF_MARK: Final = b"TRAN_MSG\x01true"
"""The property of a half message, which Java's producers write before the unique id."""
REMEMBERED_MAX: Final = 1024
REMEMBERED_SIZE_MAX: Final = 256

_find_unique_id = property_finder(b"UNIQ_KEY")
_find_asked = property_finder(b"IDEMPOTENT")
_find_wait = property_finder(b"WAIT")
T = TypeVar("T")

SPECIAL: Final = 1
"""Flag: the properties may ask for more than to be stored."""
ONCE: Final = 2
"""Flag: the message is to be stored once, however often it is sent (see `idempotence`)."""
_SPECIAL: Final = (b"DELAY", b"TRAN_MSG", b"TIMER_DELIVER")
"""Parts of properties that may ask for more than to be stored."""

# The properties with a separator at their end; the unique id; whether the sender waits for what was
# promised; the flags `SPECIAL` and `ONCE`. A plain tuple, because one is made for each send.
Sent: TypeAlias = "tuple[bytes, bytes | None, bool, int]"


class Half(NamedTuple):
    """What half messages have in common that differ only in their unique ids."""

    tail: bytes
    """The properties stored after the unique id, up to those of the transaction."""
    group: str
    immune_ms: int


def id_first(properties: bytes) -> bytes:
    """Return a half message's complete properties, with the unique id before the mark.

    All but Java's producers send this order anyway. The order has no meaning: Apache's broker
    stores properties in the order of a map.
    """
    mark, _, behind = properties.partition(b"\x02")
    if mark != HALF_MARK or not behind.startswith(UNIQUE_ID):
        return properties
    pair, _, rest = behind.partition(b"\x02")
    return b"%b\x02%b\x02%b" % (pair, mark, rest)


class SentProperties:
    """Reads the properties of sends, and remembers what similar ones have in common."""

    def __init__(self, stored: bytes = b"") -> None:
        """`stored` are the properties that every message gets."""
        self._stored = stored
        self.tails: dict[bytes, bytes] = {}
        """By the properties after the unique id, if they ask for nothing special and the sender
        waits for what was promised: the properties to store after the unique id."""

        self.once: dict[bytes, tuple[bytes, bytes]] = {}
        """The same for messages that are to be stored once: the message's own properties as stored
        after the unique id, beginning with the separator, and all that is stored there."""

        self.halves: dict[bytes, Half] = {}
        """By the properties after the unique id of half messages that were taken with them."""

    def __len__(self) -> int:
        """Return how many entries are remembered."""
        return len(self.tails) + len(self.once) + len(self.halves)

    def note_half(self, properties: bytes, group: str, immune_ms: int) -> None:
        """Note the properties of a half message that was taken unchanged."""
        rest = properties.partition(b"\x02")[2]
        if properties.startswith(UNIQUE_ID) and UNIQUE_ID not in rest and rest.endswith(b"\x02"):
            self._remember(self.halves, rest, Half(rest + self._stored, group, immune_ms))

    def read(self, text: str | None) -> Sent:
        """Read the properties of one message, or of a batch as a whole."""
        if not text:
            return b"", None, True, 0
        raw = text.encode()
        rest = raw.partition(b"\x02")[2]
        is_complete = raw.endswith(b"\x02")
        raw = raw if is_complete else raw + b"\x02"
        waits = (_find_wait(raw) or b"true").lower() == b"true"
        kind = SPECIAL if any(part in raw for part in _SPECIAL) else 0
        is_common = rest and is_complete and waits and not kind and UNIQUE_ID not in rest
        if raw.find(ASKED) >= 0 and _find_asked(raw) == b"1":
            kind |= ONCE
            raw = set_property(remove_property(raw, b"IDEMPOTENT"), b"SENT_ONCE", b"1")
            if is_common and raw.startswith(UNIQUE_ID):
                stored = raw.partition(b"\x02")[2]
                self._remember(self.once, rest, (b"\x02" + stored, stored + self._stored))
        elif b"SENT_ONCE" in raw:  # From a forwarded message, whose sender did not ask for it.
            raw = remove_property(raw, b"SENT_ONCE")
        elif is_common:
            self._remember(self.tails, rest, rest + self._stored)
        return raw, _find_unique_id(raw), waits, kind

    def _remember(self, table: dict[bytes, T], rest: bytes, what: T) -> None:
        if len(rest) > REMEMBERED_SIZE_MAX:
            return
        if len(table) >= REMEMBERED_MAX:
            table.clear()
        table[rest] = what
