"""Asking a server over a blocking socket, with only the standard library.

How it works. The reader and the writer run inside Spark's Python workers. There, a background loop
would be one more thing to start and end, and nothing may be imported that a `--py-files` wheel
cannot contain. So this is the smallest possible client: a request is sent with a JSON header, and
an answer is read as a whole, with its body in one piece. Several requests may be in flight (`send`,
then `receive`); the server may answer them in any order.

::

    wire = connect("127.0.0.1:10911", Settings())
    answer = wire.ask(GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"})

A frame, as `cometmq.proto.frame` has it:

======  ====  ====================================================
offset  size  field
======  ====  ====================================================
     0     4  bytes that follow: 4 + size of header + size of body
     4     1  type of the header: 0 is JSON
     5     3  size of the header
     8     …  header, then body
======  ====  ====================================================
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import select
import socket
import ssl
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from cometmq.pipeline.errors import (
    NO_PERMISSION,
    BusyError,
    ConnectionLostError,
    OptionError,
    RefusedError,
    UntrustedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

R = TypeVar("R")

_HEAD: Final = Struct(">II")
assert _HEAD.size == 8
_HEADER_SIZE_MASK: Final = 0xFFFFFF
_RESPONSE: Final = 1
_VERSION: Final = 513
"""The version 5.5.0: clients that state it get routes in plain JSON."""
_READ_AHEAD: Final = 1 << 16
FRAME_SIZE_MAX: Final = 64 << 20
"""The maximum size of an answer in bytes."""

SUCCESS: Final = 0
"""The code of a successful answer."""
_BUSY: Final = frozenset({2, 14, 215})
"""Codes that say that the server is too busy, or cannot write, at the moment."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach servers, the same for all of them."""

    timeout: float = 30.0
    """Seconds without a byte after which a server counts as gone."""
    access_key: str = ""
    secret_key: str = ""
    tls: bool = False
    tls_ca: str = ""
    """A file with the trusted certificates; without it, servers are not verified."""

    def __post_init__(self) -> None:
        """Refuse half of a pair: requests would be anonymous, or not encrypted."""
        if bool(self.access_key) != bool(self.secret_key):
            there, missing = ("accessKey", "secretKey")[:: 1 if self.access_key else -1]
            raise OptionError(f"{missing}: is missing, but {there} is set; give both, or none")
        if self.tls_ca and not self.tls:
            raise OptionError("tlsCa: needs tls; without it nothing is encrypted")
        if self.tls_ca:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.tls_ca)
            except FileNotFoundError:
                raise OptionError(f"tlsCa: {self.tls_ca}: no such file") from None
            except OSError as error:
                raise OptionError(
                    f"tlsCa: {self.tls_ca}: no PEM certificates in it: {error}"
                ) from None

    def __repr__(self) -> str:
        return f"Settings(timeout={self.timeout}, access_key={self.access_key!r}, tls={self.tls})"


class Answer(NamedTuple):
    """What a server answered."""

    opaque: int
    code: int
    remark: str
    fields: Mapping[str, str]
    body: bytes

    def expect(self, address: str) -> Answer:
        """Return it if it is a success; otherwise raise its refusal."""
        if self.code != SUCCESS:
            raise self.refusal(address)
        return self

    def expect_all(self, address: str) -> Answer:
        """Do the same for an answer about many queues, and raise if it leaves out damaged ones.

        A remark says so. A part of the queues must not be taken for all of them.
        """
        if self.remark:
            raise self.refusal(address)
        return self.expect(address)

    def expect_known(self, address: str) -> None:
        """Raise its refusal if it rejects the credentials; ignore anything else."""
        if self.code == NO_PERMISSION:
            raise self.refusal(address)

    def refusal(self, address: str) -> RefusedError:
        """Return the error for an answer that says no."""
        kind = BusyError if self.code in _BUSY else RefusedError
        return kind(address, self.code, self.remark)


