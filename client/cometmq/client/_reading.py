"""Reading queues without being a member of a group: offsets and pulls."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cometmq.client._core.checking import check_seconds
from cometmq.client.errors import (
    NetworkError,
    NotFoundError,
    ProtocolViolationError,
    RefusedError,
    UnreachableError,
    UsageError,
    refusal,
    unreadable,
)
from cometmq.client.messages import M, Pulled
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import (
    PULLED_CODES,
    GetMaxOffset,
    GetMinOffset,
    OffsetResponse,
    PullMessage,
    PullMessageResponse,
    PullSysFlag,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from cometmq.proto.commands.bulk import BulkPullMessage, BulkPullMessageResponse
from cometmq.proto.errors import MessageError, RemoteProtocolError
from cometmq.proto.message_list import MessageList

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.client._connections import Connections
    from cometmq.client._core.filters import Filter
    from cometmq.client._core.queues import Queue
    from cometmq.client._core.routes import Route
    from cometmq.client._routes import Routes
    from cometmq.client.config import ClientConfig
    from cometmq.proto.header import H, Header
    from cometmq.proto.message import StoredMessage

_log = logging.getLogger("cometmq.client")

PULL_COUNT: Final = 32
"""The most messages that brokers return for a pull; CometMQ's return more in a bulk pull."""

BULK_BYTES: Final = 1024 * 1024
"""The size of an answer to a bulk pull. With a quarter of it, asking took as long as reading."""

WAIT_SECONDS_MAX: Final = 20.0
"""How long a broker may hold a pull; the timeouts of all clients are longer."""

_ANSWER_SECONDS: Final = 10.0
"""How long the answer to a pull may take, beyond the time that the broker may hold it."""

_PULLED: Final = frozenset(map(int, PULLED_CODES))
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
_NOTHING: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_BEING_REMOVED: Final = "MESSAGE_WAS_REMOVING"
_NOT_SUPPORTED: Final = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
_OFFSET_MAX: Final = 2**63 - 1
_PULL: Final = int(RequestCode.PULL_MESSAGE)
_BULK_PULL: Final = int(RequestCode.BULK_PULL_MESSAGE)
_SUSPEND: Final = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)
_BATCHED: Final = 0xC0


def check_wait(wait: float) -> None:
    """Refuse a wait that is longer than brokers hold a pull."""
    if check_seconds("wait", wait) > WAIT_SECONDS_MAX:
        raise UsageError(f"wait={wait}: must be from 0 to {WAIT_SECONDS_MAX:.0f} seconds")


def _is_at_end(found: Pulled[M], asked: int) -> bool:
    """Whether the queue ends at the offset asked for, so that a pull can wait for a message."""
    return found.is_empty and not found.moved and found.next_offset == asked


def tell_moved(queue: Queue, asked: int, found: Pulled[M]) -> None:
    """Log why a queue continues at another offset; it is a loss only if messages have expired."""
    to = found.next_offset
    if asked < found.first_offset:
        text = "%s: offset %d expired before it was consumed; continuing at %d"
        _log.warning(text, queue, asked, to)
    elif asked > found.end_offset:
        text = "%s: offset %d is beyond the end, as after a loss of data; continuing at %d"
        _log.warning(text, queue, asked, to)
    else:
        _log.info("%s: reset: continuing at %d instead of %d", queue, to, asked)


