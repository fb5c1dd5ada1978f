"""A store goes from us to a live Apache 5.5.0 and back, both killed in the middle of writing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.apache_broker import ApacheBroker
from tests.interop.apache_client import BrokerClient, send_header
from tests.interop.store_checks import (
    check_by_apache,
    check_by_us,
    check_index_items,
    check_queue_files,
    found_in_log,
    log_of,
)
from tests.interop.store_config_files import write_config_files
from tests.interop.store_content import (
    APACHE_SETTINGS,
    IPV4,
    PLAIN,
    SEGMENT_SIZE,
    Known,
    send,
    sendable,
    write,
)
from tests.interop.store_sessions import now_ms, opened, write_and_be_killed, write_and_close

from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import SendMessageResponse, SendMessageV2
from cometmq.proto.message_id import decode_offset_id
from cometmq.proto.record import encode_record

pytestmark = pytest.mark.slow

IN_FLIGHT = 400


def tear(root: Path) -> int:
    """Leave part of a long record after the end of the log, as a kill in the middle of a copy does.

    Return where it ends.
    """
    log = log_of(root)
    record = encode_record(
        topic=b"torn",
        body=b"torn " * 800,
        properties=b"",
        queue_id=0,
        queue_offset=0,
        physical_offset=log.end,
        born_timestamp=1,
        born_host=IPV4,
        store_timestamp=now_ms(),
        store_host=IPV4,
    )
    place = log.end % SEGMENT_SIZE
    torn = record[: min(3000, SEGMENT_SIZE - place)]
    with (root / "commitlog" / f"{log.end - place:020d}").open("r+b") as file:
        file.seek(place)
        file.write(torn)
    return log.end + len(torn)


def send_and_kill(broker: ApacheBroker, client: BrokerClient, first: int) -> list[Known]:
    """Send many messages at once, and kill the broker midway; return the answered ones."""
    for number in range(first, first + IN_FLIGHT):
        sent = sendable(number)._replace(topic=PLAIN, queue_id=number % 4)
        header = send_header(PLAIN, sent.queue_id, sent.properties, flag=number)
        client.start(RequestCode.SEND_MESSAGE_V2, header, sent.body)
    answered: list[Known] = []
    while (answer := client.next_answer()) is not None:
        assert answer.response.code == ResponseCode.SUCCESS, answer.response
        stored = answer.response.read(SendMessageResponse)
        number = answer.request.read(SendMessageV2).flag
        answered.append(
            Known(
                number,
                PLAIN,
                stored.queue_id,
                stored.queue_offset,
                decode_offset_id(stored.msg_id).physical_offset,
                sendable(number).body,
                sendable(number).properties,
            )
        )
        if len(answered) == IN_FLIGHT // 4:
            broker.kill()
    return answered


def test_what_was_acknowledged_survives_a_kill_of_ours_then_one_of_apache_and_no_message_is_doubled(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    known = write_and_close(root, 0, 500, before_ms=60_000)
    known += write_and_be_killed(root, len(known), 400)
    write_config_files(str(root))
    known = found_in_log(root, known, range(len(known), len(known) + 20))
    tear(root)

    with ApacheBroker(tmp_path, APACHE_SETTINGS) as broker, BrokerClient(broker.port) as client:
        check_by_apache(client, known)
        known += send(client, len(known), 30)
        known = found_in_log(root, known)
        flight = range(len(known), len(known) + IN_FLIGHT)
        known += send_and_kill(broker, client, flight.start)

    known = found_in_log(root, known, flight)
    with opened(root) as store:
        check_by_us(store, known)
        known += write(store, flight.stop, 100, now_ms())
        check_by_us(store, known)
    known = found_in_log(root, known)
    check_queue_files(root)
    check_index_items(root)

    with ApacheBroker(tmp_path, APACHE_SETTINGS) as broker:
        with BrokerClient(broker.port) as client:
            check_by_apache(client, known)
        broker.stop()
    check_queue_files(root)
    check_index_items(root)


def test_what_apache_leaves_of_a_record_that_a_kill_of_ours_tore_is_cut_and_nothing_else(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    known: list[Known] = []
    while not known or log_of(root).end % SEGMENT_SIZE > SEGMENT_SIZE - 8000:  # Room to tear in.
        # Few at a time: Apache reads at most ten segments to restore the keys that it removed.
        known += write_and_be_killed(root, len(known), 10 if known else 300)
        known = found_in_log(root, known, range(len(known), len(known) + 20))
    write_config_files(str(root))
    torn_end = tear(root)

    with ApacheBroker(tmp_path, APACHE_SETTINGS) as broker:
        with BrokerClient(broker.port) as client:
            known += send(client, 10_001, 2)
        broker.stop()

    known = found_in_log(root, known)
    end = log_of(root).end
    assert end < torn_end
    with opened(root) as store:
        assert store.end_offset == end
        assert store.kept is not None
        assert Path(store.kept).stat().st_size == torn_end - end
        check_by_us(store, known)
        known += write(store, 10_003, 50, now_ms())
    known = found_in_log(root, known)
    check_queue_files(root)
    check_index_items(root)
    with opened(root) as store:
        check_by_us(store, known)
