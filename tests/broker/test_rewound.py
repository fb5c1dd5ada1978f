"""Groups that are ahead of their queues after a power cut."""

from __future__ import annotations

from random import Random

import pytest
from tests.broker.clocked import FOLDER, Clocked
from tests.broker.running import config_of, pull_request, send_request
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker.rewound import LOOK_FOR_MS
from cometmq.proto.codes import RequestCode as Code
from cometmq.proto.command import Command
from cometmq.proto.commands import PullMessageResponse, UpdateConsumerOffset
from cometmq.proto.message_list import MessageList
from cometmq.store.config import Flush

MOVED = 21
SAFE, READ = 4, 9


def ask(broker: Clocked, request: Command) -> Command:
    return broker.wired.ask(broker.peer, request)


def put(broker: Clocked, body: bytes, count: int) -> None:
    for _ in range(count):
        assert ask(broker, send_request("T", body, queue_id=0)).code == 0


def commit(broker: Clocked, offset: int, group: str = "g") -> Command:
    header = UpdateConsumerOffset(group, "T", 0, offset)
    return ask(broker, Command.request(Code.UPDATE_CONSUMER_OFFSET, header))


def pulled(broker: Clocked, at: int, group: str = "g") -> Command:
    return ask(broker, pull_request("T", at, consumer_group=group))


@pytest.fixture
def broker() -> Clocked:
    """A broker with four messages on the disk and five more, all of which a group has read."""
    broker = Clocked(SimulatedFileSystem(), config_of(FOLDER, flush=Flush.ASYNC))
    put(broker, b"safe", SAFE)
    pulled(broker, 0)
    commit(broker, SAFE)
    broker.wired.broker.flush_offsets()
    broker.wired.save()
    broker.wired.broker.store.tick(broker.now_ms)
    broker.pass_time(10_000)
    broker.wired.broker.store.tick(broker.now_ms)
    broker.wired.sync()
    put(broker, b"read", READ - SAFE)
    assert len(list(MessageList(pulled(broker, SAFE).body))) == READ - SAFE
    return broker


def cut_power(broker: Clocked) -> None:
    """Cut the power so that all is lost that was not synced."""
    for seed in range(1000):
        disk = broker.disk.power_cut(Random(seed))
        tried = Clocked(disk, broker.config)
        end = tried.wired.broker.store.max_offset("T", 0)
        if end == SAFE:
            broker.wired, broker.peer, broker.disk = tried.wired, tried.peer, tried.disk
            return
    raise AssertionError("nothing is lost in any of these")


@pytest.mark.parametrize("count", [1, 4, 5, 6, 20])
def test_a_member_ahead_of_its_queue_is_told_to_go_back(broker: Clocked, count: int) -> None:
    cut_power(broker)
    put(broker, b"new", count)
    for _ in range(2):  # The first answer may be lost.
        answer = pulled(broker, READ)
        assert (answer.code, answer.read(PullMessageResponse).next_begin_offset) == (MOVED, SAFE)
    assert commit(broker, READ).remark is not None, "from before the cut"
    answer = pulled(broker, SAFE)
    assert [each.body for each in MessageList(answer.body)] == [b"new"] * count
    assert commit(broker, SAFE + count).remark is None


def test_who_is_not_ahead_goes_on(broker: Clocked) -> None:
    cut_power(broker)
    put(broker, b"new", 8)
    assert pulled(broker, SAFE).code == 0
    assert pulled(broker, READ).code == 0, "it has read this now"


def test_a_group_that_begins_after_the_cut_begins_where_it_likes(broker: Clocked) -> None:
    cut_power(broker)
    put(broker, b"new", 8)
    assert pulled(broker, READ, group="late").code == 0
    assert commit(broker, READ, group="late").remark is None
    assert pulled(broker, READ, group="late").code == 0


def test_after_a_kill_nobody_is_ahead(broker: Clocked) -> None:
    broker.start(broker.disk.kill())
    put(broker, b"new", 1)
    assert [each.body for each in MessageList(pulled(broker, READ).body)] == [b"new"]


def test_an_operator_may_move_a_group_beyond_the_former_end(broker: Clocked) -> None:
    cut_power(broker)
    put(broker, b"new", 8)
    broker.wired.broker.state.offsets.reset("g", "T", 0, 11)
    for at, code in ((READ, MOVED), (11, 0)):
        assert pulled(broker, at).code == code


def test_who_comes_much_later_is_not_looked_at(broker: Clocked) -> None:
    cut_power(broker)
    put(broker, b"new", 8)
    rewound, elapsed_ms = broker.wired.broker.state.rewound, broker.wired.broker.state.elapsed_ms()
    rewound.expire(elapsed_ms + LOOK_FOR_MS - 1)
    assert rewound.pulled
    rewound.expire(elapsed_ms + LOOK_FOR_MS)
    assert not rewound.pulled
    assert pulled(broker, READ).code == 0
