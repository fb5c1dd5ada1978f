"""The version of a table: which of two copies is newer, and whether they differ at all."""

from __future__ import annotations

from cometmq.proto.body import Body, preset
from cometmq.proto.header import I64


class DataVersion(Body):
    """Two copies of a table are the same if all three numbers are."""

    counter: I64 = preset(0)
    """One more with each change."""

    state_version: I64 = preset(0)
    """The epoch of the controller; 0 without one."""

    timestamp: I64 = preset(0)
    """The time of the last change in ms."""
