"""Packages that only some of lmtransfer's work needs: installed by an extra, asked for where they are used."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from lmtransfer.errors import LmtransferError

#: Import name -> the extra of pyproject.toml that installs it.
EXTRAS = {
    "h5py": "elmo",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "tensorboard": "tensorboard",
    "transformers": "transformers",
    "zstandard": "zstd",
}


def missing(package: str) -> str | None:
    """What to say where an optional package, one of ``EXTRAS``, is not installed; None where it is."""
    if find_spec(package) is not None:
        return None
    return f"the package {package} is not installed: pip install 'lmtransfer[{EXTRAS[package]}]'"


def optional(package: str, *, work: str, error: type[LmtransferError]) -> ModuleType:
    """Import an optional package.

    Args:
        package: its import name, one of ``EXTRAS``.
        work: what needs it, the beginning of the message: a file, or ``ONNX export``.
        error: the kind of error to raise; takes one message.

    Raises:
        LmtransferError: of the kind ``error``: it is not installed.
    """
    message = missing(package)
    if message is not None:
        raise error(f"{work}: {message}")
    return import_module(package)
