"""What the properties of a send say to the broker: its unique id, and what is asked for.

A producer's messages mostly have the same properties but for the unique id, which stands first, so
what is behind it is looked at once and remembered: 0.4 µs instead of 1.1.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from cometmq.proto.properties import property_finder

UNIQUE_ID: Final = b"UNIQ_KEY\x01"
REMEMBERED_MAX: Final = 1024
REMEMBERED_SIZE_MAX: Final = 256

_find_unique_id = property_finder(b"UNIQ_KEY")
_find_wait = property_finder(b"WAIT")
_SPECIAL: Final = (b"DELAY", b"TRAN_MSG", b"TIMER_DELIVER")
"""What stands in properties that may ask for more than to be stored."""

# The properties with a separator at their end; the unique id; whether the sender waits for what was
# promised; whether something special may be in them. A plain tuple, made for each send.
Sent: TypeAlias = "tuple[bytes, bytes | None, bool, bool]"


class SentProperties:
    """Reads the properties of sends, and remembers what those that are alike have in common."""

    def __init__(self) -> None:
        self._waits: dict[bytes, bool] = {}
        """By what is behind the unique id; of properties with nothing special."""

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._waits)

    def read(self, text: str | None) -> Sent:
        """Read the properties of one message, or of a batch as a whole."""
        if not text:
            return b"", None, True, False
        raw = text.encode()
        first, _, rest = raw.partition(b"\x02")
        waits = self._waits.get(rest)
        if waits is None or not first.startswith(UNIQUE_ID):
            return self._read_with_care(raw, rest)
        return raw, first[len(UNIQUE_ID) :] or None, waits, False

    def _read_with_care(self, raw: bytes, rest: bytes) -> Sent:
        is_complete = raw.endswith(b"\x02")
        waits = (_find_wait(raw) or b"true").lower() == b"true"
        is_special = any(part in raw for part in _SPECIAL)
        if rest and is_complete and not is_special and UNIQUE_ID not in rest:
            self._remember(rest, waits)
        return raw if is_complete else raw + b"\x02", _find_unique_id(raw), waits, is_special

    def _remember(self, rest: bytes, waits: bool) -> None:
        if len(rest) > REMEMBERED_SIZE_MAX:
            return
        if len(self._waits) >= REMEMBERED_MAX:
            self._waits.clear()
        self._waits[rest] = waits
