"""How the broker is doing, under the names that Apache's tools look for (28).

Apache's brokers are judged by the queues of their thread pools, which do not exist here. The sends
that wait for the disk stand in their place, as the closest thing. Other missing values are 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.handlers.reading import answered, store_time_of
from cometmq.proto.bodies import KVTable
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.version import CURRENT_VERSION, version_name
from cometmq.store.disk.cold import Cold
from cometmq.store.messages.dispatch import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.session import Session, State
    from cometmq.net import Later
    from cometmq.proto.command import Command
    from cometmq.proto.durations import Durations

_TIMES: Final = (
    ("<=0ms", 1),
    ("0~10ms", 10),
    ("10~50ms", 50),
    ("50~100ms", 100),
    ("100~200ms", 200),
    ("200~500ms", 500),
    ("500ms~1s", 1_000),
    ("1~2s", 2_000),
    ("2~3s", 3_000),
    ("3~4s", 4_000),
    ("4~5s", 5_000),
    ("5~10s", 10_000),
    ("10s~", None),
)
"""Apache's classes of send durations, and the end of each in ms."""

_SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_BATCH_ONCE,
)

_UNITS: Final = ("Ki", "Mi", "Gi", "Ti", "Pi")

_NOTHING: Final = {
    "ackThreadPoolQueueHeadWaitTimeMills": "0",
    "ackThreadPoolQueueSize": "0",
    "dispatchMaxBuffer": "0",
    "EndTransactionQueueSize": "0",
    "litePullThreadPoolQueueHeadWaitTimeMills": "0",
    "litePullThreadPoolQueueSize": "0",
    "pageCacheLockTimeMills": "0",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
    "pullThreadPoolQueueSize": "0",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "queryThreadPoolQueueSize": "0",
    "remainTransientStoreBufferNumbs": "2147483647",
    "startAcceptSendRequestTimeStamp": "0",
    "timerCongestNum": "0",
    "timerDequeueTps": "0.0",
    "timerEnqueueTps": "0.0",
    "timerOffsetBehind": "0",
    "timerReadBehind": "0",
}
"""Values that have no counterpart here."""


def get_broker_runtime_info(request: Command, session: Session) -> Command | Later:
    """28: how the broker is doing."""
    state = session.state

    def look(fetched: Fetched) -> Command | Sequence[Cold]:
        store = state.store
        first = None
        if store.first_offset < store.readable_offset:
            first = store.find_record(store.first_offset, fetched)
        if isinstance(first, Cold):
            return [first]
        table = {
            **_NOTHING,
            **dict(_broker(state)),
            **_store(state),
            "earliestMessageTimeStamp": str(-1 if first is None else store_time_of(first)),
        }
        return request.answer(ResponseCode.SUCCESS, body=KVTable(table=table).encode())

    return answered(request, session, look)


def _broker(state: State) -> Iterator[tuple[str, str]]:
    """Yield the values about the process and its traffic."""
    yield "brokerActive", "true"
    yield "brokerVersion", str(CURRENT_VERSION)
    yield "brokerVersionDesc", version_name(CURRENT_VERSION)
    yield "bootTimestamp", str(state.boot_ms)
    yield "runtime", _lasting(state.now_ms() - state.boot_ms)
    totals = state.recent.totals()
    for moment, then in (
        ("YesterdayMorning", state.recent.yesterday),
        ("TodayMorning", state.recent.today),
        ("TodayNow", totals),
    ):
        yield f"msgPutTotal{moment}", str(then.put)
        yield f"msgGetTotal{moment}", str(then.got)
    put, got, found, missed = state.recent.per_second()
    yield "putTps", _rates(put)
    yield "getTransferredTps", _rates(got)
    yield "getTransferedTps", _rates(got)  # Spelt like this up to 4.9.
    yield "getFoundTps", _rates(found)
    yield "getMissTps", _rates(missed)
    yield "getTotalTps", _rates([sum(pair) for pair in zip(found, missed, strict=True)])
    yield from _puts(state)
    waiting = state.acknowledgements
    yield "sendThreadPoolQueueSize", str(len(waiting))
    yield "sendThreadPoolQueueHeadWaitTimeMills", str(waiting.oldest_ms(state.elapsed_ms()))
    limit = str(state.config.limits.in_flight_max)
    for name in ("send", "pull", "litePull", "query", "ack"):
        yield f"{name}ThreadPoolQueueCapacity", limit
    yield "EndTransactionThreadPoolQueueCapacity", limit
    for level, offset in state.delays.offsets().items():
        end = state.store.max_offset(SCHEDULE_TOPIC, level - 1)
        yield f"scheduleMessageOffset_{level}", f"{offset},{end}"


def _puts(state: State) -> Iterator[tuple[str, str]]:
    traffic = state.traffic
    put = traffic.all_put
    refused = sum(n for (code, _), n in traffic.refused.items() if code in _SENDS)
    times = traffic.send_durations
    yield "putMessageTimesTotal", str(put.messages)
    yield "putMessageSizeTotal", str(put.size)
    yield "putMessageAverageSize", str(put.size / put.messages if put.messages else 0.0)
    yield "putMessageFailedTimes", str(refused)
    yield "putMessageEntireTimeMax", str(times.quantile_us(1.0) // 1000)
    yield "getMessageEntireTimeMax", str(traffic.pull_durations.quantile_us(1.0) // 1000)
    yield "putLatency99", f"{times.quantile_us(0.99) / 1000:.2f}"
    yield "putLatency999", f"{times.quantile_us(0.999) / 1000:.2f}"
    yield "putMessageDistributeTime", _distribution(times)


def _store(state: State) -> Mapping[str, str]:
    store = state.store
    space = store.expiry.space()
    ratio = f"{(space.total - space.free) / space.total if space.total else 0:.2f}"
    return {
        "commitLogMinOffset": str(store.first_offset),
        "commitLogMaxOffset": str(store.end_offset),
        "dispatchBehindBytes": str(store.end_offset - store.readable_offset),
        "remainHowManyDataToFlush": _bytes(store.end_offset - store.synced_offset),
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{store.root}/commitlog": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {_bytes(space.total)}, Free : {_bytes(space.free)}.",
    }


def _rates(rates: Sequence[float]) -> str:
    """Return rates as Apache writes them; 0.0 before any time has passed."""
    return " ".join(map(str, rates)) if rates else "0.0"


def _distribution(times: Durations) -> str:
    """Return the counts of sends by duration, each taken at the end of its power-of-two bucket."""
    counts = dict.fromkeys([name for name, _ in _TIMES], 0)
    for bucket, count in enumerate(times.counts):
        longest_ms = (1 << bucket) / 1024
        name = next(name for name, end in _TIMES if end is None or longest_ms <= end)
        counts[name] += count
    return "".join(f"[{name}]:{count} " for name, count in counts.items())


def _lasting(time_ms: int) -> str:
    minutes, seconds = divmod(max(time_ms, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _bytes(size: int) -> str:
    """Return a size as Apache writes it."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    return f"{size / (1 << 10 * power):.1f} {_UNITS[power - 1]}B"
