"""Apache's stores, which have no list of the queues' ends, with damage in files of queues."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.store.apache_stores import batch_topics, config, unpack
from tests.store.damaged_stores import contents

from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.errors import LostQueuesError, StoreFormatError
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending.rebuilding import Rebuilt, rebuild
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.consume_queue import ENTRY, ENTRY_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_MS = 1_795_256_000_000
ORIGIN = Origin(NOW_MS, NOW_MS, b"\x7f\0\0\x01\0\0\x2a\x9f")
STORES = ("clean", "killed")
MESSAGES = 71
QUEUE = "consumequeue/S_mix/0"
"""Its 71 messages are before the part of the log that a start reads."""


def opened(name: str, root: Path) -> MessageStore:
    batches = batch_topics(root)
    return MessageStore.open(
        str(root),
        config(name),
        now_ms=NOW_MS,
        is_batch_topic=lambda topic: topic in batches,
        threads=False,
    )


def make_again(name: str, root: Path) -> None:
    for _ in rebuild(inspect(RealFileSystem(), str(root), config(name)), Rebuilt(), now_ms=NOW_MS):
        pass


def next_offset(store: MessageStore) -> int:
    return store.put("S_mix", 0, b"next", b"", ORIGIN).queue_offset


def flip(position: int) -> Callable[[bytearray], None]:
    """Damage one byte of an entry's size."""

    def damage(data: bytearray) -> None:
        data[position] ^= 0x80

    return damage


def zero(start: int, end: int) -> Callable[[bytearray], None]:
    def damage(data: bytearray) -> None:
        data[start:end] = bytes(end - start)

    return damage


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize(
    "damage", [flip(8), flip(10), flip(30), flip(69 * 20 + 10), zero(0, 512), zero(0, 69 * 20)]
)
def test_a_queue_with_entries_of_its_own_behind_a_damaged_one_is_refused(
    name: str, damage: Callable[[bytearray], None], tmp_path: Path
) -> None:
    """Otherwise it would end at the damage, and its next message get an offset given out before."""
    root = unpack(name, tmp_path)
    path = root / QUEUE / f"{0:020d}"
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    before = contents(RealFileSystem(), str(root))
    lost = rf"the last entries of S_mix/0 \({MESSAGES} messages\) are lost"
    with pytest.raises(LostQueuesError, match=lost):
        opened(name, root)
    assert contents(RealFileSystem(), str(root)) == before
    make_again(name, root)
    store = opened(name, root)
    assert next_offset(store) == MESSAGES
    assert store.close(NOW_MS)


@pytest.mark.parametrize("name", STORES)
def test_what_leads_to_no_record_of_the_queue_is_no_entry_of_its_own(
    name: str, tmp_path: Path
) -> None:
    root = unpack(name, tmp_path)
    path = root / QUEUE / f"{0:020d}"
    data = bytearray(path.read_bytes())
    physical_offset, size, _ = ENTRY.unpack_from(data, (MESSAGES - 1) * ENTRY_SIZE)
    ENTRY.pack_into(data, (MESSAGES + 1) * ENTRY_SIZE, physical_offset + 1, size, 0)
    path.write_bytes(data)
    store = opened(name, root)
    assert next_offset(store) == MESSAGES
    assert store.close(NOW_MS)


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_has_the_place_of_a_file_of_a_queue_hides_no_offset(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    """The queue must not pass for an empty one, nor the start fail after it has written."""
    root = unpack(name, tmp_path)
    path = root / QUEUE / f"{0:020d}"
    aside = path.rename(tmp_path / "aside")
    make(path)
    said = rf"{re.escape(str(path))}: a .* in place of a file of a ConsumeQueue; .*elsewhere"
    if name == "clean":
        with pytest.raises(StoreFormatError, match=said):
            opened(name, root)
    else:
        store = opened(name, root)
        with pytest.raises(StoreFormatError, match=said):
            next_offset(store)
        with pytest.raises(StoreFormatError, match=said):
            store.read("S_mix", 0, 0, 32)
        assert store.put("S_mix", 1, b"other", b"", ORIGIN).queue_offset == 47
        store.commit()
        store.close(NOW_MS)
    path.rmdir() if path.is_dir() else path.unlink()
    aside.rename(path)
    store = opened(name, root)
    assert next_offset(store) == MESSAGES
    assert store.close(NOW_MS)


@pytest.mark.parametrize("taken", ["S_prio/0", "S_prio"], ids=["queue", "topic"])
def test_a_file_in_the_place_of_a_folder_is_refused_before_the_start_writes(
    taken: str, tmp_path: Path
) -> None:
    """Otherwise it would fail to make the file of a queue whose entries it has read back."""
    root = unpack("killed", tmp_path)
    folder = root / "consumequeue" / taken
    aside = folder.rename(tmp_path / "aside")
    folder.write_text("notes")
    before = contents(RealFileSystem(), str(root))
    with pytest.raises(StoreFormatError, match="S_prio/0: a file is in place of this folder"):
        opened("killed", root)
    assert contents(RealFileSystem(), str(root)) == before
    folder.unlink()
    aside.rename(folder)
    assert opened("killed", root).close(NOW_MS)
