"""Our own JSON files: one line with a checksum, valid as a whole, and replaced as a whole.

::

    {"crc32":3632233996,"topics":{"Orders":123456},"version":1}

`crc32` is the checksum of the content's text; the content has another name in each kind of file. A
file that differs by a byte from what was written is damaged.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from cometmq.proto.checksum import crc32
from cometmq.proto.errors import BodyError
from cometmq.store.disk.filesystem import read_whole
from cometmq.store.errors import check_version

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import FileSystem

T = TypeVar("T")


class CheckedJson(NamedTuple):
    """One kind of file."""

    name: str
    content: str
    """The name of the content's member."""
    version: int

    def load(self, filesystem: FileSystem, root: str, kind: type[T]) -> T | None:
        """Return the content; None if there is no file.

        Raise `BodyError` if it is damaged, and `StoreFormatError` if a newer version of this
        program wrote it.
        """
        path = f"{root}/{self.name}"
        data = read_whole(filesystem, path)
        if data is None:
            return None
        try:
            members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            version = msgspec.json.decode(members.get("version", b"0"), type=int)
            check_version(path, version, self.version)
            content = members.get(self.content, b"")
            if self._text(content) != data:
                raise BodyError("its checksum is wrong")
            return msgspec.json.decode(content, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BodyError(str(error)) from error

    def save(self, filesystem: FileSystem, root: str, content: bytes) -> None:
        """Replace the content; when this returns, the new content would survive a power cut."""
        path = f"{root}/{self.name}"
        with closing(filesystem.open(f"{path}.new", create=True)) as file:
            file.resize(0)
            file.write(self._text(content), 0)
            file.sync()
        filesystem.rename(f"{path}.new", path)
        filesystem.sync_directory(root)

    def _text(self, content: bytes | msgspec.Raw) -> bytes:
        text = bytes(content)
        head = f'{{"crc32":{crc32(text)},"{self.content}":'
        return head.encode() + text + b',"version":%d}' % self.version
