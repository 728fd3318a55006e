"""What a machine may refuse, brought about for a while in this process, without the rights of an administrator."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION = 0x20080522  # of the structures of capset(2): two words for each set
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2


@contextmanager
def capacity(num_bytes: int) -> Iterator[None]:
    """While the block lasts, no file gets longer than ``num_bytes``: writing fails as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def no_privileges() -> Iterator[None]:
    """While the block lasts, the permissions of files hold for the administrator, too."""
    if os.geteuid():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, words = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, words):
        raise OSError(ctypes.get_errno(), "capget")
    kept = list(words)
    words[0] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)  # what is in effect; what is permitted stays
    if libc.capset(header, words):
        raise OSError(ctypes.get_errno(), "capset")
    try:
        yield
    finally:
        words[:] = kept
        if libc.capset(header, words):
            raise OSError(ctypes.get_errno(), "capset")
