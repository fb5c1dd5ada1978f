"""The families on a broker's metrics page: the meaning of each, and how it is collected.

A family that Apache's brokers have, too, has the same name, unit and labels here; the others begin
with `cometmq_`. docs/metrics.md lists them all.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from cometmq.broker.survey import OTHER, Lag, Survey
from cometmq.broker.topic_names import RETRY_PREFIX
from cometmq.net.exposition import Family, Scribe
from cometmq.store.upkeep.retention import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from cometmq.broker.daemon import Daemon

PERMISSION: Final = Family("rocketmq_broker_permission", "gauge", "6: it is read and written.")
TOPICS: Final = Family("rocketmq_topic_number", "gauge", "Topics of the broker.")
GROUPS: Final = Family("rocketmq_consumer_group_number", "gauge", "Consumer groups of the broker.")
MESSAGES_IN: Final = Family(
    "rocketmq_messages_in_total", "counter", "Messages that were put into a topic."
)
BYTES_IN: Final = Family(
    "rocketmq_throughput_in_total", "counter", "Bytes of the records that were put into a topic."
)
MESSAGES_OUT: Final = Family(
    "rocketmq_messages_out_total", "counter", "Messages that a group got from a topic."
)
BYTES_OUT: Final = Family(
    "rocketmq_throughput_out_total", "counter", "Bytes of the records that a group got."
)
LAG_MESSAGES: Final = Family(
    "rocketmq_consumer_lag_messages", "gauge", "Messages that a group has not consumed."
)
LAG_LATENCY: Final = Family(
    "rocketmq_consumer_lag_latency",
    "gauge",
    "Milliseconds since the oldest message was stored that a group has not consumed.",
)
PRODUCERS: Final = Family(
    "rocketmq_producer_connections", "gauge", "Memberships of connections in producer groups."
)
CONSUMERS: Final = Family(
    "rocketmq_consumer_connections", "gauge", "Memberships of connections in consumer groups."
)
STORAGE_SIZE: Final = Family("rocketmq_storage_size", "gauge", "Bytes of the log that are kept.")
FLUSH_BEHIND: Final = Family(
    "rocketmq_storage_flush_behind_bytes", "gauge", "Bytes of the log that the disk has to confirm."
)
RESERVE_TIME: Final = Family(
    "rocketmq_storage_message_reserve_time",
    "gauge",
    "Milliseconds since the first message of the log was stored.",
)
SENDS: Final = Family(
    "cometmq_send_duration_seconds",
    "histogram",
    "From the first send of a turn to its answers, of each send of the turn.",
)
PULLS: Final = Family(
    "cometmq_pull_duration_seconds",
    "histogram",
    "From a pull to its answer, of those that were not held.",
)
FLUSHES: Final = Family(
    "cometmq_flush_duration_seconds", "histogram", "How long a sync of the log took."
)
REFUSED: Final = Family(
    "cometmq_requests_refused_total", "counter", "Requests that were answered with a refusal."
)
CONNECTIONS: Final = Family("cometmq_connections", "gauge", "Connections of clients.")
CONNECTIONS_MAX: Final = Family(
    "cometmq_connections_max", "gauge", "Connections that there may be; more are closed."
)
CONNECTIONS_REFUSED: Final = Family(
    "cometmq_connections_refused_total", "counter", "Connections that were closed for being more."
)
RECEIVING: Final = Family(
    "cometmq_receiving_bytes", "gauge", "Bytes of requests that have not come to their end."
)
HELD: Final = Family("cometmq_held_pulls", "gauge", "Pulls that wait for a message.")
WAITING: Final = Family(
    "cometmq_waiting_sends", "gauge", "Sends that wait for the disk before they are answered."
)
POSITIONS: Final = Family(
    "cometmq_log_offset_bytes", "gauge", "Where the log begins and ends, is readable and synced."
)
WRITEABLE: Final = Family("cometmq_store_writeable", "gauge", "1, or 0 while sends are refused.")
DAMAGED: Final = Family(
    "cometmq_store_damaged_queues",
    "gauge",
    "Queues that are neither written nor read, because their files are damaged.",
)
DAMAGED_MESSAGES: Final = Family(
    "cometmq_store_damaged_messages",
    "gauge",
    "Damaged messages that clients came upon since the start, of those that are still kept.",
)
DISK_USED: Final = Family(
    "cometmq_disk_used_ratio", "gauge", "How full the fullest disk of the store is, from 0 to 1."
)
DISK_FREE: Final = Family("cometmq_disk_free_bytes", "gauge", "Room on the disk of the log.")
REMOVED: Final = Family(
    "cometmq_log_segments_removed_total",
    "counter",
    "Segments removed from the log: by age, by quota, or, at any age, from a full disk.",
)
NAMESERVERS: Final = Family(
    "cometmq_registered_nameservers", "gauge", "Name servers that know the broker."
)
NAMESERVERS_ALL: Final = Family(
    "cometmq_configured_nameservers", "gauge", "Name servers that should know the broker."
)


class BrokerMetrics:
    """A broker as a source of an exposition."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._state = daemon.broker.state
        config = self._state.config
        self._survey = Survey(self._state, config.metrics_labels_max)
        self._scribe = Scribe(
            cluster=config.cluster_name, node_type="broker", node_id=config.broker_name
        )

    async def prepare(self) -> None:
        """Take a survey of topics and groups."""
        await self._survey.take()

    def problems(self) -> list[str]:
        """Return why sends would be refused, if they would."""
        refusal = self._state.store.figures().refusal
        return [] if refusal is None else [f"sends are refused: {refusal}"]

    def collect(self) -> Iterator[Metric]:
        """Make all families."""
        yield from self._tables()
        yield from self._flows()
        yield from self._lags()
        yield from self._durations()
        yield from self._queues()
        yield from self._store()

    def _tables(self) -> Iterator[Metric]:
        single, state = self._scribe.single, self._state
        yield from single(PERMISSION, 6)
        yield from single(TOPICS, len(state.topics))
        yield from single(GROUPS, len(state.groups))
        yield from single(PRODUCERS, len(state.producers))
        members = [
            ({"consumer_group": group.name}, len(group.members)) for group in state.consumers
        ]
        yield from self._scribe.family(CONSUMERS, members)
        yield from single(NAMESERVERS, self._daemon.registration.registered_count)
        yield from single(NAMESERVERS_ALL, len(self._daemon.registration.servers))

    def _flows(self) -> Iterator[Metric]:
        # Labels are made while rendering: making those of all topics at once takes milliseconds.
        survey, family, labels = self._survey, self._scribe.family, self._topic_and_group
        put = [*survey.put, (OTHER, survey.other_put)]
        yield from family(MESSAGES_IN, ((self._topic(name), flow.messages) for name, flow in put))
        yield from family(BYTES_IN, ((self._topic(name), flow.size) for name, flow in put))
        got = [*survey.got, ((OTHER, OTHER), survey.other_got)]
        yield from family(MESSAGES_OUT, ((labels(*key), flow.messages) for key, flow in got))
        yield from family(BYTES_OUT, ((labels(*key), flow.size) for key, flow in got))

    def _topic(self, name: str) -> dict[str, str]:
        return {"topic": name, "is_system": _text(self._state.topics.is_system(name))}

    def _topic_and_group(self, topic: str, group: str) -> dict[str, str]:
        retry = _text(topic.startswith(RETRY_PREFIX))
        return {**self._topic(topic), "consumer_group": group, "is_retry": retry}

    def _lags(self) -> Iterator[Metric]:
        survey, family, labels = self._survey, self._scribe.family, self._topic_and_group
        lags = [*survey.lags, ((OTHER, OTHER), Lag(survey.other_lag, 0))]
        yield from family(
            LAG_MESSAGES, ((labels(topic, group), lag.messages) for (group, topic), lag in lags)
        )
        yield from family(
            LAG_LATENCY,
            ((labels(topic, group), lag.latency_ms) for (group, topic), lag in survey.lags),
        )

    def _durations(self) -> Iterator[Metric]:
        durations, traffic = self._scribe.durations, self._state.traffic
        yield from durations(SENDS, [({}, traffic.send_durations)])
        yield from durations(PULLS, [({}, traffic.pull_durations)])
        yield from durations(FLUSHES, [({}, self._state.store.figures().sync_durations)])
        refused = [
            ({"request_code": str(request), "response_code": str(response)}, count)
            for (request, response), count in sorted(traffic.refused.items())
        ]
        yield from self._scribe.family(REFUSED, refused)

    def _queues(self) -> Iterator[Metric]:
        single, peers = self._scribe.single, self._daemon.peers
        yield from single(CONNECTIONS, len(peers))
        yield from single(CONNECTIONS_MAX, peers.limits.connections_max)
        yield from single(CONNECTIONS_REFUSED, peers.refused_count)
        yield from single(RECEIVING, peers.receiving_size)
        yield from single(HELD, len(self._state.long_polling))
        yield from single(WAITING, len(self._state.acknowledgements))

    def _store(self) -> Iterator[Metric]:
        single = self._scribe.single
        local = {"storage_type": "local", "storage_medium": "disk"}
        found = self._state.store.figures()
        positions = {
            "first": found.first_offset,
            "synced": found.synced_offset,
            "readable": found.readable_offset,
            "end": found.end_offset,
        }
        yield from single(STORAGE_SIZE, found.end_offset - found.first_offset, **local)
        yield from single(FLUSH_BEHIND, max(0, found.end_offset - found.synced_offset), **local)
        if self._survey.earliest_ms is not None:
            age_ms = max(0, self._state.now_ms() - self._survey.earliest_ms)
            yield from single(RESERVE_TIME, age_ms, **local)
        yield from self._scribe.family(
            POSITIONS, (({"position": name}, offset) for name, offset in positions.items())
        )
        yield from single(WRITEABLE, float(found.refusal is None))
        yield from self._scribe.family(DAMAGED, self._damaged())
        yield from single(DAMAGED_MESSAGES, self._state.damage.count())
        yield from single(DISK_USED, found.disk_used_percent / 100)
        removed = [({"reason": each.name.lower()}, found.removed[each]) for each in Reason]
        yield from self._scribe.family(REMOVED, removed)
        space = os.statvfs(self._state.store.root)
        yield from single(DISK_FREE, space.f_bavail * space.f_frsize)

    def _damaged(self) -> list[tuple[dict[str, str], int]]:
        """Count damaged queues; those of system topics apart, since they stop more than others."""
        topics = [topic for topic, _ in self._state.store.queues.damaged]
        system = sum(map(self._state.topics.is_system, topics))
        return [({"is_system": "true"}, system), ({"is_system": "false"}, len(topics) - system)]


def _text(value: bool) -> str:
    return "true" if value else "false"
