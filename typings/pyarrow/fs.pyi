"""The part of pyarrow.fs that the pipeline uses."""

from enum import IntEnum
from typing import overload

class FileType(IntEnum):
    NotFound = 0
    Unknown = 1
    File = 2
    Directory = 3

class FileInfo:
    path: str
    base_name: str
    size: int | None
    type: FileType

class FileSelector:
    def __init__(
        self, base_dir: str, allow_not_found: bool = False, recursive: bool = False
    ) -> None: ...

class RandomAccessFile:
    def read_at(self, nbytes: int, offset: int) -> bytes: ...
    def close(self) -> None: ...

class FileSystem:
    @staticmethod
    def from_uri(uri: str) -> tuple[FileSystem, str]: ...
    @overload
    def get_file_info(self, paths_or_selector: str) -> FileInfo: ...
    @overload
    def get_file_info(self, paths_or_selector: FileSelector) -> list[FileInfo]: ...
    def open_input_file(self, path: str) -> RandomAccessFile: ...

class LocalFileSystem(FileSystem):
    def __init__(self) -> None: ...
