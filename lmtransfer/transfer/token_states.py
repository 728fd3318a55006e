"""What stands between an encoder and a head that asks about tokens: nothing, or a BiLSTM.

Shape legend: T tokens of a packed batch, B sequences, L slots of a padded row, D width, E width of the result.
"""

from __future__ import annotations

from torch import Tensor, nn

from lmtransfer.transfer.composing import Composition
from lmtransfer.transfer.segments import lstm_states


class EveryToken(Composition):
    """Each token's vector as it is.

    Args:
        dim: D.
    """

    def __init__(self, *, dim: int) -> None:
        super().__init__(output_dim=dim)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """(T, D) -> (T, D), float32."""
        return hidden.float()

    def of_rows(self, hidden_BLD: Tensor, real_BL: Tensor) -> Tensor:
        """The same of padded rows, (B, L, D) -> (B, L, D)."""
        return hidden_BLD.float()


class BiLstmStates(Composition):
    """The states of a bidirectional LSTM, as in taggers (Huang et al. 2015; Peters et al. 2018, section 4).

    Args:
        dim: D.
        hidden_dim: units of each direction.
    """

    reads_padded = False

    def __init__(self, *, dim: int, hidden_dim: int = 256) -> None:
        super().__init__(output_dim=2 * hidden_dim)
        self.lstm = nn.LSTM(dim, hidden_dim, bidirectional=True)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """(T, D) -> (T, 2 * hidden_dim)."""
        return lstm_states(self.lstm, hidden, lengths)
