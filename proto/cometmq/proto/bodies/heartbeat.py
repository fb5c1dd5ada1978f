"""The heartbeat (34) and its parts; the check of a subscription (46) before it."""

from __future__ import annotations

import msgspec

from cometmq.proto.bodies.enums import ConsumeFromWhere, ConsumeType, MessageModel
from cometmq.proto.body import Body, preset, wire
from cometmq.proto.header import I32, I64
from cometmq.proto.java import string_hash


class SubscriptionData(Body):
    """A group's subscription to a topic. Go writes the elements of `code_set` as strings."""

    class_filter_mode: bool = preset(False)
    code_set: tuple[I32, ...] = preset(())
    """The hash codes of `tags_set`, by Java's `String.hashCode`; both are empty for `*`."""

    expression_type: str = preset("TAG")
    """`TAG` or `SQL92`."""

    sub_string: str | None = None
    """`*`, tags joined by `||`, or the SQL expression."""

    sub_version: I64 = preset(0)
    """A time (Java ms, Go ns): the newest subscription of a topic counts."""

    tags_set: tuple[str, ...] = preset(())
    topic: str


class ConsumerData(Body):
    """One consumer group in a client."""

    consume_from_where: ConsumeFromWhere | None = None
    consume_type: ConsumeType | None = None
    group_name: str
    message_model: MessageModel | None = None
    subscription_data_set: tuple[SubscriptionData, ...] = preset(())
    unit_mode: bool = preset(False)


class ProducerData(Body):
    """One producer group in a client."""

    group_name: str


class HeartbeatData(Body):
    """34: a client, its groups, and their subscriptions."""

    client_id: str = wire("clientID")
    consumer_data_set: tuple[ConsumerData, ...] = preset(())
    heartbeat_fingerprint: I32 = preset(0)
    """Not 0 in heartbeats V2: see `fingerprint`."""

    producer_data_set: tuple[ProducerData, ...] = preset(())
    without_sub: bool = preset(False)
    """Only a sign of life: the subscriptions are left out, but not withdrawn."""

    def fingerprint(self) -> int:
        """Return the number in a heartbeat V2 by which the broker sees changes of subscriptions.

        It is Java's hash code of the text, without the parts that change from beat to beat: the
        times of the subscriptions, and the client's id. Servers only compare it with the last one.
        """
        consumers = tuple(
            msgspec.structs.replace(
                consumer,
                subscription_data_set=tuple(
                    msgspec.structs.replace(subscription, sub_version=0)
                    for subscription in consumer.subscription_data_set
                ),
            )
            for consumer in self.consumer_data_set
        )
        stable = HeartbeatData(
            client_id="", consumer_data_set=consumers, producer_data_set=self.producer_data_set
        )
        return string_hash(stable.encode().decode())


class CheckClientConfig(Body):
    """46: ask whether a subscription compiles."""

    client_id: str | None = None
    group: str | None = None
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None
