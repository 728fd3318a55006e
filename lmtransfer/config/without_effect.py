"""Settings that do not change what a model learns: the name of a run, its place and its speed."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

#: Patterns of dotted keys.
WITHOUT_EFFECT = (
    "name",
    "resume",
    "control",
    "baseline",
    "keep_weights",
    "data_root",
    "output_root",
    "cache_dir",
    "hardware.device",
    "hardware.threads",
    "hardware.compile",
    "hardware.activation_checkpointing",
    "tracker",
    "tracker.*",
    "train.save_every",
    "train.save_at",
    "train.log_every",
    "train.num_workers",
)


def is_without_effect(key: str, *, also: Sequence[str] = ()) -> bool:
    """Whether a dotted key matches one of ``WITHOUT_EFFECT`` or of the patterns ``also``."""
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in (*WITHOUT_EFFECT, *also))
