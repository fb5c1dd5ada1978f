"""Lets Spark find `format("cometmq-store")` by itself, as `pyspark_cometmq` does for topics.

Spark takes one format from each package, so this is a second one.
"""

from __future__ import annotations

from cometmq.pipeline.store_source import StoreSource


class DefaultSource(StoreSource):
    """`format("cometmq-store")`."""
