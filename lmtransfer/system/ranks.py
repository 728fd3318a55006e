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
    """Return this process's rank among all processes, from 0."""
    return _number("RANK", 0)


def local_rank() -> int:
    """Return this process's rank on its machine, from 0."""
    return _number("LOCAL_RANK", 0)


def local_world_size() -> int:
    """Return the number of processes started together on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1)


def are_many() -> bool:
    """Whether several processes were started together; False if the environment is invalid."""
    try:
        return world_size() > 1
    except ConfigError:
        return False


def is_first() -> bool:
    """Whether this is rank 0, which prints for all ranks."""
    try:
        return rank() == 0
    except ConfigError:
        return True


def check() -> None:
    """Check the environment variables."""
    world_size(), rank(), local_rank(), local_world_size()
    missing = [name for name in _RENDEZVOUS if not os.environ.get(name)]
    if are_many() and missing:
        raise ConfigError(
            f"the environment sets WORLD_SIZE={world_size()}, but not {', '.join(missing)}: start the command with "
            "torchrun, or unset WORLD_SIZE"
        )


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
