from __future__ import annotations

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.store.test_consume_queues import opened, stored

from cometmq.store.errors import StoreFormatError
from cometmq.store.starting.topic_kinds import topic_kinds


def test_a_topic_whose_queues_are_of_the_wrong_kind_is_named() -> None:
    disk = SimulatedFileSystem()
    stored(disk)
    queues = opened(disk)
    known = topic_kinds(queues, {"b": False, "c": True}.get, {}).is_batch
    assert [known("b"), known("c"), known("x")] == [False, True, False]
    unknown = topic_kinds(queues, lambda _: None, {}).is_batch  # The folders say.
    assert [unknown("b"), unknown("c"), unknown("x")] == [False, True, False]
    with pytest.raises(StoreFormatError, match=r"topic b is queue\.type=BatchCQ"):
        topic_kinds(queues, {"b", "c"}.__contains__, {})
    with pytest.raises(StoreFormatError, match=r"topic c is not queue\.type=BatchCQ"):
        topic_kinds(queues, lambda _topic: False, {})
