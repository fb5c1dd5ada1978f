"""What bytes come in: the one definition that all modules share."""

from __future__ import annotations

import mmap
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes of a body. A view must be contiguous, of any item size."""

RecordBuffer: TypeAlias = bytes | mmap.mmap
"""What stored records are read in place from: slices of these are `bytes` of their own."""
