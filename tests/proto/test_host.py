from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from cometmq.proto.errors import LocalProtocolError, MessageError
from cometmq.proto.host import Host, pack_host, unpack_host


def test_a_host_is_its_address_and_a_four_byte_port() -> None:
    assert pack_host("192.168.0.1", 10911) == bytes.fromhex("c0a8000100002a9f")
    assert pack_host("fd00::2", 10911) == bytes.fromhex("fd00" + "00" * 13 + "02" + "00002a9f")


@given(st.ip_addresses(), st.integers(0, 65535))
def test_hosts_round_trip(address: object, port: int) -> None:
    assert unpack_host(pack_host(str(address), port)) == (str(address), port)


@pytest.mark.parametrize(("address", "port"), [("localhost", 1), ("1.2.3.4", -1), ("::1", 65536)])
def test_what_is_no_numeric_host_is_refused(address: str, port: int) -> None:
    with pytest.raises(LocalProtocolError, match="host"):
        pack_host(address, port)


def test_a_packed_host_of_another_size_is_malformed() -> None:
    with pytest.raises(MessageError, match="host: 9 bytes"):
        unpack_host(bytes(9))


def test_hosts_read_as_people_write_them() -> None:
    assert str(Host("127.0.0.1", 80)) == "127.0.0.1:80"
    assert str(Host("::1", 80)) == "[::1]:80"
