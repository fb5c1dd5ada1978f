"""Where the data of a file ends, before trailing zeros or holes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import File

_CHUNK_SIZE: Final = 4 << 20
_ZEROS: Final = bytes(_CHUNK_SIZE)


def data_end_of(file: File, size: int, begin: int = 0) -> int:
    """Return the end of a file's last nonzero byte, up to `size`; `begin` if there is none.

    Bytes before `begin` are not looked at, and holes are not read.
    """
    for low, high in reversed(list(file.data_ranges())):
        start, place = max(low, begin), min(high, size)
        while place > start:
            count = min(_CHUNK_SIZE, place - start)
            data = file.read(count, place - count)
            place -= count
            if data != _ZEROS[: len(data)]:
                return place + len(data.rstrip(b"\0"))
    return begin
