"""Options that go together: one decorator for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give a command these options, or sets of them, which its help shows in this order."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate
