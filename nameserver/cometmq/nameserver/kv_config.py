"""The KV table: texts by namespace and key, kept in a file in the form of Apache's `kvConfig.json`.

Operators change it, so it is small and changes rarely: each change writes and syncs the whole file
before it is applied and answered. If the disk refuses a change, nothing of it remains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cometmq.nameserver.errors import RequestError
from cometmq.proto.codes import ResponseCode
from cometmq.store.errors import StoreFormatError
from cometmq.store.tables import TableFile, encode_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.nameserver.config import NameServerConfig
    from cometmq.store.disk.filesystem import FileSystem

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""The namespace of ordered topics: `broker:queues;…` by topic."""

_MEMBER = "configTable"


class KvConfig:
    """Namespaces of texts by key; as with Apache, an empty namespace stays."""

    def __init__(self, file: TableFile, table: dict[str, dict[str, str]]) -> None:
        self._file = file
        self._table = table

    @classmethod
    def load(cls, filesystem: FileSystem, path: str) -> KvConfig:
        """Read the file at an absolute path; no file means an empty table.

        Raises a `StoreFormatError` if it is damaged: an empty table would lose every item.
        """
        folder, _, name = path.rpartition("/")
        file = TableFile(filesystem, folder, name)
        found: object = file.load().tree.get(_MEMBER, {})
        try:
            table = msgspec.convert(found, dict[str, dict[str, str]])
        except msgspec.ValidationError as error:
            raise StoreFormatError(f"{_MEMBER}: {error}", path) from None
        return cls(file, table)

    def get(self, namespace: str, key: str) -> str | None:
        """Return one text."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return the texts of a namespace by key; None if nothing was ever put there."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str, config: NameServerConfig) -> None:
        """Set one text, which survives a power cut once this returns.

        Raises a `RequestError` if a limit would be exceeded, an `OSError` if the disk refuses.
        """
        held = self._table.get(namespace, {})
        if held.get(key) == value:
            return
        table = {**self._table, namespace: {**held, key: value}}
        _check(table, config)
        self._save(table)

    def delete(self, namespace: str, key: str) -> None:
        """Remove one text, if it is there."""
        held = self._table.get(namespace, {})
        if key in held:
            left = {other: value for other, value in held.items() if other != key}
            self._save({**self._table, namespace: left})

    def _save(self, table: dict[str, dict[str, str]]) -> None:
        self._file.write([encode_line({_MEMBER: table})])
        self._table = table


def _check(table: dict[str, dict[str, str]], config: NameServerConfig) -> None:
    # A namespace counts as an item, too, or empty ones would be free.
    count = len(table) + sum(map(len, table.values()))
    if count > config.kv_items_max:
        raise _full("kv_items_max", config.kv_items_max)
    size = sum(len(name.encode()) for name in table)
    for items in table.values():
        size += sum(len(key.encode()) + len(value.encode()) for key, value in items.items())
    if size > config.kv_size_max:
        raise _full("kv_size_max", config.kv_size_max)


def _full(setting: str, limit: int) -> RequestError:
    return RequestError(
        ResponseCode.SYSTEM_ERROR, f"put KV config failed: this name server's {setting} is {limit}"
    )
