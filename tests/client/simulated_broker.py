"""A broker of a simulated network: what it stores, and how it answers.

It does what Apache's brokers do, or CometMQ's where those differ: messages can have expired,
offsets that were not saved are lost with the process, locks end with the connection or with time.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace
from tests.client.simulated_network import now

from cometmq.client import Queue
from cometmq.proto.batch import split_batch
from cometmq.proto.bodies import ConsumerList, HeartbeatData, LockBatch, LockedQueues, MessageQueue
from cometmq.proto.codes import Language, RequestCode as Request, ResponseCode as Code
from cometmq.proto.command import Command
from cometmq.proto.commands import (
    ConsumerSendMsgBack,
    GetConsumerListByGroup,
    GetMaxOffset,
    GetMinOffset,
    NotifyConsumerIdsChanged,
    OffsetResponse,
    PullMessage,
    PullMessageResponse,
    QueryConsumerOffset,
    SendMessageResponse,
    SendMessageV2,
    UnregisterClient,
    UpdateConsumerOffset,
)
from cometmq.proto.commands.bulk import BulkPullMessage, BulkPullMessageResponse
from cometmq.proto.message_id import encode_offset_id
from cometmq.proto.properties import find_property
from cometmq.proto.record import encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tests.client.simulated_cluster import Cluster
    from tests.client.simulated_network import Link

    Look = Callable[[bool], bool]
    """Looks again for a held pull, perhaps for the last time; returns whether that is answered."""

    Respond = Callable[[Command], None]

LOCK_SECONDS: Final = 60.0
SILENT_SECONDS: Final = 120.0
SAVE_SECONDS: Final = 5.0
HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0, 9))
REFUSALS: Final = (
    Code.SYSTEM_ERROR, Code.SYSTEM_BUSY, Code.NO_PERMISSION, Code.TOPIC_NOT_EXIST, 9999,
)  # fmt: skip
STORED: Final = (0, 0, 0, int(Code.FLUSH_DISK_TIMEOUT))
REMOVING: Final = "MESSAGE_WAS_REMOVING"


class Stored(NamedTuple):
    """A message in a queue."""

    body: bytes
    record: bytes
    tag: str
    attempts: int


class Log:
    """A queue, with its first message that has not expired."""

    def __init__(self) -> None:
        self.messages: list[Stored] = []
        self.lowest = 0

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return len(self.messages)


class _Lock(NamedTuple):
    client_id: str
    link: Link
    until: float


class _Found(NamedTuple):
    """What is answered to a pull."""

    code: int
    following: int
    body: bytes = b""
    remark: str | None = None


class Broker:
    """A broker. A group's members, its locks and what is held are lost with the process."""

    def __init__(self, cluster: Cluster, name: str, at: int) -> None:
        self.name = name
        self.cluster = cluster
        self.network = cluster.network
        self.is_up = True
        self.counts: dict[str, int] = {}
        self.logs: dict[Queue, Log] = {}
        self.offsets: dict[tuple[str, Queue], int] = {}
        self._saved: dict[tuple[str, Queue], int] = {}
        self._saved_at = 0.0
        self._places: dict[bytes | None, tuple[Queue, int]] = {}
        self._ids: list[tuple[Queue, int]] = []
        self.links: dict[Link, None] = {}
        self._from: Link  # of the request that is handled
        self.locks: dict[tuple[str, Queue], _Lock] = {}
        self.members: dict[str, dict[str, tuple[Link, float]]] = {}
        self.tags: dict[str, dict[str, tuple[str, ...]]] = {}
        self._held: dict[Queue, list[Look]] = defaultdict(list)
        self.address = ""
        self._port = 20_000 + 1000 * at
        self.move()
        self._answers: dict[int, Callable[[Command], Command]] = {
            Request.HEART_BEAT: self._heartbeat,
            Request.UNREGISTER_CLIENT: self._unregister,
            Request.GET_CONSUMER_LIST_BY_GROUP: self._list,
            Request.QUERY_CONSUMER_OFFSET: self._query,
            Request.UPDATE_CONSUMER_OFFSET: self._update,
            Request.GET_MIN_OFFSET: self._ends,
            Request.GET_MAX_OFFSET: self._ends,
            Request.LOCK_BATCH_MQ: self._lock,
            Request.UNLOCK_BATCH_MQ: self._unlock,
            Request.CONSUMER_SEND_MSG_BACK: self._take_back,
            Request.SEND_MESSAGE_V2: self._send,
            Request.SEND_BATCH_MESSAGE: self._send,
        }
        if not cluster.is_apache:
            self._answers[Request.BULK_PULL_MESSAGE] = self._pull_in_bulk

    def move(self) -> None:
        """Listen at another address."""
        self.network.servers.pop(self.address, None)
        self._port += 1
        self.address = f"127.0.0.1:{self._port}"
        self.network.servers[self.address] = self

    def have(self, topic: str, count: int) -> None:
        """Have so many queues of a topic."""
        self.counts[topic] = count
        for number in range(count):
            self.logs.setdefault(Queue(topic, self.name, number), Log())

    def store(self, queue: Queue, body: bytes, properties: bytes, attempts: int = 0) -> int:
        """Store a message; return its offset."""
        log = self.logs[queue]
        now_ms = int(now() * 1000)
        record = encode_record(
            topic=queue.topic.encode(), body=body, properties=properties, queue_id=queue.id,
            queue_offset=log.end, physical_offset=len(self._ids), born_timestamp=now_ms,
            born_host=HOST, store_timestamp=now_ms, store_host=HOST, reconsume_times=attempts,
        )  # fmt: skip
        self._ids.append((queue, log.end))
        tag = find_property(properties, b"TAGS") or b""
        log.messages.append(Stored(body, record, tag.decode(), attempts))
        held, self._held[queue] = self._held[queue], []
        self._held[queue] += [each for each in held if not each(False)]
        return log.end - 1

    def holder(self, group: str, queue: Queue) -> str | None:
        """Return who has the lock of a queue."""
        lock = self.locks.get((group, queue))
        return lock.client_id if lock and lock.until > now() else None

    def crash(self) -> None:
        """Lose all that is only in memory."""
        self.is_up = False
        self.locks.clear()
        self.members.clear()
        self._held.clear()
        self.offsets = dict(self._saved)
        for link in tuple(self.links):
            link.break_("the broker is gone")

    def gone(self, link: Link) -> None:
        """Forget a connection; CometMQ's brokers give its locks back, too."""
        self.links.pop(link, None)
        for group, members in self.members.items():
            for client_id in [each for each, (its, _) in members.items() if its is link]:
                del members[client_id]
                self._tell(group)
        if not self.cluster.is_apache:
            self.locks = {k: each for k, each in self.locks.items() if each.link is not link}

    def refuse(self, request: Command) -> Command:
        """Refuse for some reason."""
        return request.answer(self.network.random.choice(REFUSALS), remark="refused")

    def handle(self, request: Command, link: Link, respond: Respond) -> None:
        """Answer a request, or hold it."""
        self.links[link] = None
        self._from = link
        if now() - self._saved_at > SAVE_SECONDS:
            self._saved_at = now()
            self._saved = dict(self.offsets)
        if request.code == Request.PULL_MESSAGE:
            self._pull(request, respond)
            return
        known = self._answers.get(request.code)
        answer = known(request) if known else request.answer(Code.REQUEST_CODE_NOT_SUPPORTED)
        if self.cluster.is_apache:
            answer = replace(answer, language=int(Language.JAVA))
        respond(answer)

    # Groups.

    def _heartbeat(self, request: Command) -> Command:
        data = HeartbeatData.decode(request.body)
        for each in data.consumer_data_set:
            self.tags[each.group_name] = {
                its.topic: its.tags_set for its in each.subscription_data_set
            }
            members = self.members.setdefault(each.group_name, {})
            is_new = data.client_id not in members
            members[data.client_id] = self._from, now()
            retry = f"%RETRY%{each.group_name}"
            if retry not in self.counts:
                self.have(retry, 1)
                self.network.later(1, self.cluster.publish)
            if is_new:
                self._tell(each.group_name)
        return request.answer(0)

    def _unregister(self, request: Command) -> Command:
        header = request.read(UnregisterClient)
        group = header.consumer_group or ""
        if self.members.get(group, {}).pop(header.client_id, None):
            self._tell(group)
        return request.answer(0)

    def _tell(self, group: str) -> None:
        for link, _ in tuple(self.members.get(group, {}).values()):
            request = Command.request(
                Request.NOTIFY_CONSUMER_IDS_CHANGED, NotifyConsumerIdsChanged(group), oneway=True
            )
            link.push(request)

    def _list(self, request: Command) -> Command:
        group = request.read(GetConsumerListByGroup).consumer_group
        members = self.members.get(group, {})
        least = now() - SILENT_SECONDS
        for each in [name for name, (_, at) in members.items() if at < least]:
            del members[each]
        if not members:
            return request.answer(Code.SYSTEM_ERROR, remark="no consumer for this group")
        return request.answer(0, body=ConsumerList(consumer_id_list=tuple(members)).encode())

    def _lock(self, request: Command) -> Command:
        body = LockBatch.decode(request.body)
        until = now() + LOCK_SECONDS
        granted: list[MessageQueue] = []
        for each in body.mq_set:
            key = body.consumer_group, Queue(each.topic, each.broker_name, each.queue_id)
            if self.holder(*key) in (None, body.client_id):
                self.locks[key] = _Lock(body.client_id, self._from, until)
                granted.append(each)
        return request.answer(0, body=LockedQueues(lock_ok_mq_set=tuple(granted)).encode())

    def _unlock(self, request: Command) -> Command:
        body = LockBatch.decode(request.body)
        for each in body.mq_set:
            key = body.consumer_group, Queue(each.topic, each.broker_name, each.queue_id)
            if self.holder(*key) == body.client_id:
                del self.locks[key]
        return request.answer(0)

    # Offsets.

    def _query(self, request: Command) -> Command:
        header = request.read(QueryConsumerOffset)
        queue = Queue(header.topic, self.name, header.queue_id)
        offset = self.offsets.get((header.consumer_group, queue))
        log = self.logs[queue]
        if offset is None and not log.lowest and header.set_zero_if_not_found is not False:
            offset = 0 if log.end < 100 else None  # As if more were not in memory.
        if offset is None:
            return request.answer(Code.QUERY_NOT_FOUND)
        return request.answer(0, OffsetResponse(offset))

    def _update(self, request: Command) -> Command:
        header = request.read(UpdateConsumerOffset)
        queue = Queue(header.topic, self.name, header.queue_id)
        self.cluster.listener.committed(header.consumer_group, queue, header.commit_offset)
        self._saved.setdefault((header.consumer_group, queue), header.commit_offset)
        self.offsets[header.consumer_group, queue] = header.commit_offset
        return request.answer(0)

    def _ends(self, request: Command) -> Command:
        is_least = request.code == Request.GET_MIN_OFFSET
        header = request.read(GetMinOffset) if is_least else request.read(GetMaxOffset)
        log = self.logs[Queue(header.topic, self.name, header.queue_id)]
        return request.answer(0, OffsetResponse(log.lowest if is_least else log.end))

    def _take_back(self, request: Command) -> Command:
        header = request.read(ConsumerSendMsgBack)
        queue, offset = self._ids[header.offset]
        message = self.logs[queue].messages[offset]
        self.cluster.listener.taken_back(queue, offset)
        attempts = message.attempts + 1
        if header.delay_level < 0 or attempts > (header.max_reconsume_times or 0):
            self.network.count("dead letter")
        else:
            self.network.count("sent back")
            retry = Queue(f"%RETRY%{header.group}", self.name, 0)
            self.network.later(
                self.network.random.uniform(0.1, 10),
                lambda: self.store(retry, message.body, b"", attempts) and None,
            )
        return request.answer(0)

    # Sends.

    def _send(self, request: Command) -> Command:
        header = request.read(SendMessageV2)
        queue = Queue(header.topic, self.name, header.queue_id)
        if header.queue_id >= self.counts[header.topic]:
            return request.answer(Code.INVALID_PARAMETER, remark="queueId is illegal")
        properties = (header.properties or "").encode()
        key = find_property(properties, b"UNIQ_KEY")
        is_once = not self.cluster.is_apache and find_property(properties, b"IDEMPOTENT")
        place = self._places.get(key) if is_once else None
        if place is not None:
            self.network.count("stored once")
        elif header.batch:
            items = split_batch(bytes(request.body or b""))
            stored = [self.store(queue, body, its) for _, body, its in items]
            place = queue, stored[0]
        else:
            place = queue, self.store(queue, bytes(request.body or b""), properties)
        if is_once:
            self._places[key] = place
        fields = SendMessageResponse(encode_offset_id(HOST, 0), place[0].id, place[1])
        return request.answer(self.network.random.choice(STORED), fields)

    # Pulls.

    def _pull(self, request: Command, respond: Respond) -> None:
        header = request.read(PullMessage)
        queue = Queue(header.topic, self.name, header.queue_id)
        tags = self.tags.get(header.consumer_group, {}).get(header.topic, ())
        if header.subscription is not None:
            tags = tuple(each for each in (header.subscription,) if each != "*")

        def look(is_last: bool) -> bool:
            first = header.queue_offset
            most = self.network.random.randrange(1, header.max_msg_nums + 1)
            found = self._find(queue, first, first + most, tags)
            if found.code == Code.PULL_NOT_FOUND and not is_last:
                return False
            log = self.logs[queue]
            least = first if found.remark else log.lowest  # The queue still has the entries.
            fields = PullMessageResponse(0, found.following, least, log.end)
            respond(request.answer(found.code, fields, remark=found.remark, body=found.body))
            return True

        self.cluster.listener.begun(queue, header.queue_offset)
        if queue not in self.logs:
            respond(request.answer(Code.TOPIC_NOT_EXIST))
        elif not look(not header.may_suspend):
            self._held[queue].append(look)
            self.network.later(header.suspend_timeout_millis / 1000, lambda: self._end(queue, look))

    def _end(self, queue: Queue, look: Look) -> None:
        if look in self._held[queue]:
            self._held[queue].remove(look)
            look(True)

    def _pull_in_bulk(self, request: Command) -> Command:
        header = request.read(BulkPullMessage)
        queue = Queue(header.topic, self.name, header.queue_id)
        tags = () if header.subscription in (None, "*") else (header.subscription,)
        found = self._find(queue, header.queue_offset, header.end_offset, tags)
        log = self.logs[queue]
        fields = BulkPullMessageResponse(found.following, log.lowest, log.end, 0)
        return request.answer(found.code, fields, remark=found.remark, body=found.body)

    def _find(self, queue: Queue, first: int, end: int, tags: Collection[str]) -> _Found:
        log = self.logs[queue]
        if first < log.lowest and self.network.random.random() < 0.3:
            return _Found(Code.PULL_RETRY_IMMEDIATELY, log.lowest, b"", REMOVING)
        if first < log.lowest or first > log.end:
            return _Found(Code.PULL_OFFSET_MOVED, max(log.lowest, min(first, log.end)))
        if first == log.end:
            return _Found(Code.PULL_NOT_FOUND, first)
        end = min(end, log.end)
        found = [each for each in log.messages[first:end] if not tags or each.tag in tags]
        code = Code.SUCCESS if found else Code.PULL_RETRY_IMMEDIATELY
        return _Found(code, end, b"".join(each.record for each in found))
