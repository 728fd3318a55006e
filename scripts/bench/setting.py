"""The settings of a measurement: a part of the benchmark, and a combination of the peer's flags."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from torch import nn

from lmtransfer.training.flops import training_flops_per_token

MASK_PROB = 0.15
LEARNING_RATE = 1e-4

#: The finetuning parts: single sentences (SST-2), pairs of sentences (MNLI), questions on passages (SQuAD).
FINETUNING = ("finetune", "finetune_pairs", "finetune_spans")


@dataclass(frozen=True)
class Flags:
    """The peer's flags; the processes of both sides get them, and our side ignores them.

    Attributes:
        compiled: ``torch_compile``.
        attention: ``attn_implementation``.
        reduced: whether to use bf16 if the hardware supports it; False for the peer's default, float32.
        grouped: whether batches have rows of similar length; False for random batches, the default of both sides.
        lent: whether the peer gets our settings for the memory allocator and for waiting threads, which are not its
            default.
    """

    compiled: bool = False
    attention: str = "sdpa"
    reduced: bool = True
    grouped: bool = False
    lent: bool = False

    def __str__(self) -> str:
        batches = "batches of similar length" if self.grouped else "random batches"
        lent = ", our allocator and waiting" if self.lent else ""
        precision = "16 bits" if self.reduced else "fp32"
        return f"attn={self.attention}, torch_compile={self.compiled}, {precision}, {batches}{lent}"


@dataclass(frozen=True)
class Setting:
    """One part of the benchmark.

    Attributes:
        part: ``pretrain`` (full rows, masked tokens), ``ragged`` (masked tokens; rows of whole sentences of one
            document), ``pairs`` (sentence pairs, masked tokens and next sentence), or one of ``FINETUNING``.
        device: ``cpu`` or ``cuda``.
        dim, num_layers, num_heads, hidden_dim: sizes of BERT.
        vocab_size: vocabulary size of the model; None for the tokenizer's vocabulary size.
        length: maximum length of a row in tokens.
        rows: number of rows in a step; the average number for ragged rows.
        dropout: dropout of both sides; attention dropout is off.
        steps: number of timed steps.
        warmup: number of steps before the clock starts, which include compilation.
        threads: number of CPU threads.
    """

    part: str = "pretrain"
    device: str = "cpu"
    dim: int = 256
    num_layers: int = 4
    num_heads: int = 4
    hidden_dim: int = 1024
    vocab_size: int | None = None
    length: int = 128
    rows: int = 32
    dropout: float = 0.0
    steps: int = 40
    warmup: int = 20
    threads: int = 2

    def to_json(self) -> str:
        """Convert the setting to JSON, for the command line of a side's process."""
        return json.dumps(asdict(self))

    def flops_per_token(self, num_vocabulary: int, mean_length: float) -> float:
        """Compute the FLOP that masked language modeling needs per real token, forward and backward, on either side."""
        layer = 4 * self.dim**2 + 2 * self.dim * self.hidden_dim
        head = self.dim**2 + num_vocabulary * self.dim
        return training_flops_per_token(
            num_weights=round(self.num_layers * layer + MASK_PROB * head),
            num_layers=self.num_layers,
            dim=self.dim,
            mean_length=mean_length,
        )


def num_parameters(model: nn.Module) -> int:
    """Count the weights; tied weights count once."""
    return sum(parameter.numel() for parameter in model.parameters())
