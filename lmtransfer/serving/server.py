"""The server process: it answers until Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable

from lmtransfer.errors import ConfigError
from lmtransfer.serving.guard import App
from lmtransfer.system.optional import optional

_PATIENCE = 3  # seconds for running requests to end
_MOST_CONNECTIONS = 64


def serve(app: App, listening: socket.socket, *, on_start: Callable[[], None]) -> None:
    """Answer requests until a signal ends this process.

    Args:
        app: what answers.
        listening: the socket.
        on_start: called when the first request can come.

    Raises:
        ConfigError: the extra ``serve`` is not installed.
    """
    uvicorn = optional("uvicorn", work="serve", error=ConfigError)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # errors are answers, and texts are not logged
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_PATIENCE,
    )
    with contextlib.suppress(KeyboardInterrupt):  # it stops at a signal, and then raises it again
        on_start()
        uvicorn.Server(config).run(sockets=[listening])
