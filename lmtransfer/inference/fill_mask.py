"""Predicts the token at each [MASK] of a text with a pretrained model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import torch

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.pretrained import Frame, Query, in_batches, masked_predictor, open_pretrained, pack_queries
from lmtransfer.objectives.base import Objective
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import check_not_nan

MASK: Final = "[MASK]"
#: Private-use characters, which no vocabulary contains.
_STAND_INS = [chr(0xE000 + offset) for offset in range(8)]


class MaskFiller:
    """Fills masks independently: the predictions for a mask do not depend on those for other masks.

    Special tokens are not candidates. They keep their share of the probability, which is nearly 0 in a trained model
    because special tokens are never targets.

    Args:
        batch_tokens: maximum number of tokens in a batch (a longer text is a batch by itself).
        autocast: returns the context of a forward pass; the softmax is always in float32.
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
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        assert predictor.predicts == "masked", "the predictor must come from masked_predictor"
        num_pieces = int((~tokenizer.is_special).sum())
        if not 1 <= top_k <= num_pieces:
            raise ConfigError(f"top_k={top_k} must be between 1 and {num_pieces}, the number of ordinary pieces")
        self.predictor, self.tokenizer, self.frame, self.top_k = predictor, tokenizer, frame, top_k
        self.batch_tokens, self.device, self.autocast = batch_tokens, device, autocast
        self._allowed_V = torch.from_numpy(~tokenizer.is_special).to(device)

    @torch.inference_mode()
    def fill(self, texts: Sequence[str]) -> list[list[dict[str, Any]]]:
        """Predict the masks of each text, in order; the encoder must be in evaluation mode.

        A mask is ``{"start", "end", "candidates": [{"piece", "text", "probability"}, ...]}``: its character span, and
        the candidates, most probable first.
        """
        queries = ((self._query(text), owner) for owner, text in enumerate(texts))
        masks: list[list[dict[str, Any]]] = [[] for _ in texts]
        for batch in in_batches(queries, batch_tokens=self.batch_tokens):
            packed, places = pack_queries([query for query, _ in batch])
            with self.autocast():
                (softmax,) = self.predictor.predict(packed.to(self.device), places, mask_id=self.tokenizer.mask_id)
            logs_MK, ids_MK = softmax.best(self.top_k, self._allowed_V)
            check_not_nan(logs_MK, what="the model's probabilities")
            rows = iter(zip(logs_MK.exp().tolist(), ids_MK.tolist(), strict=True))
            for _, owner in batch:
                for match in re.finditer(re.escape(MASK), texts[owner]):
                    candidates = list(map(self._candidate, *next(rows)))
                    masks[owner].append({"start": match.start(), "end": match.end(), "candidates": candidates})
        return masks

    def _candidate(self, probability: float, token: int) -> dict[str, Any]:
        return {
            "piece": self.tokenizer.piece(token),
            "text": self.tokenizer.decode([token]),
            "probability": probability,
        }

    def lines(self, examples: Sequence[TextExample]) -> list[dict[str, Any]]:
        """Return a JSON object for each example: ``id``, ``text`` and ``masks``."""
        filled = self.fill([example.text for example in examples])
        return [
            {"id": example.id, "text": example.text, "masks": masks}
            for example, masks in zip(examples, filled, strict=True)
        ]

    def _query(self, text: str) -> Query:
        ids = encode_with_masks(text, self.tokenizer)
        places = np.flatnonzero(ids == self.tokenizer.mask_id) + 1
        if not len(places):
            raise DataError(f"{text[:60]!r}: the text has no {MASK}; write {MASK} where a token is to be predicted")
        return Query(self.frame.around(ids, text=text), places, np.zeros(0, dtype=np.int64))


def open_mask_filler(saved_run: SavedRun, top_k: int, hardware: Hardware) -> MaskFiller:
    """Build a mask filler from a pretraining run."""
    pretrained = open_pretrained(saved_run, hardware=hardware)
    return MaskFiller(
        predictor=masked_predictor(pretrained.learner),
        tokenizer=saved_run.tokenizer,
        frame=pretrained.frame,
        top_k=top_k,
        device=hardware.device,
        autocast=hardware.precision.autocast,
    )


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
