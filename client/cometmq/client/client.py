"""The async client: sends, pulls and consumes, on asyncio (uvloop too) and trio.

How it works. One client is one member of its groups and one set of connections, shared by all that
its methods do: requests of many tasks travel pipelined over one connection to each broker. What
goes on beside its caller (connecting, heartbeats, routes, consumers) is in tasks that it owns, from
`async with` to its end.
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

    `nameservers` are `host:port`, several joined by semicolons or in a list; without any,
    NAMESRV_ADDR of the environment is taken. A client belongs to the event loop that it was opened
    on, and any number of that loop's tasks may use it. Opening it connects to nothing yet.
    """
