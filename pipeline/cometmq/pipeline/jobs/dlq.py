"""`dlq`: group dead letters by what they have in common, and send some of them again.

Reading removes nothing from the topic of dead letters. The letters that `redrive` selects are sent
again, each once. To the topic that they came from, they are sent as by `cometmq dlq redrive`, with
the same record, so neither of the two sends again what the other has sent. To another topic, copies
are sent, which that record does not cover. A copy is identified by the place and time of its dead
letter, so another run, after a crash or with more letters, copies none twice (to CometMQ's brokers;
to Apache's at least once). What is there already is counted as `earlier`.

`receipts` lists each message that was sent once, however often the job was killed or run.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, Final

from cometmq.client import ClientError, DeadLetterFilter, Queue, Redriven, SyncClient
from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.dlq_copies import Copies, refuse_gone
from cometmq.pipeline.jobs.dlq_letters import Letters, has_letters
from cometmq.pipeline.jobs.dlq_settings import ORIGIN, PREFIX, DlqSettings
from cometmq.pipeline.jobs.job import Job, Run, running
from cometmq.pipeline.jobs.pacing import Pace
from cometmq.pipeline.jobs.receipts import Receipts
from cometmq.pipeline.jobs.writable import try_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cometmq.pipeline.jobs.report import Report

__all__ = ("JOB", "DlqSettings", "dlq")

_GROUPS_MAX: Final = 100
_TELL_SECONDS: Final = 1.0
"""How often it reports progress if messages are sent one by one."""
_RATE_WITHOUT: Final = 100_000
"""How many messages a write has if there is no rate."""


def dlq(spark: SparkSession, settings: DlqSettings, run: Run | None = None) -> Report:
    """Report on dead letters, and send some again."""
    run = run or Run()
    report = run.report_of("dlq")
    letters = Letters(spark, settings)
    with running(spark, report):
        if settings.redrive:
            letters.wanted()  # With wrong SQL, nothing is to be read.
            if not run.dry_run:
                try_file("receipts", settings.receipts)
        clusters = letters.clusters()
        report.rows = sum(each["count"] for each in clusters)
        report.details["clusters"] = clusters[:_GROUPS_MAX]
        letters.count(report)
        run.tell(dead_letters=report.rows, clusters=len(clusters))
        if settings.redrive:
            chosen = letters.chosen()
            report.details["chosen"] = len(chosen)
            if not run.dry_run:
                if settings.to == ORIGIN:
                    _redrive(chosen, settings, run, report)
                else:
                    _copy(letters, chosen, settings, run, report)
    return report


class _StoppedError(Exception):
    """The job is to stop."""


def _redrive(chosen: list[dict[str, Any]], settings: DlqSettings, run: Run, report: Report) -> None:
    """Send the chosen letters to the topics they came from, as `cometmq dlq redrive --to topic`."""
    topic = PREFIX + settings.group
    places = {
        (Queue(topic, each["broker"], each["queue_id"]), each["queue_offset"]): each
        for each in chosen
    }
    redriven = Redriven()
    sent, earlier, told = 0, 0, -_TELL_SECONDS

    receipts = Receipts(settings.receipts)

    def watch(now: Redriven) -> None:
        nonlocal redriven, sent, earlier, told
        redriven = now
        # A run that was killed may have sent letters without writing their receipts.
        there = [*now.sent_places[sent:], *now.earlier_places[earlier:]]
        receipts.write(places[each] for each in there)
        sent, earlier = len(now.sent_places), len(now.earlier_places)
        is_last = run.is_stopping or now.count == len(chosen)
        if is_last or time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            run.tell(redriven=now.sent, earlier=now.earlier, of=len(chosen))
        if run.is_stopping:
            raise _StoppedError

    try:
        if chosen and not run.is_stopping:
            # Once they are purged, others may take their places.
            until = max(each["died"].astimezone(UTC) for each in chosen) + timedelta(milliseconds=1)
            config = settings.credentials.client_config()
            with suppress(_StoppedError), SyncClient(settings.nameserver, config) as mq:
                mq.admin.dead_letters.redrive(
                    settings.group,
                    DeadLetterFilter(places=frozenset(places), until=until),
                    to="topic",
                    rate=settings.rate or None,
                    watch=watch,
                )
    except ClientError as error:  # Most often because a broker goes away.
        raise PipelineError(str(error)) from error
    finally:
        report.details["redriven"] = redriven.sent
        report.details["earlier"] = redriven.earlier
        report.details["failed"] = [
            {"message_id": one, "reason": why} for one, why in redriven.failed
        ]
    report.stopped = run.is_stopping and redriven.count < len(chosen)
    if redriven.failed:
        one, why = redriven.failed[0]
        raise PipelineError(
            f"{one}, and {len(redriven.failed)} in all, could not be redriven: {why}"
        )
    if not report.stopped:
        refuse_gone(len(chosen) - redriven.count)


def _copy(
    letters: Letters,
    chosen: list[dict[str, Any]],
    settings: DlqSettings,
    run: Run,
    report: Report,
) -> None:
    """Send the chosen letters to another topic, as many at a time as the rate allows."""
    pace = Pace(settings.rate, run)
    step = settings.rate or _RATE_WITHOUT
    receipts = Receipts(settings.receipts)
    report.details["redriven"] = 0
    copies = Copies(letters.spark, settings.where, letters.topic, settings.to)
    left, there = copies.apart(chosen)
    report.details["earlier"] = len(there)
    receipts.write(there)
    for first in range(0, len(left), step):
        few = left[first : first + step]
        if not pace.wait(len(few)):
            report.stopped = True
            break
        copies.send(letters.table(), few)
        receipts.write(few)
        report.details["redriven"] += len(few)
        run.tell(
            redriven=report.details["redriven"], earlier=report.details["earlier"], of=len(chosen)
        )


JOB: Final = Job(
    "dlq",
    DlqSettings,
    dlq,
    "Group a consumer group's dead letters; send some again.",
    about=(
        "Without --redrive it only reads, and shows what the dead letters have in common. With"
        " --redrive those that match the condition are sent again, each once, however often the"
        " command is repeated; add --dry-run to see which these are."
    ),
    examples=(
        "dlq --group billing --cluster-by topic,shape",
        "dlq --group billing --redrive \"key LIKE 'o-1%'\" --dry-run",
    ),
    look=has_letters,
)
