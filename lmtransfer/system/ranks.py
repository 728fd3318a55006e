"""The rank of this process and the number of processes, from ``torchrun``'s environment.

Does not import torch.
"""

from __future__ import annotations

import os
import sys

from lmtransfer.errors import ConfigError

#: The environment variables with which processes find each other.
_RENDEZVOUS = ("RANK", "MASTER_ADDR", "MASTER_PORT")


def world_size() -> int:
    """Return the number of processes started together; 1 without ``torchrun``."""
    return _number("WORLD_SIZE", 1)


def rank() -> int:
    """Return this process's rank among all processes, from 0; 0 for a single process, even if RANK is set."""
    return _number("RANK", 0) if world_size() > 1 else 0


def local_rank() -> int:
    """Return this process's rank on its machine, from 0."""
    return _number("LOCAL_RANK", 0) if world_size() > 1 else 0


def local_world_size() -> int:
    """Return the number of processes started together on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1) if world_size() > 1 else 1


def are_many() -> bool:
    """Whether several processes were started together; False if the environment is invalid."""
    try:
        return world_size() > 1
    except ConfigError:
        return False


def is_first() -> bool:
    """Whether this is rank 0, which prints for all ranks; also True if there is no such rank."""
    try:
        return rank() == 0 or rank() >= world_size()
    except ConfigError:
        return True


def check() -> None:
    """Check the environment variables."""
    for name, default in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)):
        _number(name, default)
    if not are_many():
        return
    missing = [name for name in _RENDEZVOUS if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"the environment sets WORLD_SIZE={world_size()}, but not {', '.join(missing)}: start the command with "
            "torchrun, or unset WORLD_SIZE"
        )
    if rank() >= world_size():
        raise ConfigError(
            f"the environment sets RANK={rank()}, but WORLD_SIZE={world_size()}, and ranks start at 0: start the "
            "command with torchrun, or unset RANK and WORLD_SIZE"
        )
    meeting_place()


def meeting_place() -> tuple[str, int]:
    """Return the address and the port at which the processes meet, from MASTER_ADDR and MASTER_PORT."""
    port = _number("MASTER_PORT", 1)
    if port >= 1 << 16:
        raise ConfigError(f"the environment variable MASTER_PORT={port} must be below 65536; correct or unset it")
    return os.environ["MASTER_ADDR"], port


def end_process(code: int) -> None:
    """End a rank immediately, after flushing all output; without ``torchrun``, do nothing.

    In a normal exit, remaining threads of the process group sometimes abort the process, and ``torchrun`` reports a
    finished run as failed.
    """
    if are_many():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    if not value.isdecimal() or int(value) < default:
        raise ConfigError(
            f"the environment variable {name}={value} must be an integer of at least {default}; correct or unset it"
        )
    return int(value)
