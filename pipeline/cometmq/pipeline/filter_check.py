"""Whether brokers understand a filter, before tasks are planned that would each be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.fetching import PULL_MESSAGE, pull_fields

if TYPE_CHECKING:
    from cometmq.pipeline.bounds import Survey
    from cometmq.pipeline.cluster import Cluster, Queue
    from cometmq.pipeline.options import ReadOptions

_REFUSALS: Final = frozenset({1, 23})
"""Of filters: 1 of a kind that a broker of Apache's has turned off, 23 of what cannot be read."""


def require_filter(cluster: Cluster, options: ReadOptions, found: Survey) -> None:
    """Refuse a filter that a broker refuses: each is asked behind the end of one of its queues.

    One that does not answer says nothing of it.
    """
    expression, kind = options.expression
    if (expression, kind) == ("*", "TAG"):
        return
    asked: dict[str, Queue] = {queue.broker: queue for queue in found.queues}
    for broker, queue in sorted(asked.items()):
        fields = pull_fields(queue, found.queues[queue].end, 1, expression, kind)
        try:
            answer = cluster.ask(found.addresses[broker], PULL_MESSAGE, fields)
        except PipelineError:
            continue
        if answer.code in _REFUSALS:
            option = "sqlFilter" if options.sql_filter else "tags" if options.tags else "filter"
            raise OptionError(
                f"{option}: {expression!r} is refused by broker {broker}: {answer.remark}"
            )
