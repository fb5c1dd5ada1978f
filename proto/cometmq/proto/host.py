"""Host addresses as in stored messages: 8 bytes for IPv4, 20 for IPv6.

=======  ====================================
4 or 16  address
4        port, i32
=======  ====================================

A broker packs its own host once, and a peer's once for each connection; records copy the bytes.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from cometmq.proto.errors import LocalProtocolError, MessageError

# The sizes of a stored host: its address, and its port as an i32.
PACKED_IPV4_SIZE = 8
PACKED_IPV6_SIZE = 20
_PORT = struct.Struct(">i")


class Host(NamedTuple):
    """An address and a port."""

    address: str
    port: int

    def __str__(self) -> str:
        """Return `address:port`, with an IPv6 address in brackets."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self[0]}:{self[1]}"


def pack_host(address: str, port: int) -> bytes:
    """Return the stored form of a numeric address and a port."""
    try:
        packed = ipaddress.ip_address(address).packed
    except ValueError as error:
        raise LocalProtocolError(f"host: {error}") from None
    if not 0 <= port <= 65535:
        raise LocalProtocolError(f"host: port {port} is not in 0..65535")
    return packed + _PORT.pack(port)


def unpack_host(packed: bytes) -> Host:
    """Return the address and the port of a stored host; the port may be any i32."""
    if len(packed) not in (PACKED_IPV4_SIZE, PACKED_IPV6_SIZE):
        raise MessageError(f"host: {len(packed)} bytes, not 8 (IPv4) or 20 (IPv6)")
    address = str(ipaddress.ip_address(packed[:-4]))
    return Host(address, _PORT.unpack_from(packed, len(packed) - 4)[0])
