"""The heartbeat's fingerprint, and heartbeats of clients in Go."""

from __future__ import annotations

import msgspec

from cometmq.proto.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from cometmq.proto.java import string_hash

SUBSCRIPTION = SubscriptionData(
    code_set=(2598919,),
    sub_string="TagA",
    sub_version=1700000000000,
    tags_set=("TagA",),
    topic="T",
)
CONSUMER = ConsumerData(
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    consume_type=ConsumeType.CONSUME_PASSIVELY,
    group_name="g",
    message_model=MessageModel.CLUSTERING,
    subscription_data_set=(SUBSCRIPTION,),
)
HEARTBEAT = HeartbeatData(
    client_id="10.0.0.9@4242#87654321",
    consumer_data_set=(CONSUMER,),
    producer_data_set=(ProducerData(group_name="pg"),),
)


def test_the_fingerprint_is_the_hash_code_of_the_text_without_what_changes() -> None:
    stable = (
        '{"clientID":"","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING",'
        '"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919],'
        '"expressionType":"TAG","subString":"TagA","subVersion":0,"tagsSet":["TagA"],'
        '"topic":"T"}],"unitMode":false}],"heartbeatFingerprint":0,'
        '"producerDataSet":[{"groupName":"pg"}],"withoutSub":false}'
    )
    assert HEARTBEAT.fingerprint() == string_hash(stable)


def test_times_ids_and_the_fingerprint_itself_do_not_change_it() -> None:
    later = msgspec.structs.replace(SUBSCRIPTION, sub_version=1800000000000)
    consumer = msgspec.structs.replace(CONSUMER, subscription_data_set=(later,))
    other = HeartbeatData(
        client_id="another",
        consumer_data_set=(consumer,),
        heartbeat_fingerprint=7,
        producer_data_set=HEARTBEAT.producer_data_set,
        without_sub=True,
    )
    assert other.fingerprint() == HEARTBEAT.fingerprint()


def test_another_tag_changes_it() -> None:
    other = msgspec.structs.replace(SUBSCRIPTION, sub_string="TagB")
    consumer = msgspec.structs.replace(CONSUMER, subscription_data_set=(other,))
    changed = msgspec.structs.replace(HEARTBEAT, consumer_data_set=(consumer,))
    assert changed.fingerprint() != HEARTBEAT.fingerprint()


def test_a_heartbeat_of_go_with_its_codes_as_texts_is_read() -> None:
    text = b"""{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"g",
    "consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",
    "consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","unitMode":false,"subscriptionDataSet":[{
    "classFilterMode":false,"topic":"T","subString":"TagA","tagsSet":["TagA"],
    "codeSet":["2598919"],"subVersion":1700000000000000000,"expressionType":"TAG"}]}]}"""
    (consumer,) = HeartbeatData.decode(text).consumer_data_set
    assert consumer.subscription_data_set == (
        msgspec.structs.replace(SUBSCRIPTION, sub_version=1700000000000000000),
    )
