"""`mirror` and `replay` write with `inOrder`.

Our broker keeps the order of a connection however many requests are under way on it, so the order
of its copies does not show that `inOrder` was given. Apache's broker does not keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark.sql import DataFrameWriter
from pyspark.sql.streaming import DataStreamWriter
from tests.pipeline.tables import Tables, numbers

from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.mirror import MirrorSettings, mirror
from cometmq.pipeline.jobs.replay import ReplaySettings, replay

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


@pytest.fixture
def written_with(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each write to a cluster, in order."""
    told: list[dict[str, Any]] = []

    def note(kind: type[Any]) -> None:
        real = kind.options

        def options(self: Any, **given: Any) -> Any:
            if "nameserver" in given:
                told.append(given)
            return real(self, **given)

        monkeypatch.setattr(kind, "options", options)

    note(DataFrameWriter)
    note(DataStreamWriter)
    return told


@pytest.mark.slow
def test_copies_are_written_in_order(
    tables: Tables, tmp_path: Path, written_with: list[dict[str, Any]]
) -> None:
    topic, nameserver = "copied-in-order", tables.cluster.nameserver
    for number in range(3):
        tables.cluster.send(topic, b"%d" % number)
    mirror(
        tables.spark,
        MirrorSettings(
            nameserver=nameserver,
            to_nameserver=nameserver,
            prefix="mirror-",
            topic=topic,
            checkpoint=str(tmp_path / "mirror"),
        ),
    )
    files, checkpoint = str(tmp_path / "files"), str(tmp_path / "checkpoint")
    archive(
        tables.spark,
        ArchiveSettings(nameserver=nameserver, topic=topic, to=files, checkpoint=checkpoint),
    )
    replay(
        tables.spark,
        ReplaySettings(nameserver=nameserver, from_=files, to_topic=f"replay-{topic}"),
    )
    assert [given["inOrder"] for given in written_with] == [True, True]
    for copies in (f"mirror-{topic}", f"replay-{topic}"):
        assert sorted(tables.bodies(copies)) == numbers(0, 3)
