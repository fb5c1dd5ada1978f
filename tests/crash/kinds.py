"""A broker ended at every point of writing special messages: `python -m tests.crash.kinds`.

These are transactions, delays, messages sent back, and repeated sends. Each case prepares something
and then acts, on a simulated disk. It is repeated with the process ended before and after each
operation of the disk in turn, and with the log's writes cut off after every few bytes, so also
between the two records that most cases write. The next process continues with what the kill or the
power cut left, and the case checks the outcome: no loss, nothing twice where that is promised, no
half message before its commit.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Final, NamedTuple

from tests.broker.clocked import FOLDER, TOPIC
from tests.broker.running import config_of, send_request
from tests.broker.test_transactions import COMMIT, INTERVAL, ROLLBACK, TIMEOUT, Half, Shop
from tests.crash.disk import Killed, Moment, Operation, Partial, SimulatedFileSystem

from cometmq.broker.transaction_records import GIVEN_UP_TOPIC
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import ResumeCheckHalfMessage, SendMessageResponse
from cometmq.proto.commands.send import ConsumerSendMsgBack
from cometmq.proto.message_id import decode_offset_id
from cometmq.store.config import Flush

CUTS: Final = tuple(range(40, 1_200, 40))
"""Bytes after which a write of the log is cut off."""
SECOND: Final = 1_000
EARLIER: Final = b"earlier"
ONCE_ID: Final = "7F0000014D2C18B4AAC2000000000017"


class Point(NamedTuple):
    """Where the process ends: at an operation of the disk, maybe in the middle of it."""

    number: int
    moment: Moment
    cut: int = 0


class Case(NamedTuple):
    """What is done, and what must come of it."""

    prepare: Callable[[Shop], str]
    """Return what `act` needs to know."""
    act: Callable[[Shop, str], None]
    finish: Callable[[Shop, str], None]
    """Continue in the next process, and check."""
    checks_max: int = 15


def half_of(shop: Shop, known: str) -> Half:
    """Read what `begun` returned."""
    offset, queue_offset, key = known.split()
    return Half(int(offset), int(queue_offset), key)


def begun(shop: Shop) -> str:
    """Send a half message."""
    half = shop.half(b"paid")
    return f"{half.physical_offset} {half.offset} {half.key}"


def begun_and_kept(shop: Shop) -> str:
    """Send a half message like those before it, so that its end need not read it."""
    for _ in range(2):
        shop.end(shop.half(EARLIER), COMMIT)
    known = begun(shop)
    opened = shop.wired.broker.transactions.table.find(half_of(shop, known).offset)
    assert opened is not None
    assert opened.kept is not None
    return known


def begun_and_heard(shop: Shop) -> str:
    """Send a half message, and stay connected to be asked about it."""
    shop.join()
    return begun(shop)


def committed(shop: Shop, known: str) -> None:
    """Commit."""
    shop.end(half_of(shop, known), COMMIT)
    shop.save()


def rolled_back(shop: Shop, known: str) -> None:
    """Roll back."""
    shop.end(half_of(shop, known), ROLLBACK)
    shop.save()


def asked(shop: Shop, known: str) -> None:
    """Let the time pass after which producers are asked."""
    shop.pass_time(TIMEOUT)
    shop.save()


def answer_all(shop: Shop, how: int) -> None:
    """Answer whatever is asked from here on."""
    peer = shop.join()
    for _ in range(3):
        shop.pass_time(INTERVAL)
        for half, _ in shop.asked(peer):
            assert shop.end(half, how, is_answer=True) == ResponseCode.SUCCESS


def new_bodies(shop: Shop) -> list[bytes]:
    """The bodies of all messages but those that were there before."""
    return [body for body in shop.bodies() if body != EARLIER]


def is_committed_once(shop: Shop, known: str) -> None:
    """Whatever was written, the message comes once it is committed, and only once."""
    assert new_bodies(shop) in ([], [b"paid"])
    answer_all(shop, COMMIT)
    shop.end(half_of(shop, known), COMMIT)
    shop.restart()
    assert (new_bodies(shop), shop.open_count) == ([b"paid"], 0)


def is_committed_by_its_answer(shop: Shop, known: str) -> None:
    """A question commits nothing; its answer does, once."""
    assert new_bodies(shop) == []
    is_committed_once(shop, known)


def is_never_seen(shop: Shop, known: str) -> None:
    """A message that is rolled back does not come."""
    answer_all(shop, ROLLBACK)
    shop.end(half_of(shop, known), ROLLBACK)
    shop.restart()
    assert (new_bodies(shop), shop.open_count) == ([], 0)


def asked_once(shop: Shop) -> str:
    """Have a transaction asked about for the last time."""
    known = begun_and_heard(shop)
    shop.pass_time(TIMEOUT)
    return known


def given_up(shop: Shop, known: str) -> None:
    """Let the time pass after which the transaction is given up."""
    shop.pass_time(INTERVAL)
    shop.save()


def is_given_up(shop: Shop, known: str) -> None:
    """The message is in the topic of those given up; maybe twice, as nothing forbids that."""
    shop.join()
    for _ in range(3):
        shop.pass_time(INTERVAL)
    assert len(shop.messages(topic=GIVEN_UP_TOPIC)) in (1, 2)
    assert (shop.bodies(), shop.open_count) == ([], 0)


def resumable(shop: Shop) -> str:
    """Have a transaction given up."""
    shop.half(b"paid", born_timestamp=0)  # Too old to be asked about.
    shop.pass_time(TIMEOUT)
    (message,) = shop.messages(topic=GIVEN_UP_TOPIC)
    return message.offset_id


def resumed(shop: Shop, known: str) -> None:
    """Resume it."""
    request = ResumeCheckHalfMessage(known)
    shop.ask(Command.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, request))
    shop.save()


def is_resumed_once(shop: Shop, known: str) -> None:
    """Asking again makes no second transaction of it."""
    resumed(shop, known)
    assert shop.open_count == 1


def nothing(shop: Shop) -> str:
    """Prepare nothing."""
    return ""


def delayed(shop: Shop) -> str:
    """Send two delayed messages."""
    for number in range(2):
        properties = f"UNIQ_KEY\x01K{number}\x02DELAY\x011\x02"
        shop.ask(send_request(TOPIC, b"%d" % number, properties=properties))
    return ""


def delivered(shop: Shop, known: str) -> None:
    """Let both be due."""
    shop.pass_time(SECOND)
    shop.save()


def has_come_once(shop: Shop, known: str) -> None:
    """Both come, once."""
    for _ in range(3):
        shop.pass_time(SECOND)
        shop.restart()
    assert shop.bodies() == [b"0", b"1"]


def consumed(shop: Shop) -> str:
    """Send a message that a consumer cannot consume."""
    said = shop.ask(send_request(TOPIC, b"bad")).read(SendMessageResponse)
    return said.msg_id


def back_request(known: str) -> Command:
    """Make the request that says that it could not be consumed."""
    offset = decode_offset_id(known).physical_offset
    header = ConsumerSendMsgBack(offset, "billing", 1, origin_topic=TOPIC)
    return Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)


def give_back(shop: Shop, known: str) -> None:
    """Send it back: this creates a topic, which must be saved before the answer is sent."""
    shop.wired.give(shop.peer, shop.wired.frame(shop.peer, back_request(known)))
    shop.wired.sync()
    shop.save()
    shop.wired.sync()
    (answer,) = shop.wired.answers(shop.peer)
    assert answer.code == ResponseCode.SUCCESS


def sent_back(shop: Shop, known: str) -> None:
    """Send it back, and let it be due."""
    give_back(shop, known)
    shop.pass_time(SECOND)
    shop.save()


def comes_back(shop: Shop, known: str) -> None:
    """It comes again, once. Without an answer it is sent back again, and then it may come twice."""
    shop.pass_time(10 * SECOND)
    come = shop.bodies("%RETRY%billing")
    assert come in ([], [b"bad"])
    if not come:
        give_back(shop, known)
        shop.pass_time(10 * SECOND)
        assert set(shop.bodies("%RETRY%billing")) == {b"bad"}


def once_request() -> Command:
    """Make the send of a producer that wants its message stored once."""
    properties = f"UNIQ_KEY\x01{ONCE_ID}\x02IDEMPOTENT\x011\x02"
    return send_request(TOPIC, b"once", properties=properties)


def sent_once(shop: Shop, known: str) -> None:
    """Send it."""
    shop.ask(once_request())
    shop.save()


def is_stored_once(shop: Shop, known: str) -> None:
    """Sending it again gets the place of the only message."""
    said = shop.ask(once_request()).read(SendMessageResponse)
    (message,) = shop.messages()
    assert said.queue_offset == message.queue_offset
    assert decode_offset_id(said.msg_id).physical_offset == message.physical_offset


CASES: Final = {
    "commit": Case(begun, committed, is_committed_once),
    "rollback": Case(begun, rolled_back, is_never_seen),
    "commit from memory": Case(begun_and_kept, committed, is_committed_once),
    "rollback from memory": Case(begun_and_kept, rolled_back, is_never_seen),
    "question": Case(begun_and_heard, asked, is_committed_by_its_answer),
    "giving up": Case(asked_once, given_up, is_given_up, 1),
    "resumption": Case(resumable, resumed, is_resumed_once),
    "delay": Case(delayed, delivered, has_come_once),
    "send back": Case(consumed, sent_back, comes_back),
    "repeated send": Case(nothing, sent_once, is_stored_once),
}


class EndAt:
    """A hook of the disk that ends the process at a point."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._count = 0
        self.is_log_write = False

    def __call__(self, operation: Operation) -> None:
        """Count what begins, and end at the point."""
        self._count += operation.moment is Moment.BEFORE
        if self._count != self._point.number or operation.moment is not self._point.moment:
            return
        self.is_log_write = operation.verb == "write" and "commitlog" in operation.path
        if self._point.cut and self.is_log_write:
            raise Partial(self._point.cut, Killed())
        raise Killed


