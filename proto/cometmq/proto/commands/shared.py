"""Header fields that any request may carry besides its own.

They are read from the same command as the request's own class, and only when needed: repeated in
each class, they would cost every request something that few of them use::

    request = command.read(GetMaxOffset)
    broker_name = read_shared(command, RpcFields).broker_name

A sender passes them as the command's `extras`: `Command.request(code, GetMaxOffset("T", 0),
extras=to_texts(RpcFields(broker_name="broker-a")))`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.proto.header import I32, Header, from_texts, wire

if TYPE_CHECKING:
    from cometmq.proto.command import Command
    from cometmq.proto.header import H


class RpcFields(Header):
    """The intended broker of a request, and the namespace of its names."""

    namespace: str | None = wire("ns", default=None)
    namespaced: bool | None = wire("nsd", default=None)  # The names already have the namespace.
    # Clients of 5.x name the broker in each request about a queue. Nobody checks it, except that a
    # broker that acts for another one must.
    broker_name: str | None = wire("bname", default=None)
    oneway: bool | None = wire("oway", default=None)  # A proxy's mark; the flag bit is what counts.
    # Static topics: false says that the queue id is the physical one.
    logical: bool | None = wire("lo", default=None)
    request_type: I32 | None = wire("ReqT", default=None)  # 0 is "stream"; nobody branches on it.


class Credentials(Header):
    """The sender's credentials; the signature covers all other field values, ordered by name."""

    access_key: str = wire("AccessKey")
    signature: str = wire("Signature")
    security_token: str | None = wire("SecurityToken", default=None)


def read_shared(command: Command, cls: type[H]) -> H:
    """Read the shared fields of a command, in any codec.

    `Command.read` does not work for them: a MessagePack header has the fields of the request's own
    class in an array without names, and the shared fields by name beside it.
    """
    return from_texts(cls, command.ext_fields)
