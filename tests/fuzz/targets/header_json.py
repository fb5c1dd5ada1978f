"""JSON headers, and their fields as strings."""

from __future__ import annotations

from cometmq.proto.header_json import JSON


def check(data: bytes) -> None:
    """Decode and read the fields, and check that they can be written."""
    command = JSON.decode(data, None, 64)
    again = JSON.decode(JSON.encode(command), None, 64)
    assert again.ext_fields == command.ext_fields
