"""A cluster behind TLS that answers only signed requests, as a guarded Apache cluster does.

CometMQ's own servers support neither yet, so a front stands before each server of a test's cluster:
on another address of this machine, with the same port. The front also puts its own address into the
answers that name brokers, so a job that drops TLS or the signature on its way to one fails.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import shutil
import socket
import ssl
import subprocess
from contextlib import contextmanager, suppress
from selectors import EVENT_READ, DefaultSelector
from struct import Struct
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.pipeline.jobs.credentials import Credentials

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from cometmq.testing import Cluster

BEHIND, FRONT = "127.0.0.1", "127.0.0.2"
HEAD = Struct(">II")
NO_PERMISSION = 16
ACCESS_KEY = "etl"
_MAKING = (
    "req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 2 -subj /CN=front"
    " -addext subjectAltName=IP:"
)


def make_certificate(folder: Path, host: str = FRONT) -> Path:
    """Make a certificate for the fronts, or another host, with its key in the same file."""
    program = shutil.which("openssl")
    if program is None:
        if os.environ.get("CI"):
            raise AssertionError("openssl is missing")
        pytest.skip("openssl is missing")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [program, *f"{_MAKING}{host} -keyout {key} -out {certificate}".split()],
        check=True,
        capture_output=True,
    )
    certificate.write_text(certificate.read_text() + key.read_text())
    return certificate


class Front:
    """Accepts TLS connections, and passes on the requests that are signed."""

    def __init__(self, address: str, certificate: Path, secret: str) -> None:
        host, _, port = address.partition(":")
        assert host == BEHIND
        self._behind = (host, int(port))
        self._secret = secret
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listener = socket.create_server((FRONT, int(port)))
        self.address = f"{FRONT}:{port}"
        self.codes: list[int] = []
        """Codes of the requests that were passed on."""
        self.refused: list[int] = []
        self.denied: set[int] = set()
        """Codes of requests that are refused even when they are signed."""
        self._thread = Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # The listener is closed.
            while True:
                peer, _ = self._listener.accept()
                Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with suppress(OSError), plain:  # ssl's errors, too: of a client without TLS.
            peer = self._context.wrap_socket(plain, server_side=True)
            # Not `select`: the process of a long run of tests has many open files.
            with (
                peer,
                socket.create_connection(self._behind) as behind,
                DefaultSelector() as selector,
            ):
                selector.register(peer, EVENT_READ)
                selector.register(behind, EVENT_READ)
                self._pass_on(peer, behind, selector)

    def _pass_on(self, peer: ssl.SSLSocket, behind: socket.socket, both: DefaultSelector) -> None:
        asked = bytearray()
        while True:
            ready = [peer] if peer.pending() else [key.fileobj for key, _ in both.select()]
            if peer in ready:
                if not (data := peer.recv(1 << 16)):
                    return
                asked += data
                while len(asked) >= 4 and len(asked) >= (size := HEAD.unpack(asked[:8])[0] + 4):
                    if refusal := self._looked(bytes(asked[:size])):
                        peer.sendall(refusal)
                    else:
                        behind.sendall(asked[:size])
                    del asked[:size]
            if behind in ready:
                if not (data := behind.recv(1 << 16)):
                    return
                peer.sendall(data.replace(b'"%b:' % BEHIND.encode(), b'"%b:' % FRONT.encode()))

    def _looked(self, frame: bytes) -> bytes:
        """Return the refusal of a request that is denied or wrongly signed, or no bytes."""
        _, header_size = HEAD.unpack(frame[:8])
        header: dict[str, Any] = json.loads(frame[8 : 8 + header_size])
        fields: dict[str, str] = header["extFields"]
        signature = fields.pop("Signature", "")
        text = "".join(fields[name] for name in sorted(fields)).encode() + frame[8 + header_size :]
        wanted = base64.b64encode(hmac.digest(self._secret.encode(), text, "sha1")).decode()
        is_known = fields.get("AccessKey") == ACCESS_KEY and signature == wanted
        if is_known and header["code"] not in self.denied:
            self.codes.append(header["code"])
            return b""
        self.refused.append(header["code"])
        answer = {"code": NO_PERMISSION, "flag": 1, "opaque": header["opaque"], "remark": "no"}
        said = json.dumps(answer | {"version": 513, "language": "JAVA"}).encode()
        return HEAD.pack(4 + len(said), len(said)) + said


class Guarded:
    """The credentials that let jobs into a cluster, and the fronts that they go through."""

    def __init__(self, cluster: Cluster, certificate: Path, secret: str) -> None:
        self.cluster = cluster
        self.secret = secret
        self.credentials = Credentials(
            access_key=ACCESS_KEY, secret_key=secret, tls=True, tls_ca=str(certificate)
        )
        self.fronts = [
            Front(address, certificate, secret) for address in (cluster.nameserver, cluster.broker)
        ]
        self.nameserver = self.fronts[0].address

    @property
    def codes(self) -> list[int]:
        """Codes of the requests that were passed on."""
        return [code for front in self.fronts for code in front.codes]

    @property
    def refused(self) -> list[int]:
        """Codes of the requests that were refused: wrongly signed, or denied to all."""
        return [code for front in self.fronts for code in front.refused]

    def arguments(self, prefix: str = "") -> list[str]:
        """Return the options for a command line, except the secret."""
        return [
            f"--{prefix}nameserver={self.nameserver}",
            f"--{prefix}access-key={ACCESS_KEY}",
            f"--{prefix}tls",
            f"--{prefix}tls-ca={self.credentials.tls_ca}",
        ]


@contextmanager
def guarded(cluster: Cluster, certificate: Path, secret: str) -> Generator[Guarded]:
    """Put fronts before a cluster, and close them at the end."""
    found = Guarded(cluster, certificate, secret)
    try:
        yield found
    finally:
        for front in found.fronts:
            front.close()
