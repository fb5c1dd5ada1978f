"""The packaged jobs: `cometmq pipeline JOB`, and each a function of a session and its settings.

::

    from cometmq.pipeline.jobs.archive import ArchiveSettings, archive

    settings = ArchiveSettings(nameserver="127.0.0.1:9876", topic="orders", to="/data/orders")
    report = archive(session(), settings)

`job.py` says what a job is; `JOBS` names those that there are by the modules that hold them, which
are imported when they are asked for. A module has a `JOB`.
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
"""Jobs by the modules that hold them."""
