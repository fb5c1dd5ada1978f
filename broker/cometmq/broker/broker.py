"""One broker: its tables assembled over a store, and the callbacks of its connections.

`Broker` owns connections (`net.Owner`) but has no loop; `daemon` runs it on one. A send takes this
way: `handle` puts it into the store's turn, and `end_turn` writes the turn and answers. With sync
flush the answer comes from `synced`, once the disk has confirmed the turn.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cometmq.broker.acknowledgements import Acknowledgements
from cometmq.broker.broadcasts import Broadcasts
from cometmq.broker.changes import Changes
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.consumers import Consumers, Memberships, Producers
from cometmq.broker.delays import Delays
from cometmq.broker.dispatch import HANDLERS, VIP_HANDLERS, dispatch
from cometmq.broker.filter.compiler import Loading
from cometmq.broker.groups import Groups
from cometmq.broker.handlers.consumer import notify_members
from cometmq.broker.handlers.send_answers import SendAnswers
from cometmq.broker.handlers.sent_properties import SentProperties
from cometmq.broker.idempotence import Idempotence
from cometmq.broker.locks import Locks
from cometmq.broker.log_tail import recover
from cometmq.broker.long_polling import LongPolling
from cometmq.broker.lost_tables import lost_tables
from cometmq.broker.offsets import ConsumerOffsets
from cometmq.broker.recent_rates import RecentRates
from cometmq.broker.saved_table import counted_up
from cometmq.broker.session import Session, State
from cometmq.broker.told_at_start import told_at_start
from cometmq.broker.topics import Topics
from cometmq.broker.traffic import Traffic
from cometmq.broker.transactions import Transactions
from cometmq.proto.bodies import DataVersion
from cometmq.proto.codes import RequestCode as Code
from cometmq.proto.commands.pull import PullMessage
from cometmq.proto.commands.send import SendMessage, SendMessageV2
from cometmq.proto.commands.transaction import EndTransaction
from cometmq.proto.header_typed import RequestReader
from cometmq.proto.host import pack_host
from cometmq.proto.message_id import UniqueIds
from cometmq.proto.properties import encode_properties
from cometmq.store.message_store import MessageStore
from cometmq.store.table_contents import check_delay_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.saved_table import SavedTable
    from cometmq.net import Peer
    from cometmq.proto.host import Host
    from cometmq.store.disk.filesystem import FileSystem

DAILY_BREAD = RequestReader(
    {
        Code.SEND_MESSAGE: SendMessage,
        Code.SEND_MESSAGE_V2: SendMessageV2,
        Code.SEND_BATCH_MESSAGE: SendMessageV2,
        Code.SEND_BATCH_ONCE: SendMessageV2,
        Code.PULL_MESSAGE: PullMessage,
        Code.LITE_PULL_MESSAGE: PullMessage,
        Code.END_TRANSACTION: EndTransaction,
    }
)
"""Reads the most frequent requests in one pass."""

log = logging.getLogger(__name__)


class Broker:
    """A broker without its sockets and its clock. Everything is called on one thread."""

    handle = staticmethod(dispatch)
    """Called by `net` for each request; `end_turn`, called for each turn, is set in `__init__`."""

    def __init__(
        self,
        config: BrokerConfig,
        filesystem: FileSystem,
        *,
        address: Host,
        call_soon_threadsafe: Callable[[Callable[[], None]], object],
        topic_changed: Callable[[str], None],
        unsaved: Callable[[], None],
        store_changed: Callable[[], None],
        now_ms: Callable[[], int],
        elapsed_ms: Callable[[], int],
        alive_ms: Callable[[], int] | None = None,
        threads: bool = True,
    ) -> None:
        """Open the store and the tables, or raise a `StoreFilesError` or an `OSError`.

        `address` is given to clients. `topic_changed` is called with each topic that name servers
        should hear of, `unsaved` when a table should be saved, and `store_changed` from a thread
        when `synced` is due. Without `threads` the store works only in its `run_jobs`.
        """
        host = pack_host(address.address, address.port)
        traffic = Traffic(flows_max=config.flows_max, now_ms=elapsed_ms())
        topics = Topics(config, filesystem, traffic, on_change=topic_changed, on_unsaved=unsaved)
        groups = Groups(config, filesystem, on_unsaved=unsaved)
        offsets = ConsumerOffsets(config, filesystem, on_unsaved=unsaved)
        store = self.store = _opened(
            config, filesystem, topics, groups, offsets, host, now_ms, store_changed, threads
        )
        consumers, producers = _members(config)
        self.long_polling = LongPolling(config.held_pulls_max)
        clocks = {"now_ms": now_ms, "elapsed_ms": elapsed_ms}
        self.acknowledgements = Acknowledgements(config, self.store, topics.file, traffic, **clocks)
        self.store.tell_readers(self.long_polling.readable)
        self.end_turn = self.acknowledgements.commit
        self.delays = Delays(config, filesystem, self.store, self.end_turn)
        self.idempotence = Idempotence(config, store, self.acknowledgements, alive_ms or elapsed_ms)
        self.transactions = self._recovered(config, topics, offsets, producers, host, now_ms)
        self.state = State(
            config=config,
            config_version=DataVersion(timestamp=now_ms()),
            store=store,
            topics=topics,
            groups=groups,
            offsets=offsets,
            consumers=consumers,
            broadcasts=Broadcasts(config, store, offsets, consumers),
            producers=producers,
            locks=Locks(config),
            idempotence=self.idempotence,
            acknowledgements=self.acknowledgements,
            delays=self.delays,
            transactions=self.transactions,
            send_answers=SendAnswers(config, host),
            changes=Changes(topics.file, elapsed_ms=elapsed_ms),
            sent_properties=SentProperties(_stored_properties(config)),
            long_polling=self.long_polling,
            cold_reads=ColdReads(self.store, call_soon_threadsafe),
            loading=Loading(call_soon_threadsafe, dispatch),
            configure=self.configure,
            traffic=traffic,
            recent=RecentRates(traffic, now_ms=now_ms(), elapsed_ms=elapsed_ms()),
            unique_ids=UniqueIds(host[:-4], os.getpid(), now_ms() & 0x7FFFFFFF),
            address=address,
            store_host=host,
            stored_properties=_stored_properties(config),
            boot_ms=now_ms(),
            alive_ms=alive_ms or elapsed_ms,
            **clocks,
        )

    def _recovered(
        self,
        config: BrokerConfig,
        topics: Topics,
        offsets: ConsumerOffsets,
        producers: Producers,
        host: bytes,
        now_ms: Callable[[], int],
    ) -> Transactions:
        """Create the transactions, and recover from the log what the saved files do not have."""
        store, acknowledgements = self.store, self.acknowledgements
        made = Transactions(config, store, acknowledgements, producers, offsets, topics, host)
        with _closed_on_failure(store, now_ms):
            recover(store, self.delays, made, self.idempotence, offsets)
            made.recovered(now_ms())
        return made

    def opened(self, peer: Peer) -> None:
        """Begin a session."""
        is_vip = peer.local_port == self.state.config.vip_port
        peer.context = Session(self.state, peer, VIP_HANDLERS if is_vip else HANDLERS)

    def closed(self, peer: Peer) -> None:
        """End a session: cancel what it waits for, and end its memberships."""
        state = self.state
        state.long_polling.leave(peer)
        state.producers.leave_all(peer)
        for group in state.consumers.leave_all(peer):
            notify_members(group, state)
        state.locks.leave(peer, state.consumers.peer_of)

    # Called by the services.

    def synced(self) -> None:
        """Answer what the disk has confirmed."""
        self.acknowledgements.release()
        self.transactions.release()

    def saved(self, table: SavedTable, version: int) -> None:
        """Note that a table is saved up to a version, and answer what waited for that."""
        table.saved(version)
        self.acknowledgements.release()
        self.state.changes.release()

    def told(self, version: int) -> None:
        """Note up to which version of the topic table the name servers have been told."""
        self.state.changes.told(version)
        self.acknowledgements.told(version)

    def flush_offsets(self, *, is_last: bool = False) -> None:
        """Put the progress of consumers, transactions and delayed messages into their tables."""
        self.transactions.flush()
        self.state.offsets.flush()
        self.delays.keep_tail(self.idempotence.flush())
        if not self.transactions.unwritten:
            self.delays.flush(is_last=is_last)

    def tick(self, elapsed_ms: int) -> None:
        """Answer what has waited long enough; do the periodic work of traffic and broadcasts."""
        self.acknowledgements.tick(elapsed_ms)
        self.long_polling.tick(elapsed_ms)
        self.state.traffic.tick(elapsed_ms)
        self.state.broadcasts.tick(elapsed_ms)
        self.state.changes.tick(elapsed_ms)

    def expire_clients(self, elapsed_ms: int) -> None:
        """Let silent clients go, expire locks, and forget the messages of silent producers."""
        state = self.state
        alive_ms = state.alive_ms()
        before_ms = alive_ms - state.config.client_timeout_ms
        state.producers.expire(before_ms)
        state.locks.expire(alive_ms)
        state.idempotence.expire(alive_ms - state.config.idempotent_expiry_ms)
        state.offsets.expire(elapsed_ms)
        state.recent.tick(state.now_ms(), elapsed_ms)
        for group in state.consumers.expire(before_ms):
            notify_members(group, state)

    def configure(self, config: BrokerConfig) -> None:
        """Work with these settings from now on; only `CHANGEABLE` ones may differ.

        Raises an `OSError` or a `PutRefusedError`, and changes nothing, if new delays of levels
        cannot be recorded.
        """
        state = self.state
        levels = config.store.delay_levels_ms
        if levels != state.config.store.delay_levels_ms:
            self.end_turn()
            self.store.change_delays(levels)
            self.delays.follow_levels()
        state.config = config
        state.config_version = counted_up(state.config_version, state.now_ms())
        state.topics.config = config
        state.groups.config = config
        state.broadcasts.config = config
        self.acknowledgements.config = config
        self.transactions.config = config
        self.idempotence.configure(config)
        self.store.configure(replace(config.store, store_host=state.store_host))

    def close(self, now_ms: int) -> bool:
        """Close the store and return whether the shutdown was clean. Waits for the disk.

        A table that the disk has no room for is left as it was last saved, and an error logged.
        """
        self.state.cold_reads.close()
        self.store.finish_log()
        self.state.broadcasts.scan(self.state.elapsed_ms())
        self.flush_offsets(is_last=True)
        for table in self.tables:
            if table.is_changed:
                version, snapshot = table.begin_save()
                try:
                    table.write(snapshot)
                except OSError as error:
                    log.error("%s is not saved, its last changes are lost: %s", table.name, error)
                else:
                    table.saved(version)
        return self.store.close(now_ms)

    @property
    def tables(self) -> tuple[SavedTable, ...]:
        """The tables that have files, in the order in which they should be saved."""
        state = self.state
        return (state.topics.file, state.groups.file, state.offsets.file, self.delays.file)


def _opened(
    config: BrokerConfig,
    filesystem: FileSystem,
    topics: Topics,
    groups: Groups,
    offsets: ConsumerOffsets,
    host: bytes,
    now_ms: Callable[[], int],
    store_changed: Callable[[], None],
    threads: bool,
) -> MessageStore:
    """Open the store of a broker at this packed address, and load the tables kept in it."""
    load = partial(_load, config, filesystem, topics, groups, offsets, now_ms)
    store = MessageStore.open(
        config.store_path,
        replace(config.store, store_host=host),
        now_ms=now_ms(),
        filesystem=filesystem,
        is_batch_topic=topics.is_batch,
        on_locked=load,  # Not earlier: two brokers must not write the same table.
        on_change=store_changed,
        threads=threads,
    )
    for line in told_at_start(store, config, filesystem):
        log.warning("%s", line)
    topics.store_opened(store)
    return store


def _load(
    config: BrokerConfig,
    filesystem: FileSystem,
    topics: Topics,
    groups: Groups,
    offsets: ConsumerOffsets,
    now_ms: Callable[[], int],
) -> None:
    topics.load(now_ms())
    groups.load(now_ms())
    offsets.load()
    for text in lost_tables(groups, offsets):
        log.warning("%s/config/%s", config.store_path, text)
    check_delay_offsets(filesystem, f"{config.store_path}/config")


def _members(config: BrokerConfig) -> tuple[Consumers, Producers]:
    memberships = Memberships(config)
    return Consumers(memberships), Producers(memberships)


def _stored_properties(config: BrokerConfig) -> bytes:
    """Encode the properties that every message gets."""
    return encode_properties(
        {
            "MSG_REGION": config.region_id,
            "TRACE_ON": "true" if config.trace_on else "false",
            "CLUSTER": config.cluster_name,
        }
    )


@contextmanager
def _closed_on_failure(store: MessageStore, now_ms: Callable[[], int]) -> Generator[None]:
    """Close a store if a step after its opening fails."""
    try:
        yield
    except BaseException:
        store.close(now_ms())
        raise
