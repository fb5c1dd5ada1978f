from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING

from hypothesis import given, strategies as st

from cometmq.proto.checksum import crc31, crc32, fastest_zlib

if TYPE_CHECKING:
    import pytest


def test_the_checksum_is_crc_32_without_its_top_bit() -> None:
    assert crc31(b"hello") == 907060870
    assert crc31(b"a") == 0x68B7BE43
    assert crc31(b"") == 0


@given(st.binary())
def test_the_choice_computes_what_zlib_computes(data: bytes) -> None:
    assert crc32(data) == zlib.crc32(data)


def test_without_isal_zlib_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    assert fastest_zlib() is zlib
