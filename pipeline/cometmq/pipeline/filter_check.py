"""Checks that brokers understand a filter before tasks are planned that would all be refused.

Brokers are asked as Apache's clients ask before they consume. A pull would not tell: if Apache's
broker cannot parse its SQL92, it returns all messages.
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
"""Refusals of filters: 1 for a kind that Apache's broker has disabled, 23 for a syntax error."""


def require_filter(
    cluster: Cluster, options: ReadOptions, found: Survey, understood: Set[str] = frozenset()
) -> frozenset[str]:
    """Refuse a filter that any broker refuses. Tags need no check: every broker can compare them.

    Return the brokers that understand it; those already known to are not asked again. A broker that
    does not answer is left out.
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
            why = answer.remark.partition("\n")[0]  # Apache's goes on to list what it accepts.
            raise OptionError(f"{option}: {expression!r} was refused by broker {broker}: {why}")
        heard.add(broker)
    return frozenset(understood | heard)
