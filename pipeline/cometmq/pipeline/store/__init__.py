"""Store directories as tables: the files, without a broker.

::

    driver      files.py (which files, how far) ─ splits.py (which task what)
    executor    scan.py (records, and damage between them) ─ records (columns)
                queues.py, index.py (what the ConsumeQueues and the index hold)

What runs in executors imports the standard library, numpy and pyarrow, and nothing else.
"""
