"""The version of a table, to compare copies of it."""

from __future__ import annotations

from cometmq.proto.body import Body, preset
from cometmq.proto.header import I64


class DataVersion(Body):
    """The version of a table: two copies are the same if all three numbers are."""

    counter: I64 = preset(0)
    """Incremented by each change."""

    state_version: I64 = preset(0)
    """The epoch of the controller; 0 without one."""

    timestamp: I64 = preset(0)
    """The time of the last change in ms."""
