"""The async client: sends, pulls and consumes, on asyncio (uvloop too) and trio.

How it works. A client is one member of each of its groups, and owns one set of connections, which
all its methods share: requests of many tasks are pipelined over one connection to each broker. Work
in the background (connecting, heartbeats, routes, consumers) runs in tasks that the client owns,
from `async with` to its end.
"""

from __future__ import annotations

from cometmq.client._consume_verb import ConsumeVerb
from cometmq.client._send_verbs import SendVerbs
from cometmq.client.request import RequestVerbs
from cometmq.client.transaction import TransactionVerbs


class Client(SendVerbs, RequestVerbs, ConsumeVerb, TransactionVerbs):
    """A client of a RocketMQ cluster, ours or Apache's.

    ::

        async with Client("127.0.0.1:9876") as mq:
            receipt = await mq.send("orders", b"...", key="o-17", tag="paid")
            async for message in mq.consume("orders", group="billing"):
                async with message:
                    print(message.body)

    `nameservers` is a list of `host:port`, or one string that joins them with semicolons; the
    default is the environment variable NAMESRV_ADDR. A client belongs to the event loop on which
    it was opened; any number of that loop's tasks may use it. Opening it makes no connection yet.
    """
