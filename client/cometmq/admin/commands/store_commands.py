"""All of `cometmq store`: the group with its commands."""

from __future__ import annotations

from cometmq.admin.commands.store import stat, store
from cometmq.admin.commands.store_dump import dump
from cometmq.admin.commands.store_rebuild import rebuild
from cometmq.admin.commands.store_repair import repair
from cometmq.admin.commands.store_verify import verify

__all__ = ["store"]

for command in (stat, verify, dump, rebuild, repair):
    store.add_command(command)
