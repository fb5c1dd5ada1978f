"""`archive-vacuum`: remove files that no manifest of an archive mentions.

A crash can leave files behind that are in no batch: those of a batch whose manifest was not written
yet, of a merged batch, or of one that was being written. Readers that go by manifests do not see
them. Files of a running job look the same, so anything younger than a day stays; while `archive`
writes there, that holds whatever the settings say. The folder is held while files are looked at and
removed, so that no job begins meanwhile.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive_files import (
    COMPACTING,
    batches,
    lost_manifests,
    merged_away,
    require_batches,
    unfinished,
)
from cometmq.pipeline.jobs.archive_kinds import refuse_table
from cometmq.pipeline.jobs.folders import STAGING, Folder
from cometmq.pipeline.jobs.holding import BATCHES, UPKEEP, Places, held, held_if_free, in_folders
from cometmq.pipeline.jobs.job import Job, Run, check_settings, running, setting

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

    from cometmq.pipeline.jobs.report import Report

_HOUR_MS: Final = 3_600_000
_OLD_HOURS: Final = 24
"""After this time, a batch that was being written has its manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumSettings:
    """What to clean up."""

    archive: str = setting("The archive's folder.", metavar="DIR")
    older_than_hours: int = setting(
        "Keep files younger than this: a running job may be writing them.", _OLD_HOURS
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.older_than_hours < 0:
            raise OptionError("older-than-hours: must not be negative")


def archive_vacuum(spark: SparkSession, settings: VacuumSettings, run: Run | None = None) -> Report:
    """Remove such files, and report what was removed."""
    run = run or Run()
    report = run.report_of("archive-vacuum")
    folder = Folder(spark, settings.archive)
    refuse_table(folder)
    require_batches(folder, "archive")
    removed: list[str] = []
    report.details.update(removed=removed, removed_bytes=0)
    with (
        running(spark, report),
        held(run, report.job, *in_folders(spark, _holds(settings))),
        closing(_strays(folder, settings, run, report)) as strays,
    ):
        for path in strays:
            if run.is_stopping:
                report.stopped = True
                break
            size = sum(bytes_ for _, bytes_ in folder.files(path))
            if not run.dry_run:
                folder.remove(path)
            removed.append(path)
            report.details["removed_bytes"] += size
            run.tell(removed=path, bytes=size)
    return report


def _strays(folder: Folder, settings: VacuumSettings, run: Run, report: Report) -> Generator[str]:
    """Yield the next thing to remove; nobody else uses it until the next one is asked for.

    `archive` may be at work: it may replace what a crash left of a batch, which then exists.
    """
    yield from merged_away(folder)  # Nobody uses what was merged any more.
    under_way = [
        f"{parent}/{name}" for parent in (STAGING, COMPACTING) for name in folder.names(parent)
    ]
    left = [each.folder for each in unfinished(folder)]
    for each in lost_manifests(batches(folder)):
        run.tell(warning=f"{folder.path} has no manifest of batches {each}; their files stay")
    for path in [*under_way, *left]:
        with held_if_free(run, report.job, folder, BATCHES) as is_free:
            hours = settings.older_than_hours
            hours = hours if is_free else max(hours, _OLD_HOURS)
            youngest_ms = int(time.time() * 1000) - hours * _HOUR_MS
            changed_ms = folder.modified_ms(path)
            if changed_ms is None or changed_ms > youngest_ms:
                continue
            if path in under_way or path in {each.folder for each in unfinished(folder)}:
                yield path


def _holds(settings: VacuumSettings) -> Places:
    return ((settings.archive, UPKEEP),)


JOB: Final = Job(
    "archive-vacuum",
    VacuumSettings,
    archive_vacuum,
    "Remove files that no manifest of an archive refers to.",
    about=(
        "A crash can leave such files behind. Readers that go by the manifests never see them;"
        " they only take up space. --dry-run shows what would be removed."
    ),
    examples=("archive-vacuum --archive /data/orders --dry-run",),
    holds=_holds,
)
