"""Transactions and reading by hand, without async: objects that `SyncClient` returns."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from cometmq.client.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from cometmq.client._background import Background
    from cometmq.client._core.queues import Queue
    from cometmq.client.transaction import Transaction

P = ParamSpec("P")
R = TypeVar("R")


class SyncTransaction:
    """One message that is delivered or not, depending on how a block ends; see `Transaction`.

    ::

        with mq.transaction("orders", b"o-17 paid", key="o-17") as transaction:
            database.execute("update orders ...")
    """

    def __init__(self, transaction: Transaction, background: Background) -> None:
        self._transaction = transaction
        self._background = background

    @property
    def id(self) -> str:
        """The message's id, available from the start of the block.

        ::

            database.execute("insert into sent values (?)", transaction.id)
        """
        return self._transaction.id

    def __enter__(self) -> Self:
        self._background.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._background.run(self._transaction.__aexit__(kind, error, traceback))

    def commit(self) -> None:
        """Have the message delivered.

        ::

            transaction.commit()
        """
        self._background.run(self._transaction.commit())

    def rollback(self) -> None:
        """Have the message never delivered.

        ::

            transaction.rollback()
        """
        self._background.run(self._transaction.rollback())


def _verb(
    verb: Callable[Concatenate[Reader, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncReader, P], R]:
    """Make the sync verb of an async one."""

    @wraps(verb)
    def call(self: SyncReader, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.background.run(verb(self.reader, *args, **kwargs))

    return call


class SyncReader:
    """A reader of the queues that are assigned to it; see `Reader`.

    ::

        reader = mq.reader("orders", group="reports")
        reader.assign()
        while messages := reader.pull(count=100, wait=5):
            ...
            reader.commit()
    """

    def __init__(self, reader: Reader, background: Background) -> None:
        self.reader = reader
        self.background = background

    def __repr__(self) -> str:
        return f"<Sync{repr(self.reader)[1:]}"

    @property
    def queues(self) -> list[Queue]:
        """The queues that are read from.

        ::

            assert reader.queues == mq.queues("orders")
        """
        return self.reader.queues

    assign = _verb(Reader.assign)
    seek = _verb(Reader.seek)
    pull = _verb(Reader.pull)
    commit = _verb(Reader.commit)

    def position(self, queue: Queue) -> int:
        """Return the offset that will be read next.

        ::

            lag = mq.end_offset(queue) - reader.position(queue)
        """
        return self.reader.position(queue)
