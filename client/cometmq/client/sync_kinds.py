"""Administration of dead letters and transactions without async; see `cometmq.client.sync`."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from cometmq.client._admin_dead_letters import DeadLetters
from cometmq.client._admin_transactions import TransactionAdmin

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from cometmq.client._background import Background

P = ParamSpec("P")
R = TypeVar("R")


def _dead_letter_verb(
    verb: Callable[Concatenate[DeadLetters, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncDeadLetters, P], R]:
    """Make the sync verb of an async one."""

    @wraps(verb)
    def call(self: SyncDeadLetters, /, *args: P.args, **kwargs: P.kwargs) -> R:
        background = self.background()
        return background.run(verb(background.client.admin.dead_letters, *args, **kwargs))

    return call


def _transaction_verb(
    verb: Callable[Concatenate[TransactionAdmin, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncTransactionAdmin, P], R]:
    """Make the sync verb of an async one."""

    @wraps(verb)
    def call(self: SyncTransactionAdmin, /, *args: P.args, **kwargs: P.kwargs) -> R:
        background = self.background()
        return background.run(verb(background.client.admin.transactions, *args, **kwargs))

    return call


class SyncDeadLetters:
    """The calls of a `SyncClient` about dead letters; see `DeadLetters`.

    ::

        mq.admin.dead_letters.redrive("billing", rate=100)
    """

    def __init__(self, background: Callable[[], Background]) -> None:
        self.background = background

    groups = _dead_letter_verb(DeadLetters.groups)
    show = _dead_letter_verb(DeadLetters.show)
    redrive = _dead_letter_verb(DeadLetters.redrive)
    purge = _dead_letter_verb(DeadLetters.purge)


class SyncTransactionAdmin:
    """The calls of a `SyncClient` about undecided transactions; see `TransactionAdmin`.

    ::

        for pending in mq.admin.transactions.pending():
            print(pending.id, pending.sent_at)
    """

    def __init__(self, background: Callable[[], Background]) -> None:
        self.background = background

    pending = _transaction_verb(TransactionAdmin.pending)
    find = _transaction_verb(TransactionAdmin.find)
    resolve = _transaction_verb(TransactionAdmin.resolve)
