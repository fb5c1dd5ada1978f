from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from cometmq.net import AddressError, parse_address, parse_addresses
from cometmq.proto.host import Host


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9876", "127.0.0.1", 9876),
        (" broker-a.example.org:10911 ", "broker-a.example.org", 10911),
        ("localhost:0", "localhost", 0),
        ("broker_a.example.org.:1", "broker_a.example.org.", 1),
        ("größe.example.org:1", "größe.example.org", 1),
        ("[::1]:9876", "::1", 9876),
        ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65535),
        ("[::ffff:10.0.0.1]:1", "::ffff:10.0.0.1", 1),
    ],
)
def test_an_address_is_read_and_written_back(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Host(host, port)
    assert str(parse_address(text)) == text.strip()


@pytest.mark.parametrize(("text", "host"), [("a", "a"), ("[::1]", "::1"), ("10.0.0.1", "10.0.0.1")])
def test_a_port_may_be_left_out_where_there_is_a_default(text: str, host: str) -> None:
    assert parse_address(text, default_port=9876) == Host(host, 9876)
    with pytest.raises(AddressError, match="has no port"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no host"),
        (":9876", "has no host"),
        ("a:", "has an invalid port, ''"),
        ("a:x", "has an invalid port, 'x'"),
        ("a:-1", "has an invalid port, '-1'"),
        ("a:65536", "0 to 65535"),
        ("a:٣", "has an invalid port"),
        ("::1:9876", "brackets"),
        ("[::1:9876", "brackets"),
        ("[]:9876", "brackets"),
        ("[a]:9876", "brackets"),
        ("[::1]9876", "after the bracket"),
        ("[::1]:", "has an invalid port, ''"),
        ("http://a:9876", "URL"),
        ("a b:1", "has an invalid host, 'a b'"),
        ("a..b:1", "has an invalid host, 'a..b'"),
        (f"{'a' * 64}.example.org:1", "has an invalid host"),
        ("\udcff:1", "has an invalid host"),
        ("a;b:1", "has an invalid host"),
        ("a,b:1", "has an invalid host"),
    ],
)
def test_what_is_no_address_is_quoted_with_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(AddressError) as raised:
        parse_address(text)
    assert repr(text) in str(raised.value)
    assert problem in str(raised.value)


def test_a_long_text_is_quoted_in_part() -> None:
    with pytest.raises(AddressError) as raised:
        parse_address("x" * 10_000)
    assert len(str(raised.value)) < 200


def test_a_list_keeps_its_order_and_each_address_once() -> None:
    found = parse_addresses("b:1; a:2;b:1;[::1]:3;")
    assert found == [Host("b", 1), Host("a", 2), Host("::1", 3)]


@pytest.mark.parametrize("text", ["", ";", " ; ", "a:1;;b:2", "a:1,b:2"])
def test_a_list_with_nothing_in_a_place_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        parse_addresses(text)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    try:
        found = parse_address(text)
    except AddressError:
        return
    assert parse_address(str(found)) == found
