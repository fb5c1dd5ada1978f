"""The queues and addresses of a route."""

from __future__ import annotations

from cometmq.client._core.queues import Queue
from cometmq.client._core.routes import guess_route, read_route
from cometmq.proto.bodies import BrokerData, QueueData, TopicRouteData


def route_data(order: str | None = None) -> TopicRouteData:
    return TopicRouteData(
        broker_datas=(
            BrokerData(broker_name="b", broker_addrs={0: "b:1", 2: "b:3"}),
            BrokerData(broker_name="a", broker_addrs={1: "a:2"}),
            BrokerData(broker_name="c", broker_addrs={0: "c:1"}),
        ),
        queue_datas=(
            QueueData(broker_name="c", perm=2, read_queue_nums=1, write_queue_nums=1),
            QueueData(broker_name="b", perm=6, read_queue_nums=1, write_queue_nums=2),
            QueueData(broker_name="a", perm=6, read_queue_nums=2, write_queue_nums=2),
        ),
        order_topic_conf=order,
    )


def test_one_sends_to_masters_and_reads_from_whoever_has_it() -> None:
    route = read_route("T", route_data())
    assert route.to_send == (Queue("T", "b", 0), Queue("T", "b", 1), Queue("T", "c", 0))
    assert route.to_read == (Queue("T", "a", 0), Queue("T", "a", 1), Queue("T", "b", 0))


def test_an_ordered_topic_has_the_queues_that_its_setting_names() -> None:
    route = read_route("T", route_data("c:2;b:1;nonsense;a:x"))
    assert route.to_send == (Queue("T", "c", 0), Queue("T", "c", 1), Queue("T", "b", 0))


def test_an_address_is_the_preferred_one_or_the_next_or_any() -> None:
    route = read_route("T", route_data())
    assert (route.address_of("b"), route.address_of("b", 1)) == ("b:1", "b:3")
    assert (route.address_of("a"), route.master_of("a")) == ("a:2", None)
    assert route.address_of("b", 7) == "b:1"
    assert route.address_of("nobody") is None


def test_a_topic_that_a_send_would_make_is_guessed_from_the_template() -> None:
    route = guess_route("T", route_data(), 1)
    assert route.to_send == (Queue("T", "b", 0), Queue("T", "c", 0))
    assert route.is_guess
