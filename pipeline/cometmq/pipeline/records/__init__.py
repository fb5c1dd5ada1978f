"""Stored records, as in a log and in pull answers, turned into Arrow columns.

::

    bytes ─ layout.py ─ rows.py ───────────────── batches.py ─ pyarrow.RecordBatch
            where each   which of them, unwrapped   a column at a time: slices.py, properties.py,
            part is      and decompressed: bodies.py  hosts.py

No Python object is made for a message, except for a rare one that needs special care. It runs in
executors, so it imports only the standard library, numpy and pyarrow.
"""

from cometmq.pipeline.records.batches import layout_batches, record_batches
from cometmq.pipeline.records.rows import Reading

__all__ = ["Reading", "layout_batches", "record_batches"]
