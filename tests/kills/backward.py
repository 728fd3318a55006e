"""A model that only reads right to left, for the objective that needs one; in the package it is half of a model."""

from __future__ import annotations

from typing import Any

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Direction, EncoderOutput, OutputPositions
from lmtransfer.models.elmo import ElmoSubwordEncoder


class BackwardLstm(ElmoSubwordEncoder):
    """The backward half of ELMo's LSTMs."""

    attention: Direction = "backward"

    def __init__(
        self, *, vocab_size: int, dim: int, num_layers: int, cell_dim: int, max_length: int = 256, dropout: float = 0.1
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            dim=2 * dim,
            num_layers=num_layers,
            cell_dim=cell_dim,
            max_length=max_length,
            dropout=dropout,
        )
        self.dim = dim

    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        """Encode; see ``models.base.Encoder``."""
        layers = super().forward(batch, output_positions=output_positions).layers
        return EncoderOutput(tuple(layer_TD[:, self.dim :] for layer_TD in layers))
