"""Hosts and offset ids of records, as text."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from cometmq.pipeline.columns import STRING
from cometmq.pipeline.records.layout import PHYSICAL_OFFSET_AT, STORE_IPV6
from cometmq.pipeline.records.slices import (
    four_letters,
    gathered,
    hex_letters,
    is_repeated,
    matrix_rows,
    merged,
    repeated,
    repeated_words,
)

if TYPE_CHECKING:
    from cometmq.pipeline.records.layout import Layout, Longs
    from cometmq.pipeline.records.slices import Words

_BORN_HOST_AT: Final = 48
_STORE_HOST_AT: Final = 64
_PORT_SIZE: Final = 4
_IPV4_SIZE: Final = 8
_OFFSET_SIZE: Final = 8


def hosts(words: Words) -> pa.Array:
    """Return the addresses and ports of IPv4 hosts, which are given as eight bytes each."""
    return repeated_words(np.ascontiguousarray(words), _host)


def born_hosts(layout: Layout) -> pa.Array:
    """Return the address and port of each message's producer."""
    starts = layout.starts + _BORN_HOST_AT
    return repeated(layout.raw, starts, starts + _IPV4_SIZE + layout.born_shift, _host)


def store_hosts(layout: Layout) -> pa.Array:
    """Return the address and port of each message's broker."""
    return repeated(layout.raw, *_store_host(layout), _host)


def _store_host(layout: Layout) -> tuple[Longs, Longs]:
    starts = layout.starts + _STORE_HOST_AT + layout.born_shift
    return starts, layout.body_starts - 16


def _host(packed: bytes) -> str:
    address = ipaddress.ip_address(packed[:-_PORT_SIZE])
    port = int.from_bytes(packed[-_PORT_SIZE:], "big", signed=True)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


def offset_ids(layout: Layout) -> pa.Array:
    """Return the id by which a broker finds each record: its host and physical offset, in hex."""
    short = (layout.sys_flags & STORE_IPV6) == 0
    if short.all():
        return _offset_ids(layout)
    return merged(
        _offset_ids(layout.rows(short)),
        np.flatnonzero(short),
        _offset_ids(layout.rows(~short)),
        np.flatnonzero(~short),
    )


def _offset_ids(layout: Layout) -> pa.Array:
    """Return the ids of records whose hosts have the same size."""
    count = len(layout.starts)
    if not count:
        return pa.array([], STRING)
    starts, ends = _store_host(layout)
    host_size = int(ends[0] - starts[0])
    letters = np.empty((count, (host_size + _OFFSET_SIZE) // 2), np.uint32)
    packed = gathered(layout.raw, starts, host_size)
    if is_repeated(packed):
        packed = packed[:1]
    letters[:, : host_size // 2] = hex_letters(packed).view(np.uint32)
    offsets = gathered(layout.raw, layout.starts + PHYSICAL_OFFSET_AT, _OFFSET_SIZE)
    letters[:, host_size // 2 :] = four_letters(offsets.view(">u2"))
    return matrix_rows(letters.view(np.uint8), STRING)
