from __future__ import annotations

from random import Random

import pytest
from tests.fuzz.mutation import mutate
from tests.fuzz.target import SEEDS, accepts, load, seeds, target_names

MUTATIONS = 3000


@pytest.mark.parametrize("name", target_names())
def test_a_target_accepts_each_of_its_seeds(name: str) -> None:
    check = load(name)
    assert list((SEEDS / name).glob("*")), "a target without seeds finds little"
    assert [
        path.name
        for path in sorted((SEEDS / name).glob("*"))
        if not accepts(check, path.read_bytes())
    ] == []


@pytest.mark.parametrize("name", target_names())
def test_mutated_seeds_are_accepted_or_refused_with_the_remote_error(name: str) -> None:
    check, inputs, random = load(name), seeds(name), Random(20260101)
    accepted = [accepts(check, mutate(inputs, random)) for _ in range(MUTATIONS)]
    assert True in accepted
