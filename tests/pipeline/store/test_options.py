from __future__ import annotations

import pytest

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.store.options import StoreOptions, store_options


def test_options_are_told_apart_without_regard_to_case() -> None:
    found = store_options({"PATH": "/s", "splitbytes": "16m", "onDamage": "skip", "TOPIC": "a, b"})
    assert found == StoreOptions(path="/s", split_bytes=16 << 20, on_damage="skip", topic="a, b")
    assert found.topics == ("a", "b")


def test_spaces_around_an_option_do_not_count_except_in_the_name_of_a_folder() -> None:
    """`/s ` may be there beside `/s`, which would be read instead."""
    found = store_options({"path": "/s ", "topic": " a ", "splitBytes": " 16m "})
    assert found == StoreOptions(path="/s ", split_bytes=16 << 20, topic="a")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "path: is required; name the folder of a store"),
        ({"path": "/s", "veiw": "queues"}, r"veiw: no such option; did you mean view\?"),
        ({"path": "/s", "nonsense": "x"}, "no such option; there are path, view"),
        (
            {"path": "/s", "view": "rows"},
            "view: 'rows' is not one of records, queues, index, survey",
        ),
        ({"path": "/s", "onDamage": "stop"}, "onDamage: 'stop' is not one of fail, skip, silent"),
        ({"path": "/s", "splitBytes": "100"}, "splitBytes: 100 is less than 4096"),
        ({"path": "/s", "splitBytes": "much"}, "splitBytes: 'much' is not a number"),
        ({"path": "/s", "sample": "few"}, "sample: 'few' is not a number"),
        ({"path": "/s", "sample": "1.5"}, r"sample: 1\.5 must be more than 0 and at most 1"),
        ({"path": "/s", "checksums": "no"}, "checksums: 'no' is neither true nor false"),
        ({"path": "/s", "topic": " , "}, "topic: ',' names no topic"),
        ({"path": "/s", "topic": "T", "view": "index"}, "topic: is for records and queues"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_its_name(
    options: dict[str, str], reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        store_options(options)
