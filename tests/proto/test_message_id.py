from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from cometmq.proto.errors import LocalProtocolError, MessageError
from cometmq.proto.host import Host, pack_host
from cometmq.proto.message_id import (
    UniqueIds,
    decode_offset_id,
    decode_unique_id,
    encode_offset_id,
    encode_offset_ids,
    month_start_ms,
    unique_id_time_ms,
)

SHANGHAI = ZoneInfo("Asia/Shanghai")
DAY_MS = 86_400_000

UNIQUE_ID = "FD000000000000000000000000000001A2B330946E096909959C0000"


def at(
    year: int,
    month: int,
    day: int,
    hour: int = 0,
    minute: int = 0,
    second: int = 0,
    zone: ZoneInfo | timezone = UTC,
) -> int:
    return int(datetime(year, month, day, hour, minute, second, tzinfo=zone).timestamp() * 1000)


def test_an_offset_id_is_host_and_physical_offset_in_upper_case() -> None:
    text = encode_offset_id(pack_host("192.168.0.1", 10911), 123456)
    assert text == "C0A8000100002A9F000000000001E240"
    assert decode_offset_id(text).address == Host("192.168.0.1", 10911)
    assert decode_offset_id(text.lower()).physical_offset == 123456


@given(
    st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)),
    st.integers(0, 65535),
    st.integers(-(2**63), 2**63 - 1),
)
def test_offset_ids_round_trip(address: object, port: int, offset: int) -> None:
    host = pack_host(str(address), port)
    text = encode_offset_id(host, offset)
    assert len(text) in (32, 56)
    assert decode_offset_id(text) == (host, offset)


@pytest.mark.parametrize(
    "text", ["", "AB", "G" * 32, "0" * 31, "0" * 33, "0" * 55, "00 " * 11 + "0", "é" * 32]
)
def test_other_texts_are_no_ids(text: str) -> None:
    with pytest.raises(MessageError, match="offset id"):
        decode_offset_id(text)
    with pytest.raises(MessageError, match="unique id"):
        decode_unique_id(text)


def test_a_captured_unique_id_decodes() -> None:
    assert decode_unique_id("FD00000000000000000000000000000238A330946E09690997E20009") == (
        bytes.fromhex("fd000000000000000000000000000002"),
        0x38A3,
        0x30946E09,
        0x690997E2,
        9,
    )


def test_unique_ids_count_up_whatever_the_clock_does() -> None:
    ids = UniqueIds(bytes([10, 0, 0, 1]), 0x1_2345, 0xABCD, counter=0xFFFF, zone=UTC)
    now = at(2026, 11, 1) + 5
    assert ids.make(now) == "0A00000123450000ABCD00000005FFFF"
    assert ids.make(now) == "0A00000123450000ABCD000000060000"


@pytest.mark.parametrize("counter", [0, 0xFFFD])
def test_several_ids_at_a_time_are_those_of_one_after_the_other(counter: int) -> None:
    alone, several = [UniqueIds(bytes(4), 1, 2, counter=counter, zone=UTC) for _ in range(2)]
    now_ms = 1_763_719_200_000
    for time_ms, count in ((now_ms, 5), (now_ms, 1), (now_ms + 1, 0), (now_ms - 1, 3), (now_ms, 2)):
        assert several.make_several(time_ms, count) == [alone.make(time_ms) for _ in range(count)]
    assert several.make(now_ms + 9) == alone.make(now_ms + 9)


@pytest.mark.parametrize("zone", [UTC, SHANGHAI, ZoneInfo("America/New_York")])
@pytest.mark.parametrize("day", [1, 20, 25, 31])
def test_the_time_of_a_unique_id_is_read_back(zone: ZoneInfo | timezone, day: int) -> None:
    ids = UniqueIds(bytes(16), 1, 2, zone=zone)
    made = at(2026, 10, day, 12, zone=zone) + 7
    text = ids.make(made)
    assert unique_id_time_ms(text, made + 1, zone) == made
    # It is also read in the next month, whether that day of the month is past or not.
    if day > 1:
        assert unique_id_time_ms(text, at(2026, 11, 1, 1, zone=zone), zone) == made


def test_late_in_the_month_the_milliseconds_wrap_as_an_i32_and_read_unsigned() -> None:
    ids = UniqueIds(bytes(4), 0, 0, zone=UTC)
    text = ids.make(at(2026, 10, 31))
    assert int(text[20:28], 16) == 30 * DAY_MS > 2**31


def test_the_month_turns_between_two_ids() -> None:
    ids = UniqueIds(bytes(4), 0, 0, zone=SHANGHAI)
    last = at(2026, 12, 31, 23, 59, 59, zone=SHANGHAI) + 999
    assert decode_unique_id(ids.make(last)).time_in_month_ms == 31 * DAY_MS - 1
    turned = decode_unique_id(ids.make(last + 1))
    assert turned.time_in_month_ms == 0
    assert turned.instance != 0, "what counts begins anew only under another name"
    # If the clock steps back a little over the turn, the id has the month's start.
    again = decode_unique_id(ids.make(last))
    assert (again.time_in_month_ms, again.counter) == (0, 2)
    # A large step back shows, as in Java.
    assert decode_unique_id(ids.make(last - 2_000_000)).time_in_month_ms == 2**32 - 2_000_001


def test_months_begin_by_local_time_unless_a_zone_is_given() -> None:
    now = at(2026, 1, 15)
    assert month_start_ms(now, -1, UTC) == at(2025, 12, 1)
    assert month_start_ms(now, 12, UTC) == at(2027, 1, 1)
    local = datetime.fromtimestamp(month_start_ms(now) / 1000)
    assert (local.year, local.month, local.day, local.hour) == (2026, 1, 1, 0)
    east = timezone(timedelta(hours=8))
    assert month_start_ms(now, 0, east) == at(2026, 1, 1) - 8 * 3_600_000


def test_ids_of_go_clients_with_their_lower_case_tail_are_read() -> None:
    made = at(2026, 11, 21, 10)
    text = UniqueIds(bytes(4), 77, 0, zone=UTC).make(made)
    assert unique_id_time_ms(text[:12] + text[12:].lower(), made + 1, UTC) == made


def test_an_address_is_four_or_sixteen_bytes() -> None:
    with pytest.raises(LocalProtocolError, match="address of 5 bytes"):
        UniqueIds(bytes(5), 0, 0)


@pytest.mark.parametrize("now_ms", [-(10**18), 253402387200000, 10**18, 2**63, 10**30, -(10**30)])
def test_a_time_that_no_calendar_has_is_a_value_error(now_ms: int) -> None:
    with pytest.raises(ValueError, match=f"^{now_ms} ms is not a time of the calendar"):
        unique_id_time_ms(UNIQUE_ID, now_ms)


def test_times_before_1970_and_far_ahead_are_months_too() -> None:
    for now_ms in (-1, 0, 100_000_000_000_000):
        made_ms = unique_id_time_ms(UNIQUE_ID, now_ms)
        assert now_ms - 2 * 31 * 86_400_000 < made_ms <= now_ms


@pytest.mark.parametrize("host", ["192.168.0.1", "::1"])
def test_the_ids_of_a_batch_are_those_of_its_messages(host: str) -> None:
    packed = pack_host(host, 10911)
    for offsets in ([7], [0, 2**63 - 1, 123456]):
        ids = ",".join(encode_offset_id(packed, offset) for offset in offsets)
        assert encode_offset_ids(packed, offsets) == ids
