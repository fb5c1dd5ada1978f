"""The names of a simulated disk: what the process sees, and what a power cut leaves.

Each verb on names is one atomic change of some entries. A change stays pending until the folder it
is in is synced. A power cut does with the pending changes what a journalling file system may do.
Either a prefix of them survives, in order (one journal, as in ext4 and XFS). Or any subset survives
in which no change is without the earlier ones that it builds on: those that touched the same name,
a folder above it, or a name below it. The second is weaker than ext4 and is what the seam promises.
Syncing a folder therefore also makes the folder itself durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tests.crash.content import Content

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.crash.content import Luck


class Folder:
    """A folder; only a kind of node: the paths tell what is in it."""


Node: TypeAlias = Content | Folder
Change: TypeAlias = dict[str, Node | None]


def folder_of(path: str) -> str:
    """The folder that a path's last name is in."""
    return path.rpartition("/")[0] or "/"


class Names:
    """Paths and what they lead to, cached and durable."""

    def __init__(self, durable: dict[str, Node]) -> None:
        self.live = dict(durable)
        self._durable = dict(durable)
        self._pending: list[Change] = []

    def change(self, change: Change) -> None:
        """Apply one atomic change; None removes a name."""
        _apply(self.live, change)
        self._pending.append(change)

    def children(self, folder: str) -> list[str]:
        """The paths directly in a folder, sorted."""
        return sorted(path for path in self._paths() if path != "/" and folder_of(path) == folder)

    def below(self, folder: str) -> list[str]:
        """All paths under a folder, however deep."""
        prefix = folder.rstrip("/") + "/"
        return [path for path in self._paths() if path.startswith(prefix) and path != "/"]

    def _paths(self) -> list[str]:
        """All paths at one moment: threads of a broker create files while another looks."""
        return list(self.live)

    def sync(self, folder: str) -> None:
        """Make the changes in a folder durable, and those that they build on.

        A rename is a change in the folder of the new name.
        """
        chosen: set[int] = set()
        for number in range(len(self._pending) - 1, -1, -1):
            change = self._pending[number]
            names = [path for path, node in change.items() if node is not None] or change
            if any(folder_of(path) == folder for path in names) or any(
                _builds_on(self._pending[later], change) for later in chosen
            ):
                chosen.add(number)
        for number in sorted(chosen):
            _apply(self._durable, self._pending[number])
        self._pending = [
            change for number, change in enumerate(self._pending) if number not in chosen
        ]

    def after_power_cut(self, luck: Luck) -> dict[str, Node]:
        """Draw the names that a power cut leaves."""
        names = dict(self._durable)
        for change in self._surviving(luck):
            _apply(names, change)
        return {path: node for path, node in names.items() if _reachable(path, names)}

    def _surviving(self, luck: Luck) -> Iterable[Change]:
        if luck.rng.random() < 0.5:
            return self._pending[: luck.rng.randint(0, len(self._pending))]
        kept: list[Change] = []
        lost: list[Change] = []
        for change in self._pending:
            survives = luck.keeps() and not any(_builds_on(change, earlier) for earlier in lost)
            (kept if survives else lost).append(change)
        return kept

    def copy(self, copies: dict[int, Node]) -> Names:
        """The same names, durable and pending, leading to copies of the nodes."""
        names = Names({path: copies[id(node)] for path, node in self._durable.items()})
        names.live = {path: copies[id(node)] for path, node in self.live.items()}
        names._pending = [
            {path: node and copies[id(node)] for path, node in change.items()}
            for change in self._pending
        ]
        return names

    def nodes(self) -> Iterable[Node]:
        """Every node that a name leads to, led to, or may lead to after a power cut."""
        yield from self.live.values()
        yield from self._durable.values()
        for change in self._pending:
            yield from (node for node in change.values() if node)


def _apply(names: dict[str, Node], change: Change) -> None:
    for path, node in change.items():
        if node is None:
            names.pop(path, None)
        else:
            names[path] = node


def _builds_on(later: Change, earlier: Change) -> bool:
    return any(
        mine == theirs or mine.startswith(theirs + "/") or theirs.startswith(mine + "/")
        for mine in later
        for theirs in earlier
    )


def _reachable(path: str, names: dict[str, Node]) -> bool:
    return path == "/" or isinstance(names.get(folder_of(path)), Folder)
