"""Store directories as tables, read from the files without a broker.

::

    driver      files.py (which files) ─ splits.py (the log's end, what each task reads)
                places.py (records at single places)
    executor    scan.py (records, and damage between them) ─ records (columns)
                survey.py (the same counted, for an audit)
                queues.py, index.py (the contents of ConsumeQueues and index)

Code that runs in executors imports only the standard library, numpy and pyarrow.
"""
