"""One simulated file: what the page cache shows, and what the disk holds.

A write goes to the cache and marks its 512-byte sectors as unsynced. `sync` copies those sectors to
the disk. `after_power_cut` draws what the disk holds then. An unsynced sector has the old bytes,
the new ones, some that it had in between, or a mix of two of these. The length is any that the file
has had since the last sync, or one in between.

The model is weaker than ext4 with ordered data: it gives no order to what was not synced. As in
ext4, blocks never written read as zeros (no stale data of other files).

A failed sync behaves as on Linux: the cache keeps the bytes, the kernel forgets that they are
unsynced, and the next sync succeeds without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

SECTOR = 512
BLOCK = 4096
_VERSIONS_MAX = 3


class Luck:
    """How kind one power cut is: drawn once for a cut, so that some keep nearly all, some nothing.

    Were each sector a fair coin, a tail of fifty sectors would never survive as a whole.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._kept = rng.choice((0.0, 0.3, 0.7, 0.95, 1.0))
        self._torn = rng.choice((0.0, 0.05, 0.3))

    def keeps(self) -> bool:
        """Whether one unsynced thing reached the disk."""
        return self.rng.random() < self._kept

    def tears(self) -> bool:
        """Whether one sector is a mix of two contents."""
        return self.rng.random() < self._torn


class Content:
    """The bytes of one file, cached and durable."""

    def __init__(self, durable: bytes | bytearray = b"", modified_ms: int = 0) -> None:
        self.cache = bytearray(durable)
        self.modified_ms = modified_ms
        self.blocks = set(range(_blocks(len(durable))))
        self.users = 0
        self.lock_owner: object = None
        self._durable = bytearray(durable)
        self._unsynced: dict[int, list[bytes]] = {}
        self._dropped: set[int] = set()
        self._lengths: list[int] = []
        self._shortest = len(durable)
        self._maps: list[bytearray] = []

    def write(self, data: bytes | memoryview, position: int) -> None:
        """Put bytes into the cache."""
        if not len(data):
            return
        end = position + len(data)
        if end > len(self.cache):
            self.resize(end)
        self.blocks.update(range(position // BLOCK, _blocks(end)))
        self._touch(position, end)
        for image in (self.cache, *self._maps):
            shown = min(end, len(image)) - position
            if shown > 0:
                image[position : position + shown] = data[:shown]

    def resize(self, length: int) -> None:
        """Set the length in the cache; what is added reads as zeros."""
        before = len(self.cache)
        self._lengths.append(before)
        self._shortest = min(self._shortest, length)
        self.blocks = {block for block in self.blocks if block < _blocks(length)}
        if length < before and length % SECTOR:
            self._touch(length, length + 1)
        for image in self._maps:
            image[length:] = bytes(max(0, len(image) - length))
        if length < before:
            del self.cache[length:]
        else:
            self.cache.extend(bytes(length - before))

    def map(self) -> bytearray:
        """Return a copy of the cache that follows its changes: what a map of the file shows."""
        image = bytearray(self.cache)
        self._maps.append(image)
        return image

    def unmap(self, image: bytearray) -> None:
        """Let such a copy go; `BufferError` while a view of it is held."""
        image.clear()
        self._maps = [one for one in self._maps if one is not image]

    def _touch(self, start: int, end: int) -> None:
        for sector in range(start // SECTOR, (end - 1) // SECTOR + 1):
            self._dropped.discard(sector)
            versions = self._unsynced.get(sector)
            if versions is None:
                self._unsynced[sector] = []
            elif len(versions) < _VERSIONS_MAX:
                versions.append(_sector(self.cache, sector))

    def sync(self) -> None:
        """Bring the length and the unsynced sectors to the disk, except the dropped ones."""
        del self._durable[self._shortest :]
        self._durable.extend(bytes(len(self.cache) - len(self._durable)))
        for sector in self._unsynced.keys() - self._dropped:
            start = sector * SECTOR
            piece = self.cache[start : start + SECTOR]
            self._durable[start : start + len(piece)] = piece
            del self._unsynced[sector]
        self._lengths.clear()
        self._shortest = len(self.cache)

    def fail_sync(self) -> None:
        """Forget, as a kernel does after a failed write-back, that the sectors need writing."""
        self._dropped |= self._unsynced.keys()

    def after_power_cut(self, luck: Luck) -> Content:
        """Draw the file as it may be found after a power cut."""
        base = self._durable if not luck.keeps() else self._durable[: self._shortest]
        length = self._surviving_length(luck)
        image = bytearray(base[:length])
        image.extend(bytes(length - len(image)))
        for sector, versions in self._unsynced.items():
            start = sector * SECTOR
            if start < length:
                piece = self._surviving_sector(sector, _sector(image, sector), versions, luck)
                image[start : start + SECTOR] = piece[: length - start]
        return self._image_of(image)

    def _surviving_length(self, luck: Luck) -> int:
        if luck.keeps():
            return len(self.cache)
        lengths = [len(self._durable), *self._lengths, len(self.cache)]
        if luck.rng.random() < 0.5:
            return luck.rng.choice(lengths)
        between = luck.rng.randint(min(lengths), max(lengths))
        return between if luck.rng.random() < 0.5 else max(min(lengths), between // BLOCK * BLOCK)

    def _surviving_sector(
        self, sector: int, old: bytes, versions: list[bytes], luck: Luck
    ) -> bytes:
        new = _sector(self.cache, sector)
        if not luck.tears():
            return new if luck.keeps() else luck.rng.choice([old, *versions])
        first, second = luck.rng.sample([old, *versions, new], 2)
        cut = luck.rng.randrange(1, SECTOR)
        return first[:cut] + second[cut:]

    def _image_of(self, image: bytearray) -> Content:
        survivor = Content(image, self.modified_ms)
        survivor.blocks &= self.blocks
        return survivor

    def after_kill(self) -> Content:
        """The file as the next process finds it: the cache is there, and just as unsynced."""
        survivor = Content(self.cache, self.modified_ms)
        survivor.blocks = set(self.blocks)
        survivor._durable = bytearray(self._durable)
        survivor._unsynced = {sector: list(old) for sector, old in self._unsynced.items()}
        survivor._dropped = set(self._dropped)
        survivor._lengths = list(self._lengths)
        survivor._shortest = self._shortest
        return survivor


def _blocks(length: int) -> int:
    return -(-length // BLOCK)


def _sector(image: bytearray, sector: int) -> bytes:
    return bytes(image[sector * SECTOR : (sector + 1) * SECTOR]).ljust(SECTOR, b"\0")
