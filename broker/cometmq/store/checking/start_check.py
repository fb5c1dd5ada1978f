"""Whether the next start would refuse a store in which nothing else was found wrong."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from cometmq.store.disk.overlay import Overlay
from cometmq.store.errors import CorruptionError, StoreFilesError, StoreFormatError
from cometmq.store.looking.findings import Kind
from cometmq.store.starting.taking_stock import take_stock

if TYPE_CHECKING:
    from cometmq.store.looking.findings import Report
    from cometmq.store.looking.inspection import Inspected


def check_start(store: Inspected, report: Report) -> None:
    """Report why a start would refuse the store, if it would, by doing what a start does first.

    Each record and entry may be sound, and still the log may lack messages that need entries.
    """
    filesystem, root = Overlay(store.filesystem), store.root
    config = replace(store.config, index=False)  # The index was checked, if its shape is known.
    try:
        with ExitStack() as looked_at:
            take_stock(filesystem, root, config, says_batch=store.says_batch, looked_at=looked_at)
    except CorruptionError as error:
        report.find(Kind.REFUSED, error.path, error.position, error.problem)
    except StoreFormatError as error:
        report.find(Kind.REFUSED, error.path or root, 0, error.problem)
    except StoreFilesError as error:
        report.find(Kind.REFUSED, root, 0, str(error))
