"""Where serve listens, and which names browsers may ask for."""

from __future__ import annotations

import socket

import pytest
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.inference.serving.addresses import address_of, listen

LOCAL = address_of("127.0.0.1", 0, allow_remote=False)
EVERYWHERE = address_of("0.0.0.0", 0, allow_remote=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_local_addresses_need_no_permission(host: str) -> None:
    assert address_of(host, 8000, allow_remote=False).is_local


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.7.7"])
def test_other_addresses_need_a_permission(host: str) -> None:
    with refuses(ConfigError, f"host={host}", "allow_remote=true"):
        address_of(host, 8000, allow_remote=False)
    assert not address_of(host, 8000, allow_remote=True).is_local


@pytest.mark.parametrize(
    ("header", "local", "remote"),
    [
        ("127.0.0.1:8000", True, True),
        ("127.0.0.1", True, True),
        ("localhost:8000", True, True),
        ("LOCALHOST", True, True),
        ("[::1]:8000", True, True),
        ("192.168.7.7:8000", False, True),
        (f"{socket.gethostname()}:8000", False, True),
        ("evil.example:8000", False, False),
        ("127.0.0.1.evil.example", False, False),
        ("localhost.evil.example", False, False),
        ("evil.example@127.0.0.1", True, True),  # a browser never sends this; the host is that after the @
        ("127.0.0.1@evil.example", False, False),
        ("", False, False),
        ("[", False, False),
        ("[::1", False, False),
    ],
)
def test_only_names_of_this_address_may_ask(header: str, local: bool, remote: bool) -> None:
    assert LOCAL.may_ask(header) is local
    assert EVERYWHERE.may_ask(header) is remote


def test_a_port_in_use_and_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen(LOCAL) as taken:
        port = taken.getsockname()[1]
        assert port > 0
        with refuses(ConfigError, f"port={port}", "port=0"):
            listen(address_of("127.0.0.1", port, allow_remote=False))
    listen(address_of("127.0.0.1", port, allow_remote=False)).close()


@pytest.mark.parametrize("port", [-1, 65536])
def test_ports_out_of_range(port: int) -> None:
    with refuses(ConfigError, f"port={port}", "65535"):
        address_of("127.0.0.1", port, allow_remote=False)


def test_addresses_of_other_machines() -> None:
    with refuses(ConfigError, "host=no..such"):
        address_of("no..such", 8000, allow_remote=True)
    with refuses(ConfigError, "host=203.0.113.7"):  # reserved for documentation
        listen(address_of("203.0.113.7", 0, allow_remote=True))
