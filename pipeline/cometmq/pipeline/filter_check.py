"""Whether brokers understand a filter, before tasks are planned that would each be refused.

They are asked as clients of Apache's ask before they consume. A pull does not tell: Apache's broker
answers one whose SQL92 cannot be read with all messages.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.fetching import GROUP

if TYPE_CHECKING:
    from collections.abc import Set

    from cometmq.pipeline.cluster import Cluster, Queue, Survey
    from cometmq.pipeline.options import ReadOptions

_CHECK_CLIENT_CONFIG: Final = 46
_REFUSALS: Final = frozenset({1, 23})
"""Of filters: 1 of a kind that a broker of Apache's has turned off, 23 of what cannot be read."""


def require_filter(
    cluster: Cluster, options: ReadOptions, found: Survey, understood: Set[str] = frozenset()
) -> frozenset[str]:
    """Refuse a filter that a broker refuses: each is asked. All of them can compare tags.

    Return those that understand it; of which that is known already is not asked. One that does not
    answer says nothing of it.
    """
    expression, kind = options.expression
    option = "sqlFilter" if options.sql_filter else "tags" if options.tags else "filter"
    if kind == "TAG":
        if expression != "*" and not options.wanted_tags:
            raise OptionError(f"{option}: {expression!r} names no tag, such as 'paid || refused'")
        return frozenset()
    asked: dict[str, Queue] = {queue.broker: queue for queue in found.queues}
    heard: set[str] = set()
    for broker in sorted(asked.keys() - understood):
        subscription = {
            "classFilterMode": False,
            "codeSet": list[int](),
            "expressionType": kind,
            "subString": expression,
            "subVersion": 0,
            "tagsSet": list[str](),
            "topic": asked[broker].topic,
        }
        said = {"clientId": "cometmq-spark", "group": GROUP, "subscriptionData": subscription}
        body = json.dumps(said).encode()
        try:
            answer = cluster.ask_with(found.addresses[broker], _CHECK_CLIENT_CONFIG, body)
        except PipelineError:
            continue
        if answer.code in _REFUSALS:
            why = answer.remark.partition("\n")[0]  # Apache's says all that it would understand.
            raise OptionError(f"{option}: {expression!r} is refused by broker {broker}: {why}")
        heard.add(broker)
    return frozenset(understood | heard)
