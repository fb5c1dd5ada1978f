"""A name server and a broker in a thread of this process, with a temporary store."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cometmq.admin.together import serve_both
from cometmq.broker.clock import Clock
from cometmq.broker.config import BrokerConfig
from cometmq.broker.settings import configured
from cometmq.client.errors import UsageError
from cometmq.nameserver import NameServerConfig
from cometmq.net import guest
from cometmq.store.config import Flush, StoreConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    import trio

    from cometmq.proto.host import Host

_MIB: Final = 1 << 20
_STORE: Final = StoreConfig(
    flush=Flush.ASYNC,
    segment_size=16 * _MIB,  # The largest message must fit.
    consume_queue_file_size=20 * 1024,
    batch_consume_queue_file_size=46 * 1024,
    index_slots=1024,
    index_items=4096,
)
_PATIENCE_SECONDS: Final = 30.0

NOT_RUNNING: Final = "the cluster is not running: use `with`, or `start`"
"""The error for a use of servers that are not running."""


class Servers:
    """Both servers from `start` to `stop`, on free ports of 127.0.0.1."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.clock = Clock()
        self._addresses: tuple[Host, Host] | None = None
        fixed = {"store_path", "listen_port", "nameservers"} & settings.keys()
        if fixed:
            raise UsageError(f"{', '.join(sorted(fixed))}: the fixture itself chooses this")
        self._config, _ = configured(BrokerConfig(listen_port=0, store=_STORE), settings)
        self._folder: tempfile.TemporaryDirectory[str]
        self._thread = threading.Thread(target=self._work, name="cometmq servers", daemon=True)
        self._ready: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop
        self._stop: trio.Event

    @property
    def nameserver(self) -> Host:
        """The address of the name server."""
        return self._known_addresses()[0]

    @property
    def broker(self) -> Host:
        """The address of the broker."""
        return self._known_addresses()[1]

    def start(self) -> None:
        """Start both; when this returns, they accept sends."""
        if self._thread.ident is not None:
            raise UsageError("a cluster can be started only once: make another one")
        self._folder = tempfile.TemporaryDirectory(prefix="cometmq-", ignore_cleanup_errors=True)
        self._thread.start()
        try:
            self._ready.result(_PATIENCE_SECONDS)
        except BaseException:
            self._folder.cleanup()
            raise

    def stop(self) -> None:
        """Stop both and remove the store; raise the error that ended them, if any.

        It does nothing if they were not started or are already stopped.
        """
        if not self._ready.done() or self._is_stopped:
            return
        self._is_stopped = True
        if not self._ended.done():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_PATIENCE_SECONDS)
        self._folder.cleanup()
        self._ended.result(_PATIENCE_SECONDS)

    def jump(self, ms: int) -> None:
        """Move the clock ahead on the servers' thread."""
        if not self._ready.done() or self._ended.done():
            raise UsageError(NOT_RUNNING)
        jumped: Future[None] = Future()

        def jump() -> None:
            self.clock.jump(ms)
            jumped.set_result(None)

        self._loop.call_soon_threadsafe(jump)
        jumped.result(_PATIENCE_SECONDS)

    def _known_addresses(self) -> tuple[Host, Host]:
        if self._addresses is None:
            raise UsageError(NOT_RUNNING)
        return self._addresses

    def _work(self) -> None:
        try:
            guest.run(self._serve, takes_signals=False)
        except BaseException as error:  # Whatever it is, the test must see it.
            (self._ended if self._ready.done() else self._ready).set_exception(error)
        if not self._ended.done():
            self._ended.set_result(None)

    async def _serve(self, stop: trio.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), stop
        folder = self._folder.name
        await serve_both(
            NameServerConfig(listen_port=0, kv_config_path=f"{folder}/kvConfig.json"),
            replace(self._config, store_path=f"{folder}/store"),
            stop=stop,
            ready=self._are_ready,
            clock=self.clock,
        )

    def _are_ready(self, nameserver: Host, broker: Host) -> None:
        self._addresses = nameserver, broker
        self._ready.set_result(None)
