"""How messages list names: the first ones, and a count of the others."""

from __future__ import annotations

import pytest

from cometmq.store.disk.names import some_of


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, ""), (1, "a"), (2, "a, b"), (3, "a, b and 1 more"), (5, "a, b and 3 more")],
)
def test_the_first_names_are_said_and_the_others_counted(count: int, said: str) -> None:
    assert some_of([*"abcde"[:count]], 2) == said
