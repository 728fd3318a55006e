"""The module that an ONNX graph is traced from: an encoder and its head over padded rows.

No model is implemented a second time. The modules are the same as for the packed batch; they get padded rows as one
dense block (``models.padded``). The graph is compared with the same modules over packed sequences.

Shape legend: T tokens or slots, B rows, L slots of a row, D width, E width of a head's input, C logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import CheckpointError
from lmtransfer.models.base import Encoder
from lmtransfer.models.padded import PaddedRows
from lmtransfer.objectives.base import Objective


class LayerSelection(Protocol):
    """The part that selects which layers a task's head reads; see ``transfer.layer_selection.LayerSelection``."""

    indices: tuple[int, ...]
    reads_padded: bool

    def __call__(self, layers: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """Combine the layers of ``indices``, (T, D) each, into (T, D)."""
        ...


class Pooling(Protocol):
    """The part that composes token vectors for a task's head; see ``transfer.pooling.Pooling``."""

    @property
    def tokens(self) -> str:
        """Which tokens of packed sequences it takes: "first", "last" or "all"."""
        ...

    reads_padded: bool

    def __call__(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Packed: from (T, D), or (B, D) if ``tokens`` is "first" or "last", and lengths (B,), to (B, E) or (T, E)."""
        ...

    def of_rows(self, hidden_BLD: Tensor, real_BL: Tensor) -> Tensor:
        """Padded: compose to (B, E) or (B, L, E)."""
        ...


class TaskHead(Protocol):
    """The head of a task; see ``transfer.heads.base.Head``."""

    cancelling: float

    @property
    def loss_name(self) -> str:
        """Name of the head's loss."""
        ...

    @property
    def per(self) -> str:
        """Whether there is one answer for each "sequence" or each "token"."""
        ...

    @property
    def graph_outputs(self) -> tuple[str, ...]:
        """Names of the graph's outputs: one for all logits, or one for each logit; empty if it has no graph."""
        ...

    def __call__(self, hidden: Tensor) -> Tensor:
        """Compute logits (B, C) or (T, C) from (B, E) or (T, E)."""
        ...


class TaskParts(Protocol):
    """The parts of a task's model on its encoder; a ``transfer.learner.TaskLearner`` has them."""

    use_pooler: bool  #: the encoder's pooler is part of the head

    @property
    def reading(self) -> LayerSelection:
        """The part that selects the layers."""
        ...

    @property
    def composition(self) -> Pooling:
        """The part that composes token vectors."""
        ...

    @property
    def head(self) -> TaskHead:
        """The head."""
        ...


class DenseModel(nn.Module):
    """An encoder with its head, over padded rows.

    Args:
        encoder: an encoder with ``reads_padded``.
        objective: a pretraining objective with logits for each token, bound to the encoder; or None.
        task: the parts of a task's model; or None. Without objective and task, the graph outputs the last layer.

    Attributes:
        outputs: names of the graph's outputs.
        what: short name of the head.
        per_row: whether there is one output a row, (B, ...), not one a token, (B, L, ...).
        cancelling: the largest sum of magnitudes that cancel in a head, see ``transfer.heads.base.Head``.

    Raises:
        CheckpointError: a part cannot be computed on padded rows.
    """

    def __init__(self, *, encoder: Encoder, objective: Objective | None = None, task: TaskParts | None = None) -> None:
        super().__init__()
        problem = _problem(encoder, task)
        if problem is not None:
            raise CheckpointError(f"no ONNX export: {problem}")
        self.encoder, self.objective = encoder, objective
        self.reading = None if task is None else task.reading
        self.composition = None if task is None else task.composition
        self.head = None if task is None else task.head
        self.use_pooler = task is not None and task.use_pooler
        self.has_segments = encoder.num_segments > 1
        self.outputs: tuple[str, ...] = ("last_hidden_state",) if objective is None else ("logits",)
        self.what = "encoder" if objective is None else objective.name
        self.per_row, self.cancelling = False, 0.0
        if self.head is not None:
            self.outputs, self.what = self.head.graph_outputs, self.head.loss_name
            self.per_row, self.cancelling = self.head.per == "sequence", self.head.cancelling

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Compute the outputs named in ``outputs``.

        Args:
            input_ids: token ids, int64, (B, L); at least one real token a row, padding (any ids) to its right.
            attention_mask: 1 at real tokens, 0 at padding, int64, (B, L).
            token_type_ids: segment ids, int64, (B, L); for encoders with segment embeddings.

        Returns:
            float32, (B, L, ...), meaningless at padding, or (B, ...).
        """
        rows, length = input_ids.shape
        real_BL = attention_mask.bool()
        batch = PaddedRows.of(input_ids, real_BL, token_type_ids)
        states = self._read(self.encoder(batch).layers, real_BL.sum(1))
        if self.composition is not None:
            states = self.composition.of_rows(states.view(rows, length, -1), real_BL).flatten(0, -2)
        outputs = self._outputs(states)
        if self.per_row:
            return outputs
        return tuple(output.view(rows, length, *output.shape[1:]) for output in outputs)

    def packed(self, batch: PackedBatch) -> tuple[Tensor, ...]:
        """Compute the same on packed sequences, as training and prediction do: (T, ...) or (B, ...)."""
        offsets = batch.cu_seqlens.long()
        states = self._read(self.encoder(batch).layers, offsets.diff())
        if self.composition is not None:
            tokens = self.composition.tokens
            if tokens != "all":
                states = states[offsets[:-1] if tokens == "first" else offsets[1:] - 1]
            states = self.composition(states, offsets.diff())
        return self._outputs(states)

    def _read(self, layers: Sequence[Tensor], lengths: Tensor) -> Tensor:
        if self.reading is None:
            return layers[-1]
        return self.reading([layers[index] for index in self.reading.indices], lengths)

    def _outputs(self, states: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs from the states of tokens (T, E), or of rows (B, E)."""
        if self.head is not None:
            pooler = self.encoder.pooler if self.use_pooler else None
            logits = self.head(states if pooler is None else pooler(states))
            return (logits,) if len(self.outputs) == 1 else logits.unbind(1)
        head_logits = None if self.objective is None else self.objective.token_logits(states)
        return (states if head_logits is None else head_logits,)


def _problem(encoder: Encoder, task: TaskParts | None) -> str | None:
    """Return the reason why these parts cannot be computed on padded rows; None if they can."""
    if not encoder.reads_padded:
        return (
            f"{type(encoder).__name__} is not a plain stack of transformer layers; only such stacks give the same "
            "results on padded rows (BERT, RoBERTa, ALBERT, ELECTRA, DistilBERT, GPT, modern); export it as safetensors"
        )
    if task is None:
        return None
    if not task.composition.reads_padded:
        return (
            f"{type(task.composition).__name__} (transfer.pooling, transfer.pairs) needs packed sequences; train "
            "the head with transfer.pooling=family, cls, last_token, mean, max or attention and transfer.pairs=together"
        )
    if not task.reading.reads_padded:
        return "transfer.mix_layer_norm=true normalises over packed sequences; train with transfer.mix_layer_norm=false"
    if not task.head.graph_outputs:
        return "a head with answers other than spans (yes, no, unknown) has no published counterpart"
    return None
