"""Settings that change nothing in what is learnt: what a run is called, where and how fast it is made."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

#: Patterns over dotted keys.
WITHOUT_EFFECT = (
    "name",
    "resume",
    "control",
    "data_root",
    "output_root",
    "cache_dir",
    "hardware.device",
    "hardware.threads",
    "hardware.compile",
    "tracker",
    "tracker.*",
    "train.save_every",
    "train.log_every",
    "train.num_workers",
)


def is_without_effect(key: str, *, also: Sequence[str] = ()) -> bool:
    """Whether a dotted key is one of those, or fits one of the patterns ``also``."""
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in (*WITHOUT_EFFECT, *also))
