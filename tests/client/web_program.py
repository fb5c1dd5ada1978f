"""A web application with Flask, Django or neither: forked workers, a thread for each request.

Arguments: the name server, the number of workers, the framework. The program prints its port, and
ends when its input ends.

The client is open and used by threads when the workers are forked, as in a preloaded app.
"""

from __future__ import annotations

import os
import signal
import socketserver
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from tests.client.web_frameworks import FRAMEWORKS

from cometmq.client import ClientError, SyncClient

if TYPE_CHECKING:
    from collections.abc import Callable

mq = SyncClient(sys.argv[1])
parents = mq.consume("orders", group="billing", start="first")


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """A WSGI server with a thread for each request."""

    daemon_threads = True
    request_queue_size = 128


class Handler(WSGIRequestHandler):
    """A request handler that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # Its base's name.
        """Log nothing."""


def answer(path: str) -> tuple[int, str]:
    """Answer a request with the verb that its path names."""
    name, _, argument = path.partition("/")
    try:
        return 200, VERBS[name](argument)
    except ClientError as error:
        return 500, f"{type(error).__name__}: {error}"


def send(body: str) -> str:
    """Send, and return the worker's process id and the message's id."""
    return f"{os.getpid()} {mq.send('orders', body.encode(), timeout=20).id}"


def fork(body: str) -> str:
    """Send from a child process that this thread forks."""
    child = os.fork()
    if not child:
        status = 1
        try:
            mq.send("orders", body.encode(), timeout=20)
            status = 0
        finally:
            os._exit(status)
    return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def take_as_the_parent(_: str) -> str:
    """Consume with a consumer that was made before the fork."""
    return next(parents).body.decode()


def take(group: str) -> str:
    """Consume one message with a consumer of this worker's."""
    with mq.consume("orders", group=group, start="first") as consumer:
        message = next(consumer)
        message.ack()
    return message.body.decode()


VERBS: dict[str, Callable[[str], str]] = {
    "send": send,
    "fork": fork,
    "take-as-the-parent": take_as_the_parent,
    "take": take,
}


def keep_sending() -> None:
    """Keep using the client while it is open."""
    with suppress(ClientError):
        while True:
            mq.send("noise", b"x", timeout=20)


def main() -> None:
    """Serve until the input ends."""
    mq.send("noise", b"first")
    for _ in range(4):
        threading.Thread(target=keep_sending, daemon=True).start()
    server = Server(("127.0.0.1", 0), Handler)
    server.set_app(FRAMEWORKS[sys.argv[3]](answer))
    workers: list[int] = []
    for _ in range(int(sys.argv[2])):
        worker = os.fork()
        if not worker:
            server.serve_forever()
        workers.append(worker)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
        os.waitpid(worker, 0)
    mq.close()


if __name__ == "__main__":
    main()
