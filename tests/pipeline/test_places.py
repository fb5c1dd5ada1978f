"""How jobs read where they find messages: in a topic, an archive or a store."""

from __future__ import annotations

import pytest

from cometmq.pipeline.jobs.places import Place, read_place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("topic:orders@h:1;i:1", Place("topic", "h:1;i:1", "orders")),
        ("archive:/data/o", Place("archive", "/data/o", "")),
        ("store:/data/o#orders", Place("store", "/data/o", "orders")),
        ("archive:/disk#1/o#orders", Place("archive", "/disk#1/o", "orders")),
        ("archive:/disk#1/o", Place("archive", "/disk#1/o", "")),
        ("archive:/disk#1/o#", Place("archive", "/disk#1/o", "")),
        ("archive:#orders", None),
        ("topic:orders", None),
        ("/data/o", None),
    ],
)
def test_a_place_is_a_kind_a_folder_and_a_topic(text: str, place: Place | None) -> None:
    assert read_place(text) == place
