"""Hydra's launchers: they run the points of a sweep one after the other, beside each other, or on a cluster."""

from __future__ import annotations

from lmtransfer.config.nearest import hint

#: Launcher -> the package that has it. Hydra itself has "basic" only.
PACKAGES = {
    "joblib": "hydra-joblib-launcher",
    "ray": "hydra-ray-launcher",
    "ray_aws": "hydra-ray-launcher",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
}

#: Those that run all points on this machine.
ON_THIS_MACHINE = ("basic", "joblib", "submitit_local")


def not_found(launcher: str) -> str:
    """The message for a launcher that Hydra does not find: which package to install, or the nearest name."""
    package = PACKAGES.get(launcher)
    if package is None:
        known = hint(launcher, ["basic", *PACKAGES], what="launchers")
        return f"hydra/launcher={launcher}: there is no such launcher; {known}"
    return f"hydra/launcher={launcher}: the package {package} is not installed: pip install {package}"


def unknown_setting(key: str) -> str:
    """The message for a setting, such as ``hydra.launcher.n_jobs``, that the chosen launcher does not have."""
    return f"{key}: the launcher has no such key; choose the launcher that has it, such as hydra/launcher=joblib"
