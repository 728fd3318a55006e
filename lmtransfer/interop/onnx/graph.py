"""An encoder and what stands on it, over padded rows: the module that an ONNX graph is made of.

No model is written a second time: the modules are those of the packed batch, given padded rows in one dense block
(``models.padded``), and packed they are what the graph is compared with.

Shape legend: T tokens or slots, B rows, L slots of a row, D width, E width of what a head sees, C logits, V vocabulary.
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


class Reading(Protocol):
    """Which layers a task's head reads; see ``transfer.reading.Reading``."""

    indices: tuple[int, ...]
    reads_padded: bool

    def __call__(self, layers: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """The layers of ``indices``, (T, D) each, to (T, D)."""
        ...


class Composition(Protocol):
    """How a task's head sees tokens; see ``transfer.composing.Composition``."""

    @property
    def tokens(self) -> str:
        """Which tokens of packed sequences it is given: "first", "last" or "all"."""
        ...

    reads_padded: bool

    def __call__(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Packed: (T, D), or (B, D) where ``tokens`` names one, and lengths (B,), to (B, E) or (T, E)."""
        ...

    def of_rows(self, hidden_BLD: Tensor, real_BL: Tensor) -> Tensor:
        """Padded: to (B, E) or (B, L, E)."""
        ...


class TaskHead(Protocol):
    """What answers a task; see ``transfer.heads.base.Head``."""

    cancelling: float

    @property
    def loss_name(self) -> str:
        """What it does, in a word."""
        ...

    @property
    def per(self) -> str:
        """Whether it answers for each "sequence" or "token"."""
        ...

    @property
    def graph_outputs(self) -> tuple[str, ...]:
        """Names of the outputs of a graph: of all its logits, or of each; none where it has no graph."""
        ...

    def __call__(self, hidden: Tensor) -> Tensor:
        """(B, E) or (T, E) to logits (B, C) or (T, C)."""
        ...


class TaskParts(Protocol):
    """What a task has on its encoder; a ``transfer.learner.TaskLearner`` is one."""

    use_pooler: bool  #: the encoder's pooler is part of the head

    @property
    def reading(self) -> Reading:
        """Which layers the head reads."""
        ...

    @property
    def composition(self) -> Composition:
        """How it sees tokens."""
        ...

    @property
    def head(self) -> TaskHead:
        """The head."""
        ...


class DenseModel(nn.Module):
    """An encoder with what stands on it, over padded rows.

    Args:
        encoder: one that ``reads_padded``.
        objective: of pretraining, bound to the encoder, that has something to say of each token; or None.
        task: of finetuning or probing; or None. With neither, the graph gives the last layer.

    Attributes:
        outputs: names of what the graph gives.
        what: what stands on the encoder, in a word.
        per_row: whether the outputs are of rows, (B, ...), not of tokens, (B, L, ...).
        cancelling: the largest sum of magnitudes that cancel in a head, see ``transfer.heads.base.Head``.

    Raises:
        CheckpointError: what cannot be computed on padded rows.
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
        """What ``outputs`` names.

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
            states = self.composition.of_rows(states.view(rows, length, -1), real_BL).flatten(0, -2)
        outputs = self._outputs(states)
        if self.per_row:
            return outputs
        return tuple(output.view(rows, length, *output.shape[1:]) for output in outputs)

    def packed(self, batch: PackedBatch) -> tuple[Tensor, ...]:
        """The same of packed sequences, as training and prediction compute them: (T, ...) or (B, ...)."""
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
        """Of tokens (T, E), or of rows (B, E)."""
        if self.head is not None:
            pooler = self.encoder.pooler if self.use_pooler else None
            logits = self.head(states if pooler is None else pooler(states))
            return (logits,) if len(self.outputs) == 1 else logits.unbind(1)
        said = None if self.objective is None else self.objective.token_logits(states)
        return (states if said is None else said,)


def _problem(encoder: Encoder, task: TaskParts | None) -> str | None:
    """Why these parts cannot be computed on padded rows, or None."""
    if not encoder.reads_padded:
        return (
            f"{type(encoder).__name__} is no plain stack of transformer layers, and only those compute the same on "
            "padded rows (BERT, RoBERTa, ALBERT, ELECTRA, DistilBERT, GPT, modern); export it as safetensors"
        )
    if task is None:
        return None
    if not task.composition.reads_padded:
        return (
            f"{type(task.composition).__name__} (transfer.pooling, transfer.pairs) reads packed sequences only; train "
            "the head with transfer.pooling=family, cls, last_token, mean, max or attention and transfer.pairs=together"
        )
    if not task.reading.reads_padded:
        return "transfer.mix_layer_norm=true normalises over packed sequences; train with transfer.mix_layer_norm=false"
    if not task.head.graph_outputs:
        return "a head for answers that are no spans (yes, no, unknown) has no published counterpart"
    return None
