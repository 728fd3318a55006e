"""The allowed values of a setting, by its name: names follow rules (``num_*`` counts, ``*_dim`` widths, ...).

Checked before anything is read or built, so that a mistake is reported at once and not by an error deep in the code.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmtransfer.config.values import BROKEN

#: Largest whole number that fits into 64 bits.
LARGEST = 2**63 - 1
_MOST = 1 << 24
_FOLDERS = ("output_root", "data_root", "cache_dir")
_LONGEST_NAME = 200  # file systems allow 255 bytes, and temporary names are longer


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number.

    Attributes:
        least: the smallest allowed value.
        most: the largest allowed value.
        open_below: whether ``least`` itself is too small.
        open_above: whether ``most`` itself is too large.
    """

    least: float
    most: float = math.inf
    open_below: bool = False
    open_above: bool = False

    def holds(self, value: float) -> bool:
        """Whether a value is allowed."""
        above = value > self.least if self.open_below else value >= self.least
        return above and (value < self.most if self.open_above else value <= self.most)

    def __str__(self) -> str:
        lower = f"greater than {self.least:g}" if self.open_below else f"{self.least:,g} or more"
        if math.isinf(self.most):
            return lower
        return f"{lower}, and {f'less than {self.most:g}' if self.open_above else f'{int(self.most):,} or less'}"


_COUNT = Range(1, _MOST)
_SHARE = Range(0, 1)
_POSITIVE = Range(0, open_below=True)
_PART = Range(0, 1, open_below=True)
_KEPT = Range(0, 1, open_above=True)

#: Ranges by name pattern; the first match counts.
RANGES: Mapping[str, Range] = {
    "num": _COUNT,
    "num_workers": Range(0, 4096),
    "num_held_out": Range(0, LARGEST),
    "num_train": _POSITIVE,
    "num_layers": Range(1, 4096),
    "num_heads": Range(1, 4096),
    "num_highway": Range(0, 4096),
    "dim": _COUNT,
    "*_dim": _COUNT,
    "vocab_size": _COUNT,
    "max_length": _COUNT,
    "dropout": _KEPT,
    "*_dropout": _KEPT,
    "mask_prob": _PART,
    "*_prob": _SHARE,
    "ema_decay": Range(0, 1, open_below=True, open_above=True),
    "average_last": _PART,
    "*_fraction": _SHARE,
    "label_smoothing": _KEPT,
    "learning_rate": _POSITIVE,
    "*_learning_rate": _POSITIVE,
    "learning_rates": _POSITIVE,
    "weight_decay": Range(0),
    "*_weight_decay": Range(0),
    "margin": _POSITIVE,
    "min_jaccard": _PART,
    "min_overlap": _PART,
    "shingle_words": Range(1, 1000),
    "ngram_words": Range(1, 1000),
    "betas": _KEPT,
    "*_betas": _KEPT,
    "momentum": _KEPT,
    "eps": _POSITIVE,
    "*_eps": _POSITIVE,
    "weight": Range(0),
    "*_weight": Range(0),
    "batch_tokens": Range(1, 1 << 31),
    "micro_batch_tokens": Range(1, 1 << 31),
    "batch_examples": _COUNT,
    "*_tokens": Range(1, LARGEST),
    "steps": Range(1, LARGEST),
    "tokens": Range(1, LARGEST),
    "warmup_steps": Range(0, LARGEST),
    "seed": Range(0, LARGEST),
    "epochs": Range(0, 10**9, open_below=True),
    "seconds": Range(0, 10**9, open_below=True),
    "top_k": Range(1, 100_000),
    "group": Range(1, 1_000_000),
    "seeds": Range(1, 100_000),
    "*_seeds": Range(1, 100_000),
    "dev_from_train": Range(0, 1, open_below=True, open_above=True),
    "folds": Range(2, _MOST),
    "threads": Range(1, 4096),
    "jobs": Range(1, 4096),
    "num_segments": Range(1, 4096),
    "memory_length": Range(0, _MOST),
    "memory_lengths": Range(0, _MOST),
    "segment_length": _COUNT,
    "clamp_length": Range(0, _MOST),
    "lora_rank": _COUNT,
    "lora_alpha": _POSITIVE,
}


def range_of(name: str) -> Range | None:
    """The range of a number, by the name of its setting; None if the name has none, such as that of a text."""
    return next((found for pattern, found in RANGES.items() if fnmatch.fnmatchcase(name, pattern)), None)


def out_of_range(name: str, value: Any) -> str | None:
    """The problem of a setting's value, in words that follow its key; None if the value is valid.

    Args:
        name: name of the setting, without the key of its node.
        value: plain data; each number of a list is checked.
    """
    if isinstance(value, list | tuple):
        return next((problem for item in value if (problem := out_of_range(name, item))), None)
    if name == "name" and isinstance(value, str):
        return _unusable_name(value)
    if name in _FOLDERS and value == "":
        return "is empty: give a folder"
    if value is BROKEN or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"{str(value)[:30]} does not fit into 64 bits"
    if not math.isfinite(value):
        return f"{value} is not a finite number"
    allowed = range_of(name)
    if allowed is None or allowed.holds(value):
        return None
    return f"{value} is out of range: it must be {allowed}"


def _unusable_name(value: str) -> str | None:
    """Why a text cannot be the name of a folder; None if it can."""
    longest = max(len(part.encode("utf-8", "surrogatepass")) for part in value.split("/"))
    if longest > _LONGEST_NAME:
        return f"{value[:20]}... is a name of {longest} bytes; at most {_LONGEST_NAME} are allowed (between slashes)"
    if any(ord(character) < 32 for character in value):
        return f"{value[:60]!r} contains a control character, which is not allowed in a name"
    if any(part.strip() in ("", ".", "..") for part in value.split("/")):
        return f"{value[:60]!r} is not a valid name of a run: use letters, digits, '-', '_', and '/' for folders"
    return None
