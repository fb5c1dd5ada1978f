"""Where reading of topics begins and ends: positions from the options and the cluster's answers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.pipeline.cluster import Bounds
from cometmq.pipeline.errors import DataLossError, OptionError, no_broker_yet
from cometmq.pipeline.offsets import EARLIEST_OFFSET, LATEST_OFFSET, read_given_positions
from cometmq.pipeline.options import EARLIEST, GROUP_PREFIX, LATEST, ReadOptions, read_time_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.pipeline.cluster import Cluster, Queue, Survey

log = logging.getLogger(__name__)


def survey(cluster: Cluster, options: ReadOptions, *, whole: bool) -> Survey:
    """Ask the cluster what there is to read; retry while a server is away.

    With `whole`, a broker that stays away is an error; otherwise it is reported as missing, unless
    nobody answers at all.
    """

    def look() -> Survey:
        found = _look(cluster, options, whole=whole)
        if found.missing and (whole or not found.queues):
            raise next(iter(found.missing.values()))
        return found

    return options.retried(look)


def _look(cluster: Cluster, options: ReadOptions, *, whole: bool) -> Survey:
    found = cluster.bounds(_topics(cluster, options))
    if not found.topics or (whole and not found.topics.issuperset(options.topics)):
        # Taking topics for deleted would be data loss, and a broker may register at any time.
        if not cluster.brokers().names:
            raise no_broker_yet(options.nameserver)
        found = cluster.bounds(_topics(cluster, options))
    return found


def _topics(cluster: Cluster, options: ReadOptions) -> tuple[str, ...]:
    return options.topics if options.topic else cluster.topics_like(options.topic_pattern)


def require_topics(found: Survey, options: ReadOptions, said_by: str = "topic") -> None:
    """Refuse to read topics that do not exist or that nobody may read."""
    if absent := [each for each in options.topics if each not in found.topics]:
        raise OptionError(
            f"{said_by}: {', '.join(absent)}: no such topic on {options.nameserver};"
            " `cometmq topic list` shows all"
        )
    readable = {queue.topic for queue in found.queues}
    if closed := [each for each in options.topics if each not in readable]:
        raise OptionError(f"{said_by}: {', '.join(closed)}: none of its brokers allows reading")


def wanted(cluster: Cluster, options: ReadOptions, found: Survey) -> dict[Queue, Bounds]:
    """Return where a batch begins and ends in each queue; `OptionError` if the end is first.

    That is no error between times: if a clock went back, the later time may have a lower offset.
    """
    begin = starts(cluster, options, found, EARLIEST)
    end = ends(cluster, options, found)
    for queue, first in sorted(begin.items()):
        if first > end[queue] and not options.ending_timestamp:
            raise OptionError(
                f"endingOffsets: queue {queue} would end at {end[queue]}, before {first}, where it"
                " begins; write a later end, or an earlier beginning"
            )
    return {queue: Bounds(first, end[queue]) for queue, first in begin.items()}


def starts(cluster: Cluster, options: ReadOptions, found: Survey, default: str) -> dict[Queue, int]:
    """Return where reading begins in each queue that exists now."""
    if options.starting_timestamp:
        time_ms = read_time_ms("startingTimestamp", options.starting_timestamp)
        return _at(cluster, found, time_ms)
    return _edge(cluster, "startingOffsets", options.starting_offsets or default, found, options)


def ends(cluster: Cluster, options: ReadOptions, found: Survey) -> dict[Queue, int]:
    """Return where a batch ends in each queue."""
    if options.ending_timestamp:
        return _at(cluster, found, read_time_ms("endingTimestamp", options.ending_timestamp))
    if options.ending_offsets == EARLIEST:
        raise OptionError("endingOffsets: earliest would read nothing; write latest, or JSON")
    return _edge(cluster, "endingOffsets", options.ending_offsets, found, options)


def _at(cluster: Cluster, found: Survey, time_ms: int) -> dict[Queue, int]:
    offsets = cluster.offsets_at(found.queues, found.addresses, time_ms)
    return {
        queue: min(max(offsets.get(queue, bounds.end), bounds.first), bounds.end)
        for queue, bounds in found.queues.items()
    }


def _edge(
    cluster: Cluster, option: str, text: str, found: Survey, options: ReadOptions
) -> dict[Queue, int]:
    if text == EARLIEST:
        return {queue: bounds.first for queue, bounds in found.queues.items()}
    if text == LATEST:
        return {queue: bounds.end for queue, bounds in found.queues.items()}
    if text.startswith(GROUP_PREFIX):
        group = text.removeprefix(GROUP_PREFIX)
        given: Mapping[Queue, int] = cluster.committed(group, found.queues, found.addresses)
        if found.queues and not given:
            raise OptionError(
                f"{option}: group {group!r} has no offset in {', '.join(sorted(found.topics))};"
                " `cometmq group list` shows all groups; earliest and latest need none"
            )
    else:
        given = read_given_positions(option, text, found.queues)
    # A queue that is not mentioned is read in full.
    other = EARLIEST_OFFSET if option == "startingOffsets" else LATEST_OFFSET
    return {
        queue: _within(option, queue, given.get(queue, other), bounds, options)
        for queue, bounds in found.queues.items()
    }


def _within(option: str, queue: Queue, wanted: int, bounds: Bounds, options: ReadOptions) -> int:
    if wanted == EARLIEST_OFFSET:
        return bounds.first
    if wanted == LATEST_OFFSET:
        return bounds.end
    if bounds.first <= wanted <= bounds.end:
        return wanted
    nearest = min(max(wanted, bounds.first), bounds.end)
    does = "begins" if option == "startingOffsets" else "ends"
    text = (
        f"{option}: offset {wanted} of queue {queue} does not exist:"
        f" the queue has those from {bounds.first} to {bounds.end}"
    )
    if options.fail_on_data_loss:
        raise DataLossError(f"{text}. With failOnDataLoss=false reading {does} at {nearest}")
    log.warning("%s; reading %s at %d", text, does, nearest)
    return nearest
