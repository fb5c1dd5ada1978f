"""The version number of a header, and the versions at which peers behave differently.

A header's `version` is the ordinal in Apache's list of releases, in which each release follows its
snapshot. Names and numbers of 4.x and 5.x follow one formula::

    release  x.y.z = 213 + 200 * (x - 4) + 20 * y + 2 * z      x is 4 or 5; y and z are 0 to 9
    snapshot x.y.z = release - 1

The numbers of 3.x follow no formula, and no current peer sends them.
"""

from __future__ import annotations

import re

from cometmq.proto.errors import LocalProtocolError

_ORDINAL_FIRST = 212  # V4_0_0_SNAPSHOT
_ORDINAL_LAST = 611  # V5_9_9
_NAME = re.compile(r"V([45])_([0-9])_([0-9])(_SNAPSHOT)?")

_OF_3_X = {37: "V3_0_11", 62: "V3_1_8_SNAPSHOT", 121: "V3_4_9"}
_NAMES_OF_3_X = {name: ordinal for ordinal, name in _OF_3_X.items()}
HIGHER_VERSION = 612  # Numbers from here on are shown by this name.


def version_ordinal(major: int, minor: int, patch: int) -> int:
    """Return the number of the release `major.minor.patch` of 4.x or 5.x."""
    if major not in {4, 5} or not 0 <= minor <= 9 or not 0 <= patch <= 9:
        raise LocalProtocolError(f"version {major}.{minor}.{patch} has no number")
    return 213 + 200 * (major - 4) + 20 * minor + 2 * patch


def version_name(ordinal: int) -> str:
    """Name a version as Apache does: `V5_5_0`, `V4_1_0_SNAPSHOT`.

    Any number that a peer sends has a name. Beyond the list it is `HIGHER_VERSION`; in 3.x, where
    only a few names are known, or below zero, it is the bare number (`V_120`).
    """
    if ordinal > _ORDINAL_LAST:
        return "HIGHER_VERSION"
    if ordinal < _ORDINAL_FIRST:
        return _OF_3_X.get(ordinal) or f"V_{ordinal}"
    steps = (ordinal + 1 - 213) // 2
    name = f"V{4 + steps // 100}_{steps // 10 % 10}_{steps % 10}"
    return name if ordinal % 2 else f"{name}_SNAPSHOT"


def version_number(name: str) -> int | None:
    """Return the number for a result of `version_name`; None for any other text."""
    if match := _NAME.fullmatch(name):
        release = version_ordinal(int(match[1]), int(match[2]), int(match[3]))
        return release - 1 if match[4] else release
    return HIGHER_VERSION if name == "HIGHER_VERSION" else _NAMES_OF_3_X.get(name)


# The version in our own frames. A client reads a broker's version from the answer to its heartbeat;
# from a higher one it would expect features that no release has.
CURRENT_VERSION = version_ordinal(5, 5, 0)

# From this version on a registration has a RegisterBrokerBody; an older one is a bare topic table.
REGISTER_BROKER_BODY_VERSION = 37
# Clients from this version on can tell their running info.
RUNNING_INFO_VERSION = 62
# The `maxReconsumeTimes` of clients from this version on is honoured.
MAX_RECONSUME_TIMES_VERSION = 121
# A Java client sends no SQL92 subscriptions to a broker whose heartbeat answer is older.
SQL92_VERSION = version_ordinal(4, 1, 0) - 1
# Up to this version `_UNIQUE_KEY_QUERY` is left out of the signed text.
UNIQUE_KEY_QUERY_UNSIGNED_VERSION = version_ordinal(4, 9, 3)
# From this version on a route is answered in standard JSON.
STANDARD_JSON_ROUTE_VERSION = version_ordinal(4, 9, 4)
# A compressed registration from this version on has topic attributes and queue mappings.
COMPRESSED_QUEUE_MAPPING_VERSION = version_ordinal(5, 0, 0)
# Clients newer than this understand GO_AWAY; older ones lose the connection.
GO_AWAY_UNKNOWN_VERSION = version_ordinal(5, 3, 1)
