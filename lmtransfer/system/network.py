"""What in the environment keeps a library from connecting: a proxy or certificates that it names."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

_PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def proxies(scheme: str = "") -> list[str]:
    """Return the environment variables that name a proxy, with an address that begins with ``scheme``."""
    names = [spelling for name in _PROXIES for spelling in (name, name.lower())]
    return [name for name in names if os.environ.get(name) and os.environ[name].lower().startswith(scheme)]


def connection_problem(error: BaseException) -> str | None:
    """Explain an error that an environment variable has caused; None for other errors.

    The message names the variable but not a proxy's address, which may contain a password.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    if any(isinstance(cause, ImportError) and "socks" in str(cause).lower() for cause in chain):
        names = " and ".join(proxies("socks")) or "the environment"
        return (
            f"{names} gives the address of a SOCKS proxy, which needs another package: pip install "
            '"httpx[socks]", or unset the variable'
        )
    if any(isinstance(cause, ValueError) and "proxy" in str(cause).lower() for cause in chain) and proxies():
        return (
            f"{' and '.join(proxies())} must be the address of a proxy, such as http://host:port: correct or unset it"
        )
    is_missing = any(isinstance(cause, FileNotFoundError) and cause.filename is None for cause in chain)
    is_of_ssl = any(isinstance(cause, ssl.SSLError) or "CERTIFICATE_VERIFY_FAILED" in str(cause) for cause in chain)
    for name in _CERTIFICATES if is_missing or is_of_ssl else ():
        value = os.environ.get(name)
        if value and not Path(value).exists():
            return f"{name}={value} does not exist: correct or unset the variable"
        if value and is_of_ssl:
            return f"{name}={value} holds no certificate that fits ({chain[-1]}): correct or unset the variable"
    return None
