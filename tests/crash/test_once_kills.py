from __future__ import annotations

from random import Random

import pytest
from tests.crash.once_kills import Orders, place_of

from cometmq.client import Queue, Receipt


async def test_what_is_lost_stored_twice_or_elsewhere_is_noticed() -> None:
    def answered() -> Orders:
        orders = Orders(3, Random(1))
        for number in range(3):
            orders.note(number, Receipt("", Queue("orders", "b", 1), number, ""))
        return orders

    right = [(place_of(1, number), number) for number in range(3)]
    answered().check(iter(right))
    for wrong, said in (
        (right[:2], "message 2 is lost"),
        ([*right, (place_of(1, 3), 1)], "message 1 is stored twice"),
        ([*right[:2], (place_of(0, 2), 2)], "message 2 is not where"),
    ):
        with pytest.raises(AssertionError, match=said):
            answered().check(iter(wrong))
