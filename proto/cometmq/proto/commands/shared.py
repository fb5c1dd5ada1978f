"""Header fields that any request may carry beside its own.

They are read from the same command as the request's own class, when somebody asks for them: five
fields repeated in each class would cost every request what few of them use::

    request = command.read(GetMaxOffset)
    broker_name = read_shared(command, RpcFields).broker_name

A sender gives them as the command's `extras`: `Command.request(code, GetMaxOffset("T", 0),
extras=to_texts(RpcFields(broker_name="broker-a")))`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.proto.header import I32, Header, from_texts, wire

if TYPE_CHECKING:
    from cometmq.proto.command import Command
    from cometmq.proto.header import H


class RpcFields(Header):
    """Where a request is meant to go and in which namespace its names are."""

    namespace: str | None = wire("ns", default=None)
    namespaced: bool | None = wire("nsd", default=None)  # The names already hold the namespace.
    # Clients of 5.x name the broker in each request about a queue. Nobody checks it, but a broker
    # that acts for another one must look.
    broker_name: str | None = wire("bname", default=None)
    oneway: bool | None = wire("oway", default=None)  # A proxy's mark; the flag bit is what counts.
    # Static topics: false says that the queue id is the physical one.
    logical: bool | None = wire("lo", default=None)
    request_type: I32 | None = wire("ReqT", default=None)  # 0 is "stream"; nobody branches on it.


class Credentials(Header):
    """Who asks: the signature is over all other field values, in the order of their names."""

    access_key: str = wire("AccessKey")
    signature: str = wire("Signature")
    security_token: str | None = wire("SecurityToken", default=None)


def read_shared(command: Command, cls: type[H]) -> H:
    """Read the shared fields of a command, in any codec.

    `Command.read` would not do: a MessagePack header has the request's own class in an array
    without names, and the shared fields by name beside it.
    """
    return from_texts(cls, command.ext_fields)
