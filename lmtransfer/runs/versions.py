"""The software versions and data with which a run was produced."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lmtransfer.training import process_group

_PACKAGES = (
    "lmtransfer",
    "torch",
    "numpy",
    "hydra-core",
    "omegaconf",
    "safetensors",
    "sentencepiece",
    "tokenizers",
    "datasets",
)


def versions(*, data: dict[str, str] | None = None, folder: Path | None = None) -> dict[str, Any]:
    """Return the versions of Python and the important packages, the machine and the git commit, as plain values."""
    return {
        "python": platform.python_version(),
        "packages": {name: _package(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "world_size": process_group.world_size(),
        "git_commit": _git_commit(folder or Path.cwd()),
        "data": data or {},
    }


def _package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _git_commit(folder: Path) -> str | None:
    """Return the commit checked out in ``folder``, with ``+changes`` if files differ; None outside a repository."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=10)
    return done.stdout.strip()
