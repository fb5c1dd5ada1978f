"""Store directories as tables: the files, without a broker.

::

    driver      files.py (which files) ─ splits.py (how far, which task what)
                places.py (what stands at single places)
    executor    scan.py (records, and damage between them) ─ records (columns)
                survey.py (the same counted, for an audit)
                queues.py, index.py (what the ConsumeQueues and the index hold)

What runs in executors imports the standard library, numpy and pyarrow, and nothing else.
"""
