"""Lets Spark find `format("cometmq")` by itself: it looks for packages with such names.

Spark imports all of them when it first looks for a format, so there is nothing else here. A session
of `cometmq.pipeline.session` registers the format itself, with more options enabled.
"""

from __future__ import annotations

from cometmq.pipeline.source import CometMQSource


class DefaultSource(CometMQSource):
    """`format("cometmq")`."""
