from __future__ import annotations

import pytest
from tests.crash.broker_kills import Promises, check_order


def test_what_is_lost_changed_or_out_of_order_is_noticed() -> None:
    check_order([b"0-1-0", b"0-2-0", b"0-1-1", b"0-7-0.0", b"0-7-0.1", b"1-1-0"])
    for bodies in ([b"0-1-1", b"0-1-0"], [b"0-1-1", b"0-1-1"], [b"0-7-0.1", b"0-7-0.0"]):
        with pytest.raises(AssertionError):
            check_order(bodies)
    promises = Promises(sent={(0, 7): b"x"}, committed={0: 5}, saved={0: 3})
    promises.check_message(0, 7, b"x")
    promises.check_message(0, 8, b"y")
    with pytest.raises(AssertionError):
        promises.check_message(0, 7, b"y")
    for offset in (2, 6):
        with pytest.raises(AssertionError):
            promises.check_resumed(0, offset)
    promises.check_resumed(0, 4)
    with pytest.raises(AssertionError):
        promises.check_resumed(0, 3)
