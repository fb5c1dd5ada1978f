from __future__ import annotations

import pytest

from cometmq.proto.sysflag import (
    COMPRESSION_MASK,
    TRANSACTION_MASK,
    SysFlag,
    TransactionType,
    transaction_type,
    with_transaction_type,
)


@pytest.mark.parametrize("transaction", TransactionType)
def test_the_transaction_type_is_read_and_replaced_among_other_bits(
    transaction: TransactionType,
) -> None:
    others = SysFlag.COMPRESSED | SysFlag.STORE_HOST_IPV6 | SysFlag.COMPRESSION_LZ4
    for before in TransactionType:
        flags = with_transaction_type(others | before, transaction)
        assert transaction_type(flags) is transaction
        assert flags & ~TRANSACTION_MASK == others


def test_zlib_is_both_bits_of_the_other_compressions() -> None:
    assert SysFlag.COMPRESSION_LZ4 | SysFlag.COMPRESSION_ZSTD == 0x300
    assert COMPRESSION_MASK & 0x300 == 0x300
