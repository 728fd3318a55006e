"""An encoder and what stands on it, over padded rows: the module that an ONNX graph is made of.

No model is written a second time: the modules are those of the packed batch, given padded rows in one dense block
(``models.padded``), and packed they are what the graph is compared with.

Shape legend: T tokens or slots, B rows, L slots of a row, D width, E width of what a head sees, C logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, cast, runtime_checkable

from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import CheckpointError
from lmtransfer.models.base import Encoder
from lmtransfer.models.padded import PaddedRows

#: What is asked of an encoder: its states, a task's answer, or what a pretraining objective predicts of each token.
Kind = Literal["encoder", "classification", "regression", "tagging", "span", "mlm", "lm", "rtd"]

#: What a graph of each kind gives.
OUTPUTS: dict[Kind, tuple[str, ...]] = {
    "encoder": ("last_hidden_state",),
    "classification": ("logits",),
    "regression": ("logits",),
    "tagging": ("logits",),
    "span": ("start_logits", "end_logits"),
    "mlm": ("logits",),
    "lm": ("logits",),
    "rtd": ("logits",),
}
_OF_ROWS = ("classification", "regression")
_OF_TASKS = ("classification", "regression", "tagging", "span")


@runtime_checkable
class ComposesRows(Protocol):
    """What composes packed sequences and padded rows alike; see ``transfer.composing.Composition``.

    Attributes:
        tokens: which tokens of packed sequences it is given: "first", "last" or "all".
    """

    tokens: str

    def __call__(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Packed: (T, D), or (B, D) where ``tokens`` names one, and lengths (B,), to (B, E) or (T, E)."""
        ...

    def of_rows(self, hidden_BLD: Tensor, real_BL: Tensor) -> Tensor:
        """Padded: to (B, E) or (B, L, E)."""
        ...


class DenseModel(nn.Module):
    """An encoder with what stands on it, over padded rows.

    Args:
        encoder: a stack of transformer layers.
        kind: what is asked of it.
        head: of a task; or the pretraining objective, bound to the encoder (none for "lm", whose output is the token
            embedding); None for "encoder".
        reading: which layers a task's head reads (``transfer.reading``); None: the last.
        composition: how a task's head sees tokens (``transfer.composing``, ``transfer.composing``).
        use_pooler: the encoder's pooler is part of a task's head.

    Raises:
        CheckpointError: what cannot be computed on padded rows, or does not belong to the kind.
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        kind: Kind,
        head: nn.Module | None = None,
        reading: nn.Module | None = None,
        composition: nn.Module | None = None,
        use_pooler: bool = False,
    ) -> None:
        super().__init__()
        problem = _problem(encoder, kind, head, reading, composition)
        if problem is not None:
            raise CheckpointError(f"no ONNX export: {problem}")
        self.encoder, self.kind, self.head = encoder, kind, head
        self.reading, self.composition, self.use_pooler = reading, composition, use_pooler
        self.has_segments = encoder.num_segments > 1

    @property
    def per_row(self) -> bool:
        """Whether the outputs are of rows, (B, ...), not of tokens, (B, L, ...)."""
        return self.kind in _OF_ROWS

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The outputs of the kind, in the order of ``OUTPUTS``.

        Args:
            input_ids: token ids, int64, (B, L); at least one real token a row, padding (any ids) to its right.
            attention_mask: 1 at real tokens, 0 at padding, int64, (B, L).
            token_type_ids: segment ids, int64, (B, L); of encoders that tell segments apart.

        Returns:
            float32, (B, L, ...), meaningless at padding, or (B, ...).
        """
        rows, length = input_ids.shape
        real_BL = attention_mask.bool()
        batch = PaddedRows.of(input_ids, real_BL, token_type_ids)
        states = self._read(self.encoder(batch).layers, real_BL.sum(1))
        if self.composition is not None:
            states = self._composition.of_rows(states.view(rows, length, -1), real_BL).flatten(0, -2)
        outputs = self._outputs(states)
        if self.per_row:
            return outputs
        return tuple(output.view(rows, length, *output.shape[1:]) for output in outputs)

    def packed(self, batch: PackedBatch) -> tuple[Tensor, ...]:
        """The same of packed sequences, as training and prediction compute them: (T, ...) or (B, ...)."""
        offsets = batch.cu_seqlens.long()
        states = self._read(self.encoder(batch).layers, offsets.diff())
        if self.composition is not None:
            tokens = self._composition.tokens
            if tokens != "all":
                states = states[offsets[:-1] if tokens == "first" else offsets[1:] - 1]
            states = self._composition(states, offsets.diff())
        return self._outputs(states)

    @property
    def _composition(self) -> ComposesRows:
        return cast(ComposesRows, self.composition)

    def _read(self, layers: Sequence[Tensor], lengths: Tensor) -> Tensor:
        if self.reading is None:
            return layers[-1]
        indices = cast(Any, self.reading).indices
        return self.reading([layers[index] for index in indices], lengths)

    def _outputs(self, states: Tensor) -> tuple[Tensor, ...]:
        """Of tokens (T, E), or of rows (B, E)."""
        head, encoder = cast(Any, self.head), self.encoder
        if self.kind == "encoder":
            return (states,)
        if self.kind in _OF_TASKS:
            if self.use_pooler and encoder.pooler is not None:
                states = encoder.pooler(states)
            logits = head(states)
            return logits.unbind(1) if self.kind == "span" else (logits,)
        if self.kind == "rtd":
            return (head.logits(states),)
        assert encoder.token_embedding is not None
        output_VE = encoder.token_embedding.weight
        if self.kind == "lm":  # with a bias it is one operator that transposes, and the tied table is written once
            return (nn.functional.linear(states, output_VE, states.new_zeros(encoder.vocab_size)),)
        return (nn.functional.linear(head.transform(states), output_VE, head.bias),)


def _problem(
    encoder: Encoder, kind: Kind, head: nn.Module | None, reading: nn.Module | None, composition: nn.Module | None
) -> str | None:
    """Why these parts cannot be computed on padded rows, or None."""
    if kind not in OUTPUTS:
        return f"kind={kind} is not allowed: use {', '.join(OUTPUTS)}"
    if not encoder.reads_padded:
        return (
            f"{type(encoder).__name__} is no plain stack of transformer layers, and only those compute the same on "
            "padded rows (BERT, RoBERTa, ALBERT, ELECTRA, DistilBERT, GPT, modern); export it as safetensors"
        )
    if (head is None) != (kind in ("encoder", "lm")):
        return f"kind={kind} {'needs a head' if head is None else 'has no head, and one was given'}"
    if kind in _OF_TASKS and not isinstance(composition, ComposesRows):
        return (
            f"{type(composition).__name__} (transfer.pooling) reads packed sequences only; train the head with "
            "transfer.pooling=family, cls, last_token, mean, max or attention"
        )
    if getattr(reading, "layer_norm", False):
        return "transfer.mix_layer_norm=true normalises over packed sequences; train with transfer.mix_layer_norm=false"
    if kind == "span" and head is not None and cast(Any, head).num_labels:
        return "a head for answers that are no spans (yes, no, unknown) has no published counterpart"
    return None
