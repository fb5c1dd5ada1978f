"""Routes in the two forms of 105."""

from __future__ import annotations

from cometmq.proto.bodies import BrokerData, QueueData, TopicQueueMappingInfo, TopicRouteData

ROUTE = TopicRouteData(
    broker_datas=(
        BrokerData(
            broker_addrs={0: "10.0.0.1:10911", 1: "10.0.0.2:10911"},
            broker_name="broker-ä",
            cluster="C",
            zone_name="z",
        ),
    ),
    order_topic_conf="broker-ä:8",
    queue_datas=(QueueData(broker_name="broker-ä", perm=6),),
    topic_queue_mapping_by_broker={
        "broker-ä": TopicQueueMappingInfo(bname="broker-ä", curr_id_map={3: 0})
    },
)


def test_new_clients_get_standard_json_with_characters_as_they_are() -> None:
    assert ROUTE.encode_standard().decode() == (
        '{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},'
        '"brokerName":"broker-ä","cluster":"C","enableActingMaster":false,"zoneName":"z"}],'
        '"filterServerTable":{},"orderTopicConf":"broker-ä:8",'
        '"queueDatas":[{"brokerName":"broker-ä","perm":6,"readQueueNums":0,'
        '"topicSysFlag":0,"writeQueueNums":0}],'
        '"topicQueueMappingByBroker":{"broker-ä":{"bname":"broker-ä",'
        '"currIdMap":{"3":0},"dirty":false,"epoch":0,"totalQueues":0}}}'
    )


def test_characters_beyond_the_bmp_are_escaped_in_both_forms() -> None:
    route = TopicRouteData(order_topic_conf="\U0001f600:8")
    for text in (route.encode(), route.encode_standard()):
        assert rb'"orderTopicConf":"\uD83D\uDE00:8"' in text
        assert TopicRouteData.decode(text) == route


def test_old_clients_get_bare_broker_ids() -> None:
    text = ROUTE.encode().decode()
    assert '"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"}' in text
    assert '"currIdMap":{3:0}' in text


def test_both_forms_read_as_the_same() -> None:
    assert TopicRouteData.decode(ROUTE.encode()) == ROUTE
    assert TopicRouteData.decode(ROUTE.encode_standard()) == ROUTE
