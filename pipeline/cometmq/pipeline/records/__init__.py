"""Stored records, as they lie in a log and travel in pull answers, as Arrow columns.

::

    bytes ─ layout.py ─ rows.py ───────────────── batches.py ─ pyarrow.RecordBatch
            where each   which of them, unwrapped   a column at a time: slices.py, properties.py,
            part is      and decompressed: bodies.py  hosts.py

No Python object is made for a message, but for the rare one that needs care. It imports the
standard library, numpy and pyarrow, and nothing else: it goes to executors.
"""

from cometmq.pipeline.records.batches import layout_batches, record_batches
from cometmq.pipeline.records.rows import Reading

__all__ = ["Reading", "layout_batches", "record_batches"]
