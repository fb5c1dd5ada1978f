"""The settings of `audit`: which store is checked, and which checks are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.job import check_settings, setting
from cometmq.pipeline.jobs.results import Results
from cometmq.pipeline.option_reading import listed, read_size
from cometmq.pipeline.options import read_time_ms
from cometmq.pipeline.store.options import store_options

CHECKS: Final = ("log", "blocks", "gaps", "queues", "index", "checkpoint")
"""The possible checks."""
_LOCAL: Final = frozenset({"index", "checkpoint"})
"""Checks that are not possible for a store given by URI."""
_SURVEYED: Final = ("log", "blocks", "gaps")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Which store to check, and how."""

    store: str = setting("The store's folder, the one that contains commitlog/.", metavar="DIR")
    check: str = setting(
        f"What to check, separated by commas: {', '.join(CHECKS)}.", ",".join(CHECKS)
    )
    since: str = setting(
        "Skip files with nothing stored at or after this time: ms, or ISO 8601.", ""
    )
    sample: float = setting("The fraction of the log whose checksums are compared.", 1.0)
    findings: str = setting("Write all findings to this folder, as Parquet.", "", metavar="DIR")
    shown: int = setting("Put at most this many findings into the report.", 100)
    split_size: str = setting(
        "How much of the log one task reads; by default it depends on the log's size.",
        "",
        metavar="SIZE",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if unknown := [name for name in self.checks if name not in CHECKS]:
            raise OptionError(f"check: {unknown[0]!r} is not one of {', '.join(CHECKS)}")
        if not self.checks:
            raise OptionError(f"check: name some of {', '.join(CHECKS)}")
        if "://" in self.store and not _LOCAL.isdisjoint(self.checks):
            raise OptionError(
                f"check: {' and '.join(sorted(_LOCAL))} are for local stores only; for one by URI"
                f" write {','.join(name for name in self.checks if name not in _LOCAL) or 'log'}"
            )
        if self.split_size:
            read_size("split-size", self.split_size)
        store_options({"path": self.store, "splitBytes": self.split_size or "0"})
        if not 0 < self.sample <= 1:
            raise OptionError(f"sample: {self.sample} must be more than 0 and at most 1")
        if self.sample < 1 and not {"log", "blocks"} & {*self.checks}:
            raise OptionError("sample: only `log` and `blocks` compare checksums; name one, too")
        if self.shown < 0:
            raise OptionError("shown: must not be negative")
        self.since_ms()  # Checks the time.

    @property
    def checks(self) -> tuple[str, ...]:
        """The names of the checks."""
        return tuple(listed(self.check))

    @property
    def has_survey(self) -> bool:
        """Whether a check reads the log itself."""
        return not {*_SURVEYED}.isdisjoint(self.checks)

    @property
    def results(self) -> Results:
        """Where findings are written."""
        return Results("findings", self.findings, "audit", (self.store,))

    def since_ms(self) -> int | None:
        """Return the time from which records are checked, or `None` for all."""
        return read_time_ms("since", self.since) if self.since else None
