"""The server process: it answers until Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from importlib import import_module
from typing import Any

from lmtransfer.errors import ConfigError
from lmtransfer.inference.serving.guard import App
from lmtransfer.system.optional import import_optional

_PATIENCE = 3  # seconds for running requests to finish
_HEADER_SECONDS = 10  # maximum time for a connection to send the headers of its next request
_MOST_CONNECTIONS = 500  # below the usual limit of 1,024 open files


def serve(app: App, listening: socket.socket, *, on_start: Callable[[], None]) -> None:
    """Answer requests until a signal ends this process.

    Args:
        on_start: called when the server is ready for requests.

    Raises:
        ConfigError: the extra ``serve`` is not installed.
    """
    uvicorn = import_optional("uvicorn", work="serve", error=ConfigError)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # errors become answers, and texts are not logged
    config = uvicorn.Config(
        app,
        http=_protocol(),
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_PATIENCE,
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn stops on a signal and then raises it again
        on_start()
        uvicorn.Server(config).run(sockets=[listening])


def _protocol() -> type[Any]:
    """Return uvicorn's HTTP/1.1 protocol with a time limit on headers, which it lacks."""
    base: Any = import_module("uvicorn.protocols.http.h11_impl").H11Protocol

    class Protocol(base):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._close_unless_asked()

        def on_response_complete(self) -> None:
            self._close_unless_asked()
            super().on_response_complete()

        def _close_unless_asked(self) -> None:
            """Close the connection if no new request has begun in time; each request has its own cycle."""
            answered = self.cycle
            self.loop.call_later(
                _HEADER_SECONDS, lambda: self.timeout_keep_alive_handler() if self.cycle is answered else None
            )

    return Protocol
