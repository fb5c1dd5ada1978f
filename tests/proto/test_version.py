"""Version numbers: Apache's list of releases as a formula."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from cometmq.proto import version
from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.version import version_name, version_number, version_ordinal


@pytest.mark.parametrize(
    ("release", "ordinal"),
    [
        ((4, 5, 2), 317),
        ((4, 9, 3), 399),
        ((4, 9, 4), 401),
        ((4, 9, 8), 409),
        ((5, 0, 0), 413),
        ((5, 1, 0), 433),
        ((5, 3, 0), 473),
        ((5, 3, 1), 475),
        ((5, 3, 3), 479),
        ((5, 4, 0), 493),
        ((5, 5, 0), 513),
        ((5, 9, 9), 611),
    ],
)
def test_a_release_has_its_place_in_the_list(release: tuple[int, int, int], ordinal: int) -> None:
    assert version_ordinal(*release) == ordinal
    assert version_name(ordinal) == "V" + "_".join(map(str, release))


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (37, "V3_0_11"),
        (62, "V3_1_8_SNAPSHOT"),
        (121, "V3_4_9"),
        (212, "V4_0_0_SNAPSHOT"),
        (232, "V4_1_0_SNAPSHOT"),
        (412, "V5_0_0_SNAPSHOT"),
        (612, "HIGHER_VERSION"),
    ],
)
def test_snapshots_and_what_lies_outside_the_formula_have_names(ordinal: int, name: str) -> None:
    assert version_name(ordinal) == name
    assert version_number(name) == ordinal


@given(st.integers(212, 611))
def test_name_and_number_are_inverse(ordinal: int) -> None:
    assert version_number(version_name(ordinal)) == ordinal


@given(st.integers(-(2**31), 2**31 - 1))
def test_any_number_of_a_peer_has_a_name(ordinal: int) -> None:
    assert version_name(ordinal)


def test_the_unknown_is_said_as_such() -> None:
    assert version_name(613) == version_name(32767) == "HIGHER_VERSION"
    assert version_name(0) == "V_0"
    assert version_name(-7) == "V_-7"
    assert version_number("5.5.0") is None
    assert version_number("V5_5_0\n") is None


@pytest.mark.parametrize("release", [(3, 4, 9), (6, 0, 0), (5, 10, 0), (5, 0, 10), (4, -1, 0)])
def test_what_is_in_no_list_has_no_number(release: tuple[int, int, int]) -> None:
    with pytest.raises(LocalProtocolError, match="has no number"):
        version_ordinal(*release)


def test_the_gates_stand_where_peers_apply_them() -> None:
    assert version.SQL92_VERSION == 232
    assert version.UNIQUE_KEY_QUERY_UNSIGNED_VERSION == 399
    assert version.STANDARD_JSON_ROUTE_VERSION == 401
    assert version.COMPRESSED_QUEUE_MAPPING_VERSION == 413
    assert version.GO_AWAY_UNKNOWN_VERSION == 475
    assert version.CURRENT_VERSION == 513