class Reading:
    """Asks brokers about queues, for one client."""

    def __init__(self, config: ClientConfig, connections: Connections, routes: Routes) -> None:
        self._config = config
        self._connections = connections
        self._routes = routes
        self._suggested: dict[Queue, int] = {}
        self._without_bulk: set[str] = set()  # addresses of brokers that are not CometMQ's
        self._known_groups: set[tuple[str, str]] = set()  # address of the broker, group

    async def queues(self, topic: str, timeout: float) -> tuple[Queue, ...]:
        """Return the queues that a topic can be read from."""
        return (await self._routes.get(topic, timeout=timeout)).to_read

    async def offset(self, queue: Queue, request: Command, timeout: float) -> int:
        """Ask the master about an offset of a queue."""
        return (await self.ask_master(queue, request, OffsetResponse, timeout)).offset

    async def first_offset(self, queue: Queue, timeout: float) -> int:
        """Return the first offset that can be read."""
        fields = GetMinOffset(queue.topic, queue.id)
        return await self.offset(queue, _about(queue, RequestCode.GET_MIN_OFFSET, fields), timeout)

    async def end_offset(self, queue: Queue, timeout: float) -> int:
        """Return the offset that the next message gets."""
        fields = GetMaxOffset(queue.topic, queue.id)
        return await self.offset(queue, _about(queue, RequestCode.GET_MAX_OFFSET, fields), timeout)

    async def offset_at(self, queue: Queue, time_ms: int, timeout: float) -> int:
        """Return the offset of the first message that was stored at or after a time."""
        fields = SearchOffsetByTimestamp(queue.topic, queue.id, time_ms)
        request = _about(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
        return await self.offset(queue, request, timeout)

    async def committed(
        self, queue: Queue, group: str, timeout: float, *, is_exact: bool = False
    ) -> int | None:
        """Return the committed offset of a group, or None if the broker has none.

        For a group that has committed nothing, brokers answer 0 as long as the queue still has its
        first message; with `is_exact`, CometMQ's and Apache's from 5.0 on say that there is none.
        """
        fields = QueryConsumerOffset(group, queue.topic, queue.id, False if is_exact else None)
        request = _about(queue, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        try:
            return await self.offset(queue, request, timeout)
        except NotFoundError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    async def commit(self, queue: Queue, group: str, offset: int, timeout: float) -> None:
        """Commit the offset of a group, and wait until the broker has noted it."""
        fields = UpdateConsumerOffset(group, queue.topic, queue.id, offset)
        request = _about(queue, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        address, response = await self._call_master(queue, request, timeout)
        if response.code != _SUCCESS:
            raise refusal(response.code, response.remark, address)

    async def pull(
        self,
        queue: Queue,
        offset: int,
        *,
        group: str,
        count: int,
        filter: Filter | None,
        wait: float,
        make: Callable[[StoredMessage, Queue], M],
        check: Filter | None = None,
        version: int = 0,
    ) -> Pulled[M]:
        """Pull once; with `filter` None, the broker uses the filter of the group's heartbeat.

        `check` is the filter that the client itself applies, if it is not `filter`.
        """
        route = await self._route(queue)
        address = route.address_of(queue.broker, self._suggested.get(queue, 0))
        if address is None:
            self._routes.doubt(queue.topic)
            raise UnreachableError(f"broker {queue.broker!r} has no address at the moment")
        if count > PULL_COUNT and filter is not None and self._may_ask_in_bulk(address, group):
            found = await self._pull_in_bulk(queue, offset, address, group, count, filter, make)
            if found is not None and not (wait > 0 and _is_at_end(found, offset)):
                return found
        flags = _SUSPEND if wait > 0 else 0
        if filter is not None:
            flags |= _SUBSCRIPTION
        header = PullMessage(
            group,
            queue.topic,
            queue.id,
            offset,
            count,
            flags,
            0,
            int(wait * 1000),
            version,
            None if filter is None else filter.expression,
            "TAG" if filter is None else filter.kind,
        )
        timeout = wait + self._answer_seconds
        response = await self._ask_for_messages(queue, address, _PULL, header, timeout)
        if count > PULL_COUNT:
            self._known_groups.add((address, group))
        said, messages = self._read_pulled(
            queue, offset, address, response, PullMessageResponse, check or filter, make
        )
        if said.suggest_which_broker_id:
            self._suggested[queue] = said.suggest_which_broker_id
        elif self._suggested:
            self._suggested.pop(queue, None)
        return _pulled(response, said, messages)

    def _may_ask_in_bulk(self, address: str, group: str) -> bool:
        """Whether a broker may be asked for more than `PULL_COUNT`.

        The first pull of a group must be an ordinary one, from which the broker learns the group.
        """
        return address not in self._without_bulk and (address, group) in self._known_groups

    async def _pull_in_bulk(
        self,
        queue: Queue,
        offset: int,
        address: str,
        group: str,
        count: int,
        filter: Filter,
        make: Callable[[StoredMessage, Queue], M],
    ) -> Pulled[M] | None:
        """Pull many messages, without waiting; None if the broker does not support it."""
        end = min(offset + count, _OFFSET_MAX)
        header = BulkPullMessage(
            group,
            queue.topic,
            queue.id,
            offset,
            end,
            BULK_BYTES,
            filter.expression,
            filter.kind,
        )
        try:
            response = await self._ask_for_messages(
                queue, address, _BULK_PULL, header, self._answer_seconds
            )
        except RefusedError as error:
            if error.code != _NOT_SUPPORTED:
                raise
            self._without_bulk.add(address)
            return None
        said, messages = self._read_pulled(
            queue, offset, address, response, BulkPullMessageResponse, filter, make
        )
        return _pulled(response, said, messages)

    @property
    def _answer_seconds(self) -> float:
        return max(_ANSWER_SECONDS, self._config.timeout)

    async def _ask_for_messages(
        self, queue: Queue, address: str, code: int, header: Header, timeout: float
    ) -> Command:
        """Send a pull of either kind; return the answer if it was served, or raise."""
        request = Command(code, header, extras={"bname": queue.broker})
        try:
            response = await self._connections.call(address, request, timeout=timeout)
        except NetworkError:
            self._suggested.pop(queue, None)  # The master may answer where a replica does not.
            raise
        if response.code not in _PULLED:
            if response.code == ResponseCode.TOPIC_NOT_EXIST:
                self._routes.doubt(queue.topic)
            raise refusal(response.code, response.remark, address)
        return response

    def _read_pulled(
        self,
        queue: Queue,
        offset: int,
        address: str,
        response: Command,
        answer: type[H],
        check: Filter | None,
        make: Callable[[StoredMessage, Queue], M],
    ) -> tuple[H, list[M]]:
        """Read the fields of an answer and its messages.

        If a message cannot be read, return those before it; the next pull then begins with it.
        """
        messages: list[M] = []
        try:
            said = response.read(answer)
        except RemoteProtocolError as error:
            raise ProtocolViolationError(response.code, str(error), address) from None
        try:
            if response.code == _SUCCESS:
                any_tag = check is None or not check.tags
                for stored in MessageList(response.body):
                    if any_tag or check is None or check.passes(stored):
                        message = make(stored, queue)
                        if stored.sys_flag & _BATCHED:
                            messages += [m for m in message.unwrapped() if m.offset >= offset]
                        else:
                            messages.append(message)
        except MessageError as error:
            if not messages:
                place = f"{queue}, from offset {offset} on"
                raise unreadable(response.code, place, error, address) from None
            said = replace(said, next_begin_offset=messages[-1].offset + 1)
        except RemoteProtocolError as error:
            raise ProtocolViolationError(response.code, str(error), address) from None
        return said, messages

    async def ask_master(
        self, queue: Queue, request: Command, answer: type[H], timeout: float
    ) -> H:
        """Ask the master of a queue's broker, and read the fields of its answer."""
        address, response = await self._call_master(queue, request, timeout)
        if response.code != _SUCCESS:
            raise refusal(response.code, response.remark, address)
        try:
            return response.read(answer)
        except RemoteProtocolError as error:
            raise ProtocolViolationError(response.code, str(error), address) from None

    async def _call_master(
        self, queue: Queue, request: Command, timeout: float
    ) -> tuple[str, Command]:
        route = await self._route(queue)
        address = route.address_of(queue.broker)
        if address is None:
            self._routes.doubt(queue.topic)
            raise UnreachableError(f"broker {queue.broker!r} has no address at the moment")
        try:
            return address, await self._connections.call(address, request, timeout=timeout)
        except UnreachableError:
            self._routes.doubt(queue.topic)
            raise

    async def _route(self, queue: Queue) -> Route:
        route = self._routes.known(queue.topic)
        if route is None:
            route = await self._routes.get(queue.topic, timeout=self._config.timeout)
        return route


def _pulled(
    response: Command, said: PullMessageResponse | BulkPullMessageResponse, messages: list[M]
) -> Pulled[M]:
    """Make the result of a pull.

    While a file of the log is being removed, brokers go past its messages as past those that a
    filter leaves out, and only the remark says why: these have expired, too.
    """
    to, code = said.next_begin_offset, response.code
    if code == _NOTHING and response.remark == _BEING_REMOVED:
        return Pulled(messages, to, to, said.max_offset, moved=True)
    return Pulled(messages, to, said.min_offset, said.max_offset, code == _MOVED)


def _about(queue: Queue, code: int, fields: Header) -> Command:
    """Make a request about a queue, with the broker's name, as clients of 5.x do."""
    return Command.request(code, fields, extras={"bname": queue.broker})
