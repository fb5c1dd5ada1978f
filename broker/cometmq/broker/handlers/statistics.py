"""Traffic statistics: one counter over a minute, an hour and a day (315)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.errors import RequestError
from cometmq.broker.traffic import Flow, Rate, Window
from cometmq.proto.bodies import BrokerStats, BrokerStatsItem
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.admin import ViewBrokerStatsData

if TYPE_CHECKING:
    from cometmq.broker.session import Session, State
    from cometmq.proto.command import Command

PUT: Final = ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")
GOT: Final = ("GROUP_GET_NUMS", "GROUP_GET_SIZE")
BROKER_PUT: Final = "BROKER_PUT_NUMS"
BROKER_GOT: Final = "BROKER_GET_NUMS"
SENT_BACK: Final = "SNDBCK_PUT_NUMS"


def view_broker_stats_data(request: Command, session: Session) -> Command:
    """315: the traffic of one counter; one that never had a message counts as unknown."""
    header = request.read(ViewBrokerStatsData)
    name, key = header.stats_name, header.stats_key
    state = session.state
    flow = _flow(name, key, state)
    if flow is None or not flow.messages:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    is_size = name.endswith("_SIZE")
    now_ms = state.elapsed_ms()
    minute, hour, day = (_item(flow.rate(window, now_ms), is_size) for window in Window)
    body = BrokerStats(stats_minute=minute, stats_hour=hour, stats_day=day)
    return request.answer(ResponseCode.SUCCESS, body=body.encode())


def _flow(name: str, key: str, state: State) -> Flow | None:
    traffic = state.traffic
    if name in PUT:
        return traffic.put.get(key)
    topic, _, group = key.partition("@")
    if name in GOT:
        return traffic.got.get((topic, group))
    if name == SENT_BACK:
        return traffic.sent_back.get((topic, group))
    if name in (BROKER_PUT, BROKER_GOT) and key == state.config.cluster_name:
        traffic.sum_up()
        return traffic.all_put if name == BROKER_PUT else traffic.all_got
    return None


def _item(rate: Rate, is_size: bool) -> BrokerStatsItem:
    total = rate.size if is_size else rate.messages
    per_second = rate.size_per_second if is_size else rate.messages_per_second
    return BrokerStatsItem(
        average_per_call=total / rate.calls if rate.calls else 0.0, sum=total, tps=per_second
    )
