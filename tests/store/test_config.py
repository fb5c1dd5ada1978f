"""The settings of a store refuse values with which no store could work."""

from __future__ import annotations

import pytest

from cometmq.store.config import DELAY_LEVELS_MS, Flush, StoreConfig
from cometmq.store.errors import StoreFormatError


def test_the_default_is_durable_and_of_apaches_sizes() -> None:
    config = StoreConfig()
    assert config.flush is Flush.SYNC
    assert (config.segment_size, config.consume_queue_file_size) == (1073741824, 6_000_000)
    assert (config.index_slots, config.index_items) == (5_000_000, 20_000_000)


def test_a_start_behind_a_kill_has_no_more_to_read_back_than_is_promised() -> None:
    assert StoreConfig().checkpoint_bytes <= 256 << 20


def test_the_delay_levels_are_apaches() -> None:
    assert len(DELAY_LEVELS_MS) == 18
    assert DELAY_LEVELS_MS[:5] == (1000, 5000, 10_000, 30_000, 60_000)
    assert DELAY_LEVELS_MS[-5:] == (600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_size", 0),
        ("segment_size", 4095),
        ("consume_queue_file_size", 30),
        ("batch_consume_queue_file_size", 45),
        ("message_size_max", 0),
        ("checkpoint_bytes", -1),
        ("flush_interval_ms", 0),
        ("index_slots", 0),
        ("index_slots", 1 << 31),
        ("index_items", 1),
        ("zero_ahead_size", -1),
        ("verify_size", -1),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_its_name(name: str, value: int) -> None:
    with pytest.raises(StoreFormatError, match=name):
        StoreConfig(**{name: value})  # type: ignore[arg-type]  # Every one of these is an int.
