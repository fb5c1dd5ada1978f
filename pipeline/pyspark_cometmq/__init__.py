"""Lets Spark find `format("cometmq")` by itself: it looks for packages named like this one.

Spark imports all of them at its first look for a format, so there is nothing else here. A session
of `cometmq.pipeline.session` registers the format itself, with more switched on.
"""

from __future__ import annotations

from cometmq.pipeline.source import CometMQSource


class DefaultSource(CometMQSource):
    """`format("cometmq")`."""
