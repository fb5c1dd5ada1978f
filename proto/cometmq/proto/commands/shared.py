"""Header fields that any request may carry beside its own.

They are read from the same command as the request's own class, when somebody asks for them: five
fields repeated in each class would cost every request what few of them use.
"""

from __future__ import annotations

from cometmq.proto.header import I32, Header, wire


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
