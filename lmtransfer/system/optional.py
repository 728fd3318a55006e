"""Optional packages, which only some features need: installed as extras, and imported where they are used."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from lmtransfer.errors import LmtransferError

#: The extra of pyproject.toml that installs each package, by import name.
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


def install_hint(package: str) -> str | None:
    """Return how to install an optional package in ``EXTRAS``; None if it is installed."""
    if find_spec(package) is not None:
        return None
    return f"the package {package} is not installed: pip install 'lmtransfer[{EXTRAS[package]}]'"


def import_optional(package: str, *, work: str, error: type[LmtransferError]) -> ModuleType:
    """Import an optional package in ``EXTRAS``; if it is missing, the error message begins with ``work``."""
    message = install_hint(package)
    if message is not None:
        raise error(f"{work}: {message}")
    return import_module(package)
