"""The commands of Apache's `mqadmin` work, and print what they print about an Apache cluster."""

from __future__ import annotations

import base64
import re
import threading
from typing import NamedTuple

import pytest
from tests.interop.apache_java import ask, class_path
from tests.interop.target import Target
from tests.interop.test_clients import JAVA, RELEASE

from cometmq.client import ClientConfig, SyncClient

pytestmark = pytest.mark.slow

TOPIC = "MadeByMqadmin"
GROUP = "GroupOfMqadmin"


class Case(NamedTuple):
    """A command, with NS and BROKER for their addresses, and what it must print."""

    command: str
    wanted: str


CASES = (
    Case("clusterList -n NS", r"DefaultCluster +broker-a +0 +BROKER"),
    Case(f"updateTopic -n NS -b BROKER -t {TOPIC} -r 3 -w 3", r"create topic to BROKER success"),
    Case("topicList -n NS", rf"(?m)^{TOPIC}$"),
    Case("topicList -n NS -c", rf"DefaultCluster +{TOPIC}"),
    Case(f"topicRoute -n NS -t {TOPIC}", r'"writeQueueNums": ?3'),
    Case(f"topicClusterList -n NS -t {TOPIC}", r"DefaultCluster"),
    Case(f"topicStatus -n NS -t {TOPIC}", r"(?s)broker-a +0 +0 +0.*broker-a +2 +0 +0"),
    Case(f"updateTopicPerm -n NS -b BROKER -t {TOPIC} -p 4", r"success"),
    Case(f"updateTopicPerm -n NS -b BROKER -t {TOPIC} -p 6", r"success"),
    Case(f"updateOrderConf -n NS -t {TOPIC} -m put -v broker-a:3", r"success"),
    Case(f"updateOrderConf -n NS -t {TOPIC} -m get", r"broker-a:3"),
    Case("updateNamesrvConfig -n NS -k orderMessageEnable -v true", r"success"),
    Case(f"topicRoute -n NS -t {TOPIC}", r'"orderTopicConf": ?"broker-a:3"'),
    Case(f"updateOrderConf -n NS -t {TOPIC} -m delete", r"success"),
    Case(f"topicRoute -n NS -t {TOPIC}", r'"queueDatas"'),
    # If there is no value, the tool asks for it and prints the refusal.
    Case("updateOrderConf -n NS -t OrderedByMqadmin -m put -v broker-a:1", r"success"),
    Case(
        "updateTopic -n NS -b BROKER -t OrderedByMqadmin -r 2 -w 2 -o true",
        r"set broker orderConf. isOrder=true, orderConf=\[broker-a:2\]",
    ),
    Case("topicRoute -n NS -t OrderedByMqadmin", r'"orderTopicConf": ?"broker-a:2"'),
    Case("updateOrderConf -n NS -t OrderedByMqadmin -m delete", r"success"),
    Case("updateNamesrvConfig -n NS -k orderMessageEnable -v false", r"success"),
    Case(f"sendMessage -n NS -t {TOPIC} -p hello -k thekey -c red -b broker-a -i 0", r"SEND_OK"),
    Case(f"topicStatus -n NS -t {TOPIC}", r"broker-a +0 +0 +1 "),
    Case(f"consumeMessage -n NS -t {TOPIC} -b broker-a -i 0 -o 0 -c 1", r"BODY: hello"),
    Case(f"printMsg -n NS -t {TOPIC}", r"BODY: hello"),
    Case(f"queryMsgByKey -n NS -t {TOPIC} -k thekey", r"(?m)^[0-9A-F]{32,} +0 +0"),
    Case(f"queryMsgByOffset -n NS -t {TOPIC} -b broker-a -i 0 -o 0", r"Keys: +\[thekey\]"),
    Case(
        f"updateSubGroup -n NS -b BROKER -g {GROUP} -r 5",
        r"create subscription group to BROKER success",
    ),
    Case(f"getConsumerConfig -n NS -g {GROUP}", r"retryMaxTimes += +5"),
    Case("brokerStatus -n NS -b BROKER", r"(?s)brokerVersionDesc.*putMessageTimesTotal"),
    Case("getBrokerConfig -n NS -b BROKER", r"brokerName +=  broker-a"),
    Case("updateBrokerConfig -n NS -b BROKER -k noSuchKey -v 1", r"success"),
    Case("getNamesrvConfig -n NS", r"listenPort"),
    Case("updateKvConfig -n NS -s space -k key -v value", r"success"),
    Case("deleteKvConfig -n NS -s space -k key", r"success"),
    Case("wipeWritePerm -n NS -b broker-a", r"wipe write perm of broker\[broker-a\].*OK, [1-9]"),
    Case("addWritePerm -n NS -b broker-a", r"add write perm of broker\[broker-a\].*OK, [1-9]"),
    Case("brokerConsumeStats -n NS -b BROKER", r"#Diff|#Topic|Diff Total"),
    Case("consumerProgress -n NS", r"#Group"),
    Case("statsAll -n NS", rf"{TOPIC}"),
    Case("cleanUnusedTopic -n NS -b BROKER", r"success"),
    Case("cleanExpiredCQ -n NS -b BROKER", r"success"),
    Case("deleteExpiredCommitLog -n NS -b BROKER", r"success"),
    Case(
        f"deleteSubGroup -n NS -b BROKER -g {GROUP}",
        r"delete subscription group \[" + GROUP + r"\] from broker \[BROKER\] success",
    ),
    Case(
        f"deleteTopic -n NS -c DefaultCluster -t {TOPIC}",
        r"delete topic \[" + TOPIC + r"\] from NameServer success",
    ),
)


