"""A test's own topic, and the table that it is archived to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.archive_files import read_archive

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pipeline.tables import Tables

    from cometmq.pipeline.jobs.report import Report


class Archived:
    """The topic, which is called as the test is, and the folder of its table."""

    format = ""

    def __init__(self, tables: Tables, path: Path) -> None:
        self.tables, self.spark = tables, tables.spark
        self.topic, self.path = path.name.replace("_", "-"), path / "a table"
        self.sent = 0

    def send(self, count: int) -> None:
        """Send so many messages more, whose bodies are their numbers."""
        self.tables.fill(self.topic, count, first=self.sent)
        self.sent += count

    def settings(self, **more: Any) -> ArchiveSettings:
        """Return settings, with batches of ten messages."""
        given: dict[str, Any] = {"format": self.format, "max_rows": 10, **more}
        return ArchiveSettings(
            nameserver=self.tables.cluster.nameserver,
            topic=self.topic,
            to=str(self.path),
            **given,
        )

    def run(self, **more: Any) -> Report:
        """Archive what there is."""
        return archive(self.spark, self.settings(**more))

    def forget_the_last_commit(self) -> None:
        """Leave the checkpoint as if the driver was killed right after its last batch's data."""
        commits = self.path / "_checkpoint" / "commits"
        last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    @property
    def bodies(self) -> list[str]:
        """The bodies in the table, sorted as the numbers that they are."""
        rows = read_archive(self.spark, str(self.path)).selectExpr("cast(body AS string) AS body")
        return sorted((row["body"] for row in rows.collect()), key=int)