def end_at(case: Case, point: Point, flush: Flush) -> EndAt | None:
    """Play a case with its process ended at a point; return None if it is over before that."""
    config = replace(config_of(FOLDER, flush=flush), transaction_checks_max=case.checks_max)
    shop = Shop(SimulatedFileSystem(), config)
    known = case.prepare(shop)
    shop.save()
    hook = shop.disk.hook = EndAt(point)
    try:
        case.act(shop, known)
        return None
    except Killed:
        pass
    finally:
        shop.disk.hook = None
    disk = shop.disk
    shop.start(disk.power_cut(Random(point.number)) if flush is Flush.SYNC else disk.kill())
    case.finish(shop, known)
    return hook


def points_of(case: Case, flush: Flush) -> Iterator[Point]:
    """Play a case with its process ended at each point in turn."""
    number = 0
    while True:
        number += 1
        for moment in Moment:
            point = Point(number, moment)
            ended = end_at(case, point, flush)
            if ended is None:
                return
            yield point
            if moment is Moment.BEFORE and ended.is_log_write:
                for cut in CUTS:
                    point = Point(number, moment, cut)
                    assert end_at(case, point, flush) is not None
                    yield point


def main() -> int:
    """Play all cases with each way of flushing: kills if it is async, power cuts if it is sync."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.kinds", description=__doc__)
    parser.add_argument("case", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    logging.disable(logging.WARNING)  # A broker that gives up a transaction says so at every point.
    for name in parser.parse_args().case:
        for flush in Flush:
            count = 0
            for point in points_of(CASES[name], flush):
                count += 1
                assert count < 10_000, point
            assert count > 20, f"{name}: {count} points are not all"
            ends = "power cuts" if flush is Flush.SYNC else "kills"
            sys.stdout.write(f"{name}: {count} {ends}, each at another point, no finding\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
