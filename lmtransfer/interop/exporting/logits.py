"""The comparison of the logits of two forms of one model, head by head.

Shape legend: T real tokens of a packed batch, B sequences, D width, n tokens in a text, K logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lmtransfer.data.batch import PackedBatch
from lmtransfer.interop.exporting.run import BareEncoder, ExportLearner
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import LabelTargets
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.text.example import TextExample, encode_texts
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.transfer.learner import TaskLearner

#: Number of texts in a batch. The logits of all texts at once would need too much memory, as vocabularies are large.
TEXTS_AT_ONCE = 8

#: A single text (its second part is None), or a pair of texts.
TextInput = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class TextLogits:
    """Token ids and logits of some texts.

    Attributes:
        logits: for each head one float32 array per text: (n, K) if the head reads tokens, (1, K) if it reads the text.
    """

    ids: list[np.ndarray]  #: token ids of each text with its special tokens, int64, (n,)
    logits: dict[str, list[np.ndarray]]


class LogitModel(Protocol):
    """A model in any form, with its tokenizer."""

    def __call__(self, texts: Sequence[TextInput]) -> TextLogits:
        """Compute the ids and logits of texts, which are either all single texts or all pairs."""
        ...


class OurModel(LogitModel):
    """A model of this package, on packed batches."""

    def __init__(self, learner: ExportLearner, tokenizer: Tokenizer, *, max_length: int | None = None) -> None:
        self._learner, self._tokenizer = learner, tokenizer
        self.max_length = max_length or learner.encoder.max_length

    @property
    def cancellation(self) -> dict[str, float]:
        """For each head the largest sum of magnitudes that cancel in a logit."""
        return {"task": self._learner.head.cancellation} if isinstance(self._learner, TaskLearner) else {}

    def encode(self, texts: Sequence[TextInput]) -> EncodedExamples:
        """Encode the texts as our tasks do, with [CLS] and [SEP]."""
        examples = [TextExample(id=str(i), text=text, text_pair=pair) for i, (text, pair) in enumerate(texts)]
        return encode_texts(
            examples,
            LabelTargets(np.zeros(len(examples), dtype=np.int64)),
            self._tokenizer,
            max_length=self.max_length,
            num_segments=self._learner.encoder.num_segments,
        )

    @torch.no_grad()
    @override
    def __call__(self, texts: Sequence[TextInput]) -> TextLogits:
        encoded = self.encode(texts)
        source = TaskSource(encoded)
        batch = source.build(0, source.plan(0), range(len(encoded)))
        lengths = [int(n) for n in encoded.lengths]
        if isinstance(self._learner, TaskLearner):
            packed_logits = {"task": self._learner.logits(batch)}
        else:
            packed_logits = _pretrained_logits(self._learner, batch.packed)
        logits = {name: _split(values, lengths) for name, values in packed_logits.items()}
        return TextLogits(np.split(encoded.tokens_T.astype(np.int64), encoded.offsets[1:-1]), logits)


def _pretrained_logits(learner: PretrainingLearner | BareEncoder, packed: PackedBatch) -> dict[str, Tensor]:
    """Compute the last layer, and the logits of each objective that can predict from uncorrupted text."""
    encoder, num_tokens = learner.encoder, packed.num_tokens
    hidden_TD = encoder(packed).last[:num_tokens]
    outputs = {"hidden": hidden_TD}
    if encoder.pooler is not None:
        outputs["pooled"] = encoder.pooler(hidden_TD[packed.starts_B])
    for objective in learner.objective_list() if isinstance(learner, PretrainingLearner) else ():
        head_logits = {objective.name: objective.token_logits(hidden_TD)}
        if "pooled" in outputs and head_logits[objective.name] is None:
            head_logits[objective.name] = objective.text_logits(outputs["pooled"])
        for name, inner in objective.inner().items():
            head_logits[name] = inner.token_logits(inner.encoder(packed).last[:num_tokens])
        outputs |= {name: logits for name, logits in head_logits.items() if logits is not None}
    return outputs


def _split(values: Tensor, lengths: Sequence[int]) -> list[np.ndarray]:
    """Split values into one array per text, with one row per token, or a single row if there is one row per text."""
    sizes = lengths if len(values) == sum(lengths) else [1] * len(lengths)
    return [part.float().numpy() for part in values.view(len(values), -1).split(list(sizes))]


@dataclass(slots=True)
class LogitComparison:
    """The differences between two forms of a model.

    Attributes:
        largest: for each head, the largest magnitude of a logit, or of a sum of magnitudes that cancel in a logit.
        rounding: for each head, the largest rounding error of one of the forms in float32, if it was measured.
    """

    num_texts: int = 0
    differences: dict[str, float] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    rounding: dict[str, float] = field(default_factory=dict)
    differing_text: str | None = None  #: the first text whose token ids differ, or None

    def tolerance(self, head: str) -> float:
        """Compute the largest difference of a head's logits that float32 rounding explains.

        This is 1e-5 times the largest logit, or 1e-5 if all logits are below 1. Some models amplify rounding errors;
        where the rounding error of one form was measured, twice the error is added, because both forms round.
        """
        return 1e-5 * max(1.0, self.largest[head]) + 2 * self.rounding.get(head, 0.0)

    @property
    def differing_heads(self) -> list[str]:
        """The heads whose logits differ by more than rounding explains."""
        return [head for head, difference in self.differences.items() if not difference <= self.tolerance(head)]

    def add(self, head: str, first: np.ndarray, second: np.ndarray) -> None:
        """Compare a head's logits for one text, (n, K) each, in the columns that both arrays have."""
        columns = min(first.shape[1], second.shape[1])
        differences = np.abs(first[:, :columns].astype(np.float64) - second[:, :columns])
        largest = float(np.nan_to_num(differences, nan=np.inf).max(initial=0.0))
        self.differences[head] = max(self.differences.get(head, 0.0), largest)
        self.largest[head] = max(self.largest.get(head, 0.0), float(np.abs(first).max(initial=0.0)))


def compare(ours: LogitModel, theirs: LogitModel, texts: Sequence[TextInput]) -> LogitComparison:
    """Compare the logits of two models on the same texts.

    Only heads that both models have are compared. If one head has more columns (a row of the vocabulary that was
    added for padding), only the columns that both have are compared.
    """
    result = LogitComparison(largest=ours.cancellation if isinstance(ours, OurModel) else {})
    for batch in _batches(texts):
        local, remote = ours(batch), theirs(batch)
        for (text, _), first, second in zip(batch, local.ids, remote.ids, strict=True):
            if not np.array_equal(first, second):
                result.differing_text = text
                return result
        for head in sorted(local.logits.keys() & remote.logits.keys()):
            for first, second in zip(local.logits[head], remote.logits[head], strict=True):
                result.add(head, first, second)
        result.num_texts += len(batch)
    return result


def _batches(texts: Sequence[TextInput]) -> Iterator[Sequence[TextInput]]:
    """Yield batches of a few texts; single texts and pairs are not mixed."""
    for group in ([text for text in texts if text[1] is None], [text for text in texts if text[1] is not None]):
        for start in range(0, len(group), TEXTS_AT_ONCE):
            yield group[start : start + TEXTS_AT_ONCE]