class Wire:
    """One connection, for one thread at a time, or one that sends and one that receives.

    `speaks_cometmq` says whether the server has CometMQ's extensions; it is known after the answer
    to the first request.
    """

    def __init__(self, address: str, settings: Settings) -> None:
        self.address = address
        self.speaks_cometmq = False
        self.is_known = False
        """Whether the first request has been answered."""
        self._settings = settings
        self._opaque = 0
        self._offer = -1
        """The number of the first request, which asks whether the server has the extensions."""
        context = _tls(settings) if settings.tls else None
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            plain = socket.create_connection((host, int(port)), settings.timeout)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError) as error:
            raise ConnectionLostError(f"no connection to {address}: {error}") from error
        try:
            self._socket = context.wrap_socket(plain, server_hostname=host) if context else plain
        except ssl.SSLCertVerificationError as error:  # A retry would not help.
            raise UntrustedError(
                f"the certificate of {address} is refused: {error.verify_message}; `tlsCa`, now"
                f" {settings.tls_ca}, must contain the certificate of its signer"
            ) from None
        except (OSError, ValueError) as error:
            raise ConnectionLostError(
                f"no TLS connection to {address}, which may not speak TLS: {error}"
            ) from error
        self._stream = self._socket.makefile("rb", _READ_AHEAD)

    def __repr__(self) -> str:
        return f"<Wire {self.address}>"

    def is_ended(self) -> bool:
        """Whether the server has closed the connection, as it does after minutes without use."""
        looking = select.poll()
        looking.register(self._socket, select.POLLIN)
        try:
            # Not TLS's own `recv`, which knows no flags.
            return bool(looking.poll(0)) and not socket.socket.recv(
                self._socket, 1, socket.MSG_PEEK
            )
        except OSError:
            return True

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self._stream.close()
        self._socket.close()

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> Answer:
        """Send a request and wait for the answer, whatever it says."""
        opaque = self.send(code, fields, body)
        while (answer := self.receive()).opaque != opaque:
            pass
        return answer

    def expect(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> Answer:
        """Do the same, but raise `RefusedError` if the server says no."""
        return self.ask(code, fields, body).expect(self.address)

    def send(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> int:
        """Send a request and return the number that its answer will have."""
        opaque = self.number()
        self.write(self.frame(code, fields, body, opaque))
        return opaque

    def number(self) -> int:
        """Return the next number for a request."""
        number = self._opaque
        self._opaque = number + 1 & 0x7FFFFFFF
        return number

    def frame(self, code: int, fields: Mapping[str, str], body: bytes, opaque: int) -> bytes:
        """Encode a request."""
        fields = dict(fields)
        if self._offer < 0:
            fields["cometmqHeaders"] = "2"
            self._offer = opaque
        if self._settings.access_key:
            fields["AccessKey"] = self._settings.access_key
            fields["Signature"] = _signature(fields, body, self._settings.secret_key)
        header = json.dumps(
            {
                "code": code,
                "extFields": fields,
                "flag": 0,
                "language": "PYTHON",
                "opaque": opaque,
                "serializeTypeCurrentRPC": "JSON",
                "version": _VERSION,
            },
            separators=(",", ":"),
        ).encode()
        return _HEAD.pack(4 + len(header) + len(body), len(header)) + header + body

    def write(self, data: bytes) -> None:
        """Write frames."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def receive(self) -> Answer:
        """Wait for the next answer; ignore requests of the server."""
        while True:
            size, kind = _HEAD.unpack(self._read(_HEAD.size))
            header_size = kind & _HEADER_SIZE_MASK
            body_size = size - 4 - header_size
            if body_size < 0 or size > FRAME_SIZE_MAX:
                raise ConnectionLostError(
                    f"{self.address}: a frame of {size} bytes is not an answer"
                )
            header = self._read(header_size)
            body = self._read(body_size) if body_size else b""
            if kind >> 24:  # MessagePack: a server's request, as answers use it only if we do.
                continue
            try:
                said = json.loads(header)
                if not said["flag"] & _RESPONSE:
                    continue
                answer = Answer(
                    said["opaque"],
                    said["code"],
                    said.get("remark") or "",
                    said.get("extFields") or {},
                    body,
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConnectionLostError(f"{self.address}: not an answer: {error}") from error
            if answer.opaque == self._offer:
                self.is_known = True
                self.speaks_cometmq = "cometmqHeaders" in answer.fields
            return answer

    def _read(self, size: int) -> bytes:
        try:
            data: bytes = self._stream.read(size)
        except (OSError, ValueError) as error:
            raise self._lost(error) from error
        if len(data) < size:
            raise self._lost("it closed the connection")
        return data

    def _lost(self, why: object) -> ConnectionLostError:
        return ConnectionLostError(f"the connection to {self.address} broke: {why}")


def _tls(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca or None)
    except OSError as error:  # The file existed where the settings were made.
        raise OptionError(
            f"tlsCa: {settings.tls_ca}: {error.strerror or error} on {socket.gethostname()};"
            " it must exist on each machine that reads or writes"
        ) from None
    if not settings.tls_ca:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _signature(fields: Mapping[str, str], body: bytes, secret: str) -> str:
    text = "".join(fields[name] for name in sorted(fields)).encode() + body
    return base64.b64encode(hmac.digest(secret.encode(), text, "sha1")).decode()


_kept: dict[tuple[int, str, Settings], Wire] = {}
"""Idle connections of this process; a child opens its own after a fork."""


def connect(address: str, settings: Settings) -> Wire:
    """Return a connection for exclusive use; give it back with `keep`."""
    kept = _kept.pop((os.getpid(), address, settings), None)
    if kept is not None:
        if not kept.is_ended():
            return kept
        kept.close()
    return Wire(address, settings)


def keep(wire: Wire, settings: Settings) -> None:
    """Leave a connection without outstanding answers to the next task of this process."""
    before = _kept.pop((os.getpid(), wire.address, settings), None)
    if before is not None:
        before.close()
    _kept[os.getpid(), wire.address, settings] = wire


def with_wire(address: str, settings: Settings, use: Callable[[Wire], R]) -> R:
    """Call `use` with a connection, and again with a new one if a kept connection was broken.

    The requests of `use` must be safe to repeat.
    """
    peer = connect(address, settings)
    is_kept = peer.is_known
    try:
        return _used(peer, settings, use)
    except ConnectionLostError:
        if not is_kept:  # Callers decide about retries, as each may take the whole timeout.
            raise
    return _used(connect(address, settings), settings, use)


def _used(peer: Wire, settings: Settings, use: Callable[[Wire], R]) -> R:
    try:
        result = use(peer)
    except BaseException:
        peer.close()
        raise
    keep(peer, settings)
    return result
