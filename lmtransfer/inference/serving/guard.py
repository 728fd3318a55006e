"""The guard in front of the app, which rejects foreign, large or slow requests and sets the headers of all responses.

It uses ASGI, the interface of Python's asynchronous web servers, and knows nothing about the app behind it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from lmtransfer.errors import ConfigError

_HIGHEST_PORT = 65535
_LOWEST_USER_PORT = 1024


@dataclass(frozen=True, slots=True)
class Address:
    """An address on this machine.

    Attributes:
        port: the port; 0 for any free port.
        is_local: whether only programs on this machine can reach it.
    """

    host: str
    ip: str
    port: int
    is_local: bool

    def accepts_host(self, header: str) -> bool:
        """Whether a request with this ``Host`` header comes from a page at this address.

        Another site can point its own name to this machine's address (DNS rebinding); the header then has the site's
        name. For a remote address any IP address is accepted, because a machine may have several.
        """
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        ip = _parse_ip(name)
        if ip is not None:
            return not self.is_local or ip.is_loopback
        return name == "localhost" or (not self.is_local and name in (self.host.lower(), socket.gethostname().lower()))


def resolve_address(host: str, port: int, *, allow_remote: bool) -> Address:
    """Check the address to listen on."""
    if not 0 <= port <= _HIGHEST_PORT:
        raise ConfigError(f"port={port} must be between 1 and {_HIGHEST_PORT}, or 0 for any free port")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ConfigError(
            f"host={host}: this address does not exist; remove host= to serve this machine only"
        ) from None
    ip = str(addresses[0][4][0])
    parsed_ip = _parse_ip(ip)
    is_local = parsed_ip is not None and parsed_ip.is_loopback
    if not is_local and not allow_remote:
        raise ConfigError(
            f"host={host}: other machines could reach this address, and the page has no password and no encryption; "
            "set allow_remote=true to allow this, or remove host="
        )
    return Address(host=host, ip=ip, port=port, is_local=is_local)


def listen(address: Address) -> socket.socket:
    """Open a socket that listens on an address."""
    family = socket.AF_INET6 if ":" in address.ip else socket.AF_INET
    try:
        return socket.create_server((address.ip, address.port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            other_port = address.port + 1 if address.port < _HIGHEST_PORT else address.port - 1
            raise ConfigError(
                f"port={address.port}: another program uses this port; choose another one, such as port={other_port}, "
                "or port=0 for any free port"
            ) from None
        if error.errno == errno.EACCES:
            raise ConfigError(
                f"port={address.port}: only an administrator may use this port; choose {_LOWEST_USER_PORT} or above"
            ) from None
        raise ConfigError(
            f"host={address.host}: this machine cannot listen on {address.ip} ({error.strerror or error}); remove "
            "host= to serve this machine only"
        ) from None


def _parse_ip(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

#: Builds the body of a refusal and its content type from the path, the status and a sentence.
Refusal = Callable[[str, int, str], tuple[bytes, str]]

#: Headers that determine whether a request is accepted; a request may have at most one of each.
_ONCE = (b"host", b"origin")
#: Up to this size, a body that is too large is still read: a browser shows no response until it has sent everything.
_LARGEST_READ = 64 << 20


class ClientDisconnect(Exception):
    """The client has closed the connection."""


class Guard:
    """An ASGI app that wraps another app and rejects requests.

    The response to a rejected request is a status and a sentence. Reasons for a rejection are two ``Host`` or
    ``Origin`` headers (400), a ``Host`` header of another machine (421), a form from another site (403), a body of more
    than ``max_bytes`` (413), and a body that does not arrive within ``max_seconds`` (408). The app is cancelled if the
    client disconnects.

    Args:
        app: the wrapped app, which receives the whole body at once.
    """

    def __init__(
        self, app: App, *, address: Address, max_bytes: int, max_seconds: float, policy: str, refusal: Refusal
    ) -> None:
        self._app, self._address = app, address
        self._max_bytes, self._max_seconds = max_bytes, max_seconds
        self._refusal = refusal
        self._headers = [
            (b"content-security-policy", policy.encode("ascii")),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-store"),
        ]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        names = [name.lower() for name, _ in scope["headers"]]
        repeated = next((name.decode() for name in _ONCE if names.count(name) > 1), None)
        if repeated is not None:
            await self._refuse(scope, send, 400, f"a request may have only one {repeated} header")
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._address.accepts_host(host):
            await self._refuse(scope, send, 421, f"this page is not served as {host[:100]!r}")
            return
        if origin is not None and origin.partition("://")[2] != host:
            await self._refuse(scope, send, 403, "this page accepts no requests from other sites")
            return
        try:
            body = await asyncio.wait_for(self._body(receive), self._max_seconds)
        except TimeoutError:
            await self._refuse(scope, send, 408, f"the request did not arrive within {self._max_seconds:g} seconds")
            return
        except ClientDisconnect:
            return
        if body is None:
            limit = f"a request may have at most {self._max_bytes:,} bytes (max_bytes)"
            await self._refuse(scope, send, 413, f"the text is too long: {limit}; go back and shorten it")
            return
        await self._answer(scope, body, receive, self._with_headers(send))

    async def _answer(self, scope: Message, body: bytes, receive: Receive, send: Send) -> None:
        """Run the app until it has answered or the client has disconnected."""
        disconnection = asyncio.ensure_future(receive())  # after the body, a client can only disconnect
        answer = asyncio.ensure_future(self._app(scope, _receive_once(body, disconnection), send))
        try:
            await asyncio.wait((answer, disconnection), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnection.cancel()
            if not answer.done():
                answer.cancel()
        with suppress(asyncio.CancelledError):
            await answer

    async def _body(self, receive: Receive) -> bytes | None:
        """Receive the whole body; None if it is too large.

        Raises:
            ClientDisconnect: the client has disconnected.
        """
        parts: list[bytes] = []
        size = 0
        while size <= _LARGEST_READ:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientDisconnect
            part = message.get("body", b"")
            size += len(part)
            if size <= self._max_bytes:
                parts.append(part)
            if not message.get("more_body", False):
                break
        return b"".join(parts) if size <= self._max_bytes else None

    async def _refuse(self, scope: Message, send: Send, status: int, message: str) -> None:
        body, content_type = self._refusal(scope["path"], status, message)
        headers = [(b"content-type", content_type.encode("ascii")), (b"content-length", str(len(body)).encode("ascii"))]
        send = self._with_headers(send)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _with_headers(self, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *self._headers]}
            await send(message)

        return send_with_headers


def _receive_once(body: bytes, disconnection: asyncio.Future[Message]) -> Receive:
    """Build a ``receive`` that returns the body, then the client's disconnection."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> Message:
        return messages.pop() if messages else await asyncio.shield(disconnection)

    return receive_body
