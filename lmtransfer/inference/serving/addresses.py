"""The address to listen on, and the host names that browsers may use for it."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from lmtransfer.errors import ConfigError

_HIGHEST_PORT = 65535
_LOWEST_USER_PORT = 1024


@dataclass(frozen=True, slots=True)
class Address:
    """An address on this machine.

    Attributes:
        host: the host as the user gave it.
        ip: the IP address.
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

        Args:
            header: the value of the header, with or without a port.
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
    """Check the address to listen on.

    Raises:
        ConfigError: the port is out of range, the host is unknown, or it is not local and ``allow_remote`` is false.
    """
    if not 0 <= port <= _HIGHEST_PORT:
        raise ConfigError(f"port={port}: must be between 1 and {_HIGHEST_PORT}, or 0 for any free port")
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
    """Open a socket that listens on an address.

    Raises:
        ConfigError: the port is in use or needs more permissions, or the address is not one of this machine.
    """
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
