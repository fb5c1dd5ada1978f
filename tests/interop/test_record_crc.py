"""How an official client shows the checksum of a whole record, from our broker and Apache's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.interop.apache_broker import PATIENT, ApacheBroker
from tests.interop.apache_java import class_path
from tests.interop.target import Target, running_up
from tests.interop.test_clients import JAVA, RELEASE
from tests.interop.test_mqadmin import asked

from cometmq.client import SyncClient

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.long]

TOPIC = "Checksummed"
SHOWN = "queryMsgByOffset -n NS -t Checksummed -b broker-a -i 0 -o 0"


def shown(folder: Path, target: Target) -> dict[str, str]:
    """The properties of a message, as Apache's tool prints them."""
    with SyncClient(target.nameserver, PATIENT) as mq:
        mq.admin.create_topic(TOPIC, queues=1)
        mq.send(TOPIC, b"hello", tag="red", properties={"colour": "blue"})
    path = class_path(RELEASE, JAVA / "pom.xml")
    (text,) = asked(path, target, SHOWN)
    found = re.search(r"Properties: +\{(.*)\}", text)
    assert found is not None, text
    return dict(pair.split("=", 1) for pair in found[1].split(", "))


def test_a_client_sees_the_checksum_among_the_properties_as_it_does_with_apache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMETMQ_RECORD_CRC", "true")
    (tmp_path / "ours").mkdir()
    with running_up(tmp_path / "ours") as target:
        ours = shown(tmp_path / "ours", target)
    (tmp_path / "apache").mkdir()
    with ApacheBroker(tmp_path / "apache", {"enabledAppendPropCRC": "true"}) as apache:
        target = Target(apache.nameserver, f"127.0.0.1:{apache.port}")
        theirs = shown(tmp_path / "apache", target)
    ours.pop("SENT_ONCE")  # Our client sends it to our brokers only.
    assert sorted(ours) == sorted(theirs)
    for each in (ours, theirs):
        assert re.fullmatch(r"\d{10}", each["__CRC32#"])
