"""Sweeps (``-m``): whether a run is a point in a sweep, the name of its run directory, and Hydra's launchers."""

from __future__ import annotations

import re
import zlib

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from lmtransfer.config.nearest import hint

_LONGEST = 120


def in_sweep() -> bool:
    """Whether this run is a point in a sweep; finished points are skipped, and started points are resumed."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def sweep_name(name: str) -> str:
    """Return the name of this run: ``name`` itself, or in a sweep ``name/<the swept keys and their values>``.

    Returns:
        For example ``imdb/objective.mask_prob=0.15``. Points of a sweep always have different names.
    """
    if not in_sweep():
        return name
    suffix = point_suffix(HydraConfig.get().job.override_dirname)
    return f"{name}/{suffix}" if suffix else name


def point_suffix(overrides: str) -> str:
    """Turn the overrides of a point into a short enough file name without spaces and slashes.

    A changed text gets a digest, so that different overrides have different names.
    """
    unquoted = overrides.replace("'", "")
    clean = re.sub(r"[^\w.,=+@-]+", "-", unquoted)[:_LONGEST]
    return clean if clean == unquoted else f"{clean}-{zlib.crc32(overrides.encode()):08x}"


#: The package of each launcher. Hydra itself has only "basic".
PACKAGES = {
    "joblib": "hydra-joblib-launcher",
    "ray": "hydra-ray-launcher",
    "ray_aws": "hydra-ray-launcher",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
}

#: The launchers that run all points on this machine.
ON_THIS_MACHINE = ("basic", "joblib", "submitit_local")


def explain_missing_launcher(launcher: str) -> str:
    """Return the message for an unknown launcher: which package to install, or the nearest name."""
    package = PACKAGES.get(launcher)
    if package is None:
        known = hint(launcher, ["basic", *PACKAGES], what="launchers")
        return f"hydra/launcher={launcher}: there is no such launcher; {known}"
    return f"hydra/launcher={launcher}: the package {package} is not installed: pip install {package}"


def explain_unknown_setting(key: str) -> str:
    """Return the message for a setting, such as ``hydra.launcher.n_jobs``, that the chosen launcher does not have."""
    return f"{key}: the launcher has no such key; choose a launcher that has it, such as hydra/launcher=joblib"