@pytest.fixture(scope="module")
def printed(target: Target) -> list[str]:
    """What each of the commands printed, in their order."""
    path = class_path(RELEASE, JAVA / "pom.xml")
    return asked(path, target, *(case.command for case in CASES))


def placed(text: str, target: Target) -> str:
    return text.replace("NS", target.nameserver).replace("BROKER", target.broker)


def test_mqadmin_sees_a_python_consumer_and_has_it_consume(target: Target) -> None:
    path = class_path(RELEASE, JAVA / "pom.xml")
    config = ClientConfig(instance="python-1", timeout=15)
    with SyncClient(target.nameserver, config) as mq:
        mq.admin.create_topic("SeenByMqadmin", queues=2)
        sent = mq.send("SeenByMqadmin", b"hello", tag="red")
        with mq.consume("SeenByMqadmin", group="pythons", filter="red", start="first") as consumer:
            with next(consumer):
                pass
            consuming = threading.Thread(target=lambda: next(consumer).ack())
            consuming.start()
            (members,) = asked(path, target, "consumerConnection -n NS -g pythons")
            (me,) = re.findall(r"\S+@python-1", members)
            status, again = asked(
                path,
                target,
                f"consumerStatus -n NS -g pythons -i {me}",
                f"queryMsgById -n NS -t SeenByMqadmin -i {sent.offset_id} -g pythons -d {me}",
            )
            consuming.join(30)
            assert "PROP_CONSUME_TYPE" in status
            assert re.search(r"Topic: SeenByMqadmin +ClassFilter: \S+ +SubExpression: red", status)
            assert "CR_SUCCESS" in again


def test_mqadmin_reads_the_traces_of_a_python_client(target: Target) -> None:
    path = class_path(RELEASE, JAVA / "pom.xml")
    config = ClientConfig(timeout=15, trace=True, producer_group="shop")
    with SyncClient(target.nameserver, config) as mq:
        mq.admin.create_topic("Traced", queues=1)
        sent = mq.send("Traced", b"hello", key="o-17")
        with (
            mq.consume("Traced", group="pythons_traced", start="first") as consumer,
            next(consumer),
        ):
            pass
    shown = ""
    for _ in range(60):  # The index of the traces is written a moment later.
        (shown,) = asked(path, target, f"queryMsgTraceById -n NS -i {sent.id}")
        if "Sub" in shown:
            break
    assert re.search(r"Pub +shop .*success", shown), shown
    assert re.search(r"pythons_traced .*success", shown), shown


def asked(path: str, target: Target, *commands: str) -> list[str]:
    answers = ask(path, JAVA / "MqAdmin.java", [placed(command, target) for command in commands])
    return [base64.b64decode(answer).decode() for answer in answers]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.command for case in CASES])
def test_a_command_of_mqadmin_works(number: int, printed: list[str], target: Target) -> None:
    output = printed[number]
    assert "Exception" not in output
    assert re.search(placed(CASES[number].wanted, target), output)
