from __future__ import annotations

from cometmq.proto import property_names


def test_no_two_constants_share_a_name() -> None:
    names = [
        value
        for constant, value in vars(property_names).items()
        if constant.isupper() and isinstance(value, str)
    ]
    assert len(names) == len(set(names)) > 60


def test_what_brokers_and_clients_give_a_meaning_is_reserved() -> None:
    assert {"KEYS", "UNIQ_KEY", "__CRC32#", "1ST_POP_TIME"} <= property_names.RESERVED
    assert not {"__SHARDINGKEY", "CHECK_IMMUNITY_TIME_IN_SECONDS"} & property_names.RESERVED
    assert "my-own" not in property_names.RESERVED
