"""Trust in a run: whether the user produced it, and thus whether the data named in its ``config.yaml`` may be read.

A run may come from anyone, and its configuration may name a file on this machine or a data set on the hub. Only the
user may decide to read those. In a run that was produced here, the user has named them. Such a run has a seal, the file
``made_here``: a digest of its configuration with a key from the user's cache, which nobody else has. The run can be
moved and copied; the seal becomes invalid when the configuration changes. ``trust=true`` trusts any run in the same
way.

A run without a valid seal, including those of versions without seals, closes the door (see ``system.door``).
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmtransfer.config.sources import named_sources
from lmtransfer.errors import LmtransferError, RunDirectoryError
from lmtransfer.system import door, ranks
from lmtransfer.system.durable import write_text
from lmtransfer.system.machine import default_cache_dir, is_address
from lmtransfer.system.safe_files import read_bytes

OWN_MARK = "made_here"
_KEY = "made_here.key"
_CONFIG = "config.yaml"


def mark_as_own(run: Path) -> None:
    """Mark a run as produced by this user, after its configuration is written; only rank 0 writes."""
    if not ranks.is_first():
        return
    with suppress(OSError):  # without a writable cache there is no key, and so no seal
        write_text(run / OWN_MARK, _digest(run, _key(make=True)) + "\n")


def is_own(run: Path) -> bool:
    """Whether this user produced the run and its configuration has not changed since."""
    try:
        saved = read_bytes(run / OWN_MARK, error=RunDirectoryError, most=1024)
        return hmac.compare_digest(saved.strip(), _digest(run, _key(make=False)).encode())
    except (LmtransferError, OSError):
        return False


def _digest(run: Path, key: bytes) -> str:
    content = read_bytes(run / _CONFIG, error=RunDirectoryError)
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def _key(*, make: bool) -> bytes:
    path = default_cache_dir() / _KEY
    if make:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(secrets.token_hex(32).encode())
    if not os.access(path, os.R_OK):  # the cache belongs to another user, whose key nobody else has
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    key = read_bytes(path, error=RunDirectoryError, most=1024)
    if len(key) < 64:
        raise RunDirectoryError(f"{path} is not a valid key: delete this file")
    return key


def is_trusted(run: Path, *, trust: bool) -> bool:
    """Whether what a run's configuration names may be read; if not, close the door until the command ends.

    Args:
        trust: whether the user has set ``trust=true``, which also holds for the runs that the command opens later.
    """
    if trust:
        door.trust()
    if door.is_trusting() or trust or is_own(run):
        return True
    door.close(run)
    return False


def check_named(node: Any, key: str, run: Path, *, data_root: str | None) -> None:
    """Check that the components in a part of someone else's configuration name only what may be read.

    The name of a data set that replaces missing files is checked when it is requested.

    Args:
        key: the full key of the part, such as ``task``.
    """
    all_named = list(named_sources(node, key))
    for named in all_named:
        component = named.key.rpartition(".")[0]
        if "hub" in named.source.kinds and any(
            other.key.startswith(f"{component}.") and "hub" not in other.source.kinds for other in all_named
        ):
            continue
        if is_address(named.value) or "hub" in named.source.kinds:
            allowed = door.allows_request(named.value)
        else:
            paths = named.paths(data_root)
            allowed = door.allows(next((path for path in paths if path.exists()), paths[0]))
        if not allowed:
            raise refusal(named.key, named.value, run)


def refusal(key: str, value: str, run: Path) -> RunDirectoryError:
    """Return the error for a value in someone else's configuration that names what may not be read."""
    part = key.partition(".")[0]
    return RunDirectoryError(
        f"{run / _CONFIG}: {key} names {value[:200]!r}, which is neither in data_root nor named in this command, and "
        f"the run was not produced here, or was changed since. Set data_root, or set {part}=<name> and its files"
        f"{door.way_out()}"
    )
