"""The packaged jobs: each is a command `cometmq pipeline JOB` and a function of a Spark session.

::

    from cometmq.pipeline.jobs.archive import ArchiveSettings, archive

    settings = ArchiveSettings(nameserver="127.0.0.1:9876", topic="orders", to="/data/orders")
    report = archive(session(), settings)

`job.py` says what a job is. `JOBS` lists all jobs and their modules, which are imported on demand;
each module has a `JOB`.
"""

from __future__ import annotations

from typing import Final

JOBS: Final = {
    "aggregate": "cometmq.pipeline.jobs.aggregate",
    "archive": "cometmq.pipeline.jobs.archive",
    "archive-compact": "cometmq.pipeline.jobs.archive_compact",
    "archive-vacuum": "cometmq.pipeline.jobs.archive_vacuum",
    "audit": "cometmq.pipeline.jobs.audit",
    "dlq": "cometmq.pipeline.jobs.dlq",
    "latency": "cometmq.pipeline.jobs.latency",
    "mirror": "cometmq.pipeline.jobs.mirror",
    "reconcile": "cometmq.pipeline.jobs.reconcile",
    "replay": "cometmq.pipeline.jobs.replay",
    "transform": "cometmq.pipeline.jobs.transform",
}
"""The jobs and their modules."""
