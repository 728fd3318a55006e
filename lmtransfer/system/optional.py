"""Packages that only some features need: installed as an extra, and imported where they are used."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from lmtransfer.errors import LmtransferError

#: Import name -> extra of pyproject.toml that installs it.
EXTRAS = {
    "datasketch": "duplicates",
    "fastapi": "serve",
    "h5py": "elmo",
    "mlflow": "mlflow",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "peft": "peft",
    "sentence_transformers": "sentence-transformers",
    "submitit": "cluster",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "transformers": "transformers",
    "uvicorn": "serve",
    "wandb": "wandb",
    "zstandard": "zstd",
}


def missing(package: str) -> str | None:
    """Return the message if an optional package in ``EXTRAS`` is not installed; None if it is installed."""
    if find_spec(package) is not None:
        return None
    return f"the package {package} is not installed: pip install 'lmtransfer[{EXTRAS[package]}]'"


def optional(package: str, *, work: str, error: type[LmtransferError]) -> ModuleType:
    """Import an optional package.

    Args:
        package: the import name, one of ``EXTRAS``.
        work: what needs the package, to begin the message: a file, or ``ONNX export``.
        error: class of the error to raise; takes one message.

    Raises:
        LmtransferError: of the class ``error``: the package is not installed.
    """
    message = missing(package)
    if message is not None:
        raise error(f"{work}: {message}")
    return import_module(package)
