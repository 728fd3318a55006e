"""Fill-mask: what a pretraining run would put at each [MASK]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from lmtransfer.pretraining.saved_objectives import open_objectives
from lmtransfer.runs.saved import SavedRun
from lmtransfer.training.hardware import Hardware
from lmtransfer.zero_shot.fill_mask import FilledMask, MaskFiller
from lmtransfer.zero_shot.predictors import masked_predictor


def fill_mask_lines(
    saved_run: SavedRun, texts: Iterable[str], top_k: int, hardware: Hardware, *, texts_at_a_time: int = 1
) -> Iterator[dict[str, Any]]:
    """One answer a text, in order, as soon as ``texts_at_a_time`` texts are there.

    ``{"text": ..., "masks": [{"start", "end", "candidates": [{"piece", "text", "probability"}, ...]}, ...]}``: the
    characters of each [MASK] in the text, and what may stand there, the most probable first.

    Args:
        saved_run: a run of pretraining.
        texts: with a [MASK] in each.
        top_k: candidates of each mask.
        hardware: where to compute.
        texts_at_a_time: how many are read before they are answered together.

    Raises:
        RunDirectoryError: the run was not pretrained.
        ConfigError: its objective cannot fill a mask, or ``top_k`` is out of range.
        DataError: a text without a [MASK], or a longer one than the encoder can read.
    """
    filler = mask_filler(saved_run, top_k, hardware)
    return (
        filled_line(text, masks)
        for group in _groups(texts, texts_at_a_time)
        for text, masks in zip(group, filler.fill(group), strict=True)
    )


def mask_filler(saved_run: SavedRun, top_k: int, hardware: Hardware) -> MaskFiller:
    """What fills the masks of several texts at once; see ``fill_mask_lines``."""
    objectives, tokenizer = open_objectives(saved_run, hardware=hardware), saved_run.tokenizer
    return MaskFiller(
        predictor=masked_predictor(objectives.learner, mask_id=tokenizer.mask_id),
        tokenizer=tokenizer,
        frame=objectives.frame,
        top_k=top_k,
        device=hardware.device,
        autocast=hardware.precision.autocast,
    )


def filled_line(text: str, masks: Sequence[FilledMask]) -> dict[str, Any]:
    """A text and what its masks may be, as plain values."""
    return {"text": text, "masks": [_plain(mask) for mask in masks]}


def _groups(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(texts)
    while group := list(islice(remaining, size)):
        yield group


def _plain(mask: FilledMask) -> dict[str, Any]:
    candidates = [
        {"piece": found.piece, "text": found.text, "probability": found.probability} for found in mask.candidates
    ]
    return {"start": mask.start, "end": mask.end, "candidates": candidates}
