"""The prediction of the token at each [MASK] in a text with a pretrained model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.pretrained import Frame, Query, in_batches, masked_predictor, open_pretrained, pack_queries
from lmtransfer.objectives.base import Objective
from lmtransfer.runs.saved import SavedRun
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.hardware import Hardware

MASK: Final = "[MASK]"
#: Private use characters, which no vocabulary contains.
_STAND_INS = [chr(0xE000 + place) for place in range(8)]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A predicted piece for a mask.

    Attributes:
        piece: the piece as in the vocabulary, including any mark for the start of a word.
        text: the text of the piece.
        probability: its probability over the whole vocabulary.
    """

    piece: str
    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class FilledMask:
    """The predictions for one [MASK].

    Attributes:
        start: index of its first character in the text.
        end: index after its last character.
        candidates: the candidates, most probable first.
    """

    start: int
    end: int
    candidates: tuple[Candidate, ...]


class MaskFiller:
    """Fills masks independently: the predictions for a mask do not depend on those for other masks.

    Special tokens are not candidates. They keep their share of the probability, which is nearly 0 in a trained model
    because special tokens are never targets.

    Args:
        predictor: an objective that predicts masked tokens; see ``masked_predictor``.
        tokenizer: the tokenizer of the run.
        frame: the special tokens around a text.
        top_k: number of candidates for each mask.
        batch_tokens: maximum number of tokens in a batch (a longer text is a batch by itself).
        device: device of the encoder.
        autocast: returns the context of a forward pass; the softmax is always in float32.

    Raises:
        ConfigError: ``top_k`` is not between 1 and the number of pieces.
    """

    def __init__(
        self,
        *,
        predictor: Objective,
        tokenizer: Tokenizer,
        frame: Frame,
        top_k: int = 5,
        batch_tokens: int = 8192,
        device: torch.device | str = "cpu",
        autocast: Callable[[], AbstractContextManager] = nullcontext,
    ) -> None:
        assert predictor.predicts == "masked", "of masked_predictor"
        num_pieces = int((~tokenizer.is_special).sum())
        if not 1 <= top_k <= num_pieces:
            raise ConfigError(f"top_k={top_k}: must be between 1 and {num_pieces}, the number of pieces")
        self.predictor, self.tokenizer, self.frame, self.top_k = predictor, tokenizer, frame, top_k
        self.batch_tokens, self.device, self.autocast = batch_tokens, device, autocast
        self._allowed_V = torch.from_numpy(~tokenizer.is_special).to(device)

    @torch.inference_mode()
    def fill(self, texts: Sequence[str]) -> list[list[FilledMask]]:
        """Predict the masks of each text, in order; the encoder must be in evaluation mode."""
        queries = ((self._query(text), owner) for owner, text in enumerate(texts))
        masks: list[list[FilledMask]] = [[] for _ in texts]
        for batch in in_batches(queries, batch_tokens=self.batch_tokens):
            packed, places = pack_queries([query for query, _ in batch])
            with self.autocast():
                (softmax,) = self.predictor.predict(packed.to(self.device), places, mask_id=self.tokenizer.mask_id)
            logs_MK, ids_MK = softmax.best(self.top_k, self._allowed_V)
            rows = iter(zip(logs_MK.exp().tolist(), ids_MK.tolist(), strict=True))
            for _, owner in batch:
                for start in _find_masks(texts[owner]):
                    candidates = map(self._candidate, *next(rows))
                    masks[owner].append(FilledMask(start, start + len(MASK), tuple(candidates)))
        return masks

    def _candidate(self, probability: float, token_id: int) -> Candidate:
        return Candidate(self.tokenizer.piece(token_id), self.tokenizer.decode([token_id]), probability)

    def _query(self, text: str) -> Query:
        ids = encode_with_masks(text, self.tokenizer)
        places = np.flatnonzero(ids == self.tokenizer.mask_id) + 1
        if not len(places):
            raise DataError(f"{text[:60]!r}: the text has no {MASK}; write {MASK} where a token is to be predicted")
        return Query(self.frame.around(ids, text=text), places, np.zeros(0, dtype=np.int64))


def mask_filler(saved_run: SavedRun, top_k: int, hardware: Hardware) -> MaskFiller:
    """Build a mask filler from a pretraining run.

    Args:
        top_k: number of candidates for each mask.
    """
    pretrained = open_pretrained(saved_run, hardware=hardware)
    return MaskFiller(
        predictor=masked_predictor(pretrained.learner),
        tokenizer=saved_run.tokenizer,
        frame=pretrained.frame,
        top_k=top_k,
        device=hardware.device,
        autocast=hardware.precision.autocast,
    )


def masks_as_json(text: str, masks: Sequence[FilledMask]) -> dict[str, Any]:
    """Convert a text and the predictions for its masks to a JSON object.

    ``{"text": ..., "masks": [{"start", "end", "candidates": [{"piece", "text", "probability"}, ...]}, ...]}``: for
    each [MASK] its character span in the text, and the candidates, most probable first.
    """
    return {"text": text, "masks": [_as_json(mask) for mask in masks]}


def encode_with_masks(text: str, tokenizer: Tokenizer) -> np.ndarray:
    """Encode a text with the mask id for each ``[MASK]``; return the ids, int64, shape (n,).

    Tokenizers never encode text as a special token, so the parts between the masks are encoded separately. Text that
    directly follows a mask continues its word (``[MASK].``, ``[MASK]ly``) and gets no mark for the start of a word.
    """
    first, *rest = text.split(MASK)
    parts = [tokenizer.encode(first.rstrip()).ids]
    for part in rest:
        encode = _encode_continuation if part and not part[0].isspace() else _encode_start
        parts += [np.array([tokenizer.mask_id]), encode(part, tokenizer)]
    return np.concatenate(parts).astype(np.int64)


def _encode_start(part: str, tokenizer: Tokenizer) -> np.ndarray:
    text = part.strip()
    return tokenizer.encode(" " + text if text else "").ids


def _encode_continuation(part: str, tokenizer: Tokenizer) -> np.ndarray:
    """Encode a text that continues a word: encode it after a stand-in character, whose ids are then removed."""
    after = np.zeros(0, dtype=np.int64)
    for stand_in in _STAND_INS:
        encoding = tokenizer.encode(stand_in + part.rstrip())
        stand_in_places = np.flatnonzero(encoding.offsets[:, 0] == 0)
        last = int(stand_in_places[-1]) if len(stand_in_places) else -1
        after = encoding.ids[last + 1 :]
        if last == -1 or encoding.offsets[last, 1] <= 1:
            return after
    # One [UNK] covers the stand-in and the unknown characters after it.
    return np.append(tokenizer.unk_id, after)


def _as_json(mask: FilledMask) -> dict[str, Any]:
    candidates = [
        {"piece": candidate.piece, "text": candidate.text, "probability": candidate.probability}
        for candidate in mask.candidates
    ]
    return {"start": mask.start, "end": mask.end, "candidates": candidates}


def _find_masks(text: str) -> list[int]:
    return [match.start() for match in re.finditer(re.escape(MASK), text)]
