"""The process that holds a port is found and named."""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING

import pytest

from cometmq.net import ListenError, listen_on
from cometmq.net.port_holder import process_on
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_who_has_a_port_is_named_in_the_error(address: str) -> None:
    (taken,) = listen_on([Host(address, 0)])
    with taken:
        port = taken.getsockname()[1]
        said = f"the port is in use by process {os.getpid()} ("
        with pytest.raises(ListenError, match=re.escape(said)):
            listen_on([Host(address, port)])
    assert process_on(port) is None


def test_a_port_that_is_only_bound_has_no_listener() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert process_on(bound.getsockname()[1]) is None


def test_where_nothing_is_told_nobody_is_named(tmp_path: Path) -> None:
    assert process_on(9876, tmp_path) is None
    (tmp_path / "net").mkdir()
    line = "0: 0100007F:2694 00000000:0000 0A 0:0 0:0 0 0 0 77 1"
    (tmp_path / "net" / "tcp").write_text(f"head\n{line}\n")
    (tmp_path / "17").mkdir()  # Without `fd`, like a process of another user.
    assert process_on(9876, tmp_path) is None
    (tmp_path / "18" / "fd").mkdir(parents=True)
    (tmp_path / "18" / "fd" / "3").symlink_to("socket:[77]")
    (tmp_path / "18" / "cmdline").write_bytes(b"cometmq\0up\0")
    assert process_on(9876, tmp_path) == "process 18 (cometmq up)"
