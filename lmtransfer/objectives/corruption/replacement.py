"""What stands where a token was hidden: [MASK], a random token, or the token itself."""

from __future__ import annotations

import numpy as np

from lmtransfer.errors import ConfigError
from lmtransfer.tokenizers.base import Tokenizer


class Replacement:
    """BERT's 80 / 10 / 10 and any other split (Devlin et al. 2019, section 3.1).

    Args:
        mask_share: share of hidden units that become [MASK].
        random_share: share that become random tokens; what is left stays as it is.
        random_from_specials: draw the random token from the whole vocabulary, special tokens included.
        tokenizer: names [MASK], the special tokens and the pieces that occur.

    Raises:
        ConfigError: shares that are negative or exceed 1 together.
    """

    def __init__(
        self, *, mask_share: float, random_share: float, random_from_specials: bool, tokenizer: Tokenizer
    ) -> None:
        if min(mask_share, random_share) < 0 or mask_share + random_share > 1 + 1e-9:
            raise ConfigError(
                f"objective.corruption.mask_share={mask_share} and objective.corruption.random_share={random_share} "
                f"are no shares: use numbers from 0 to 1 that are at most 1 together (BERT has 0.8 and 0.1)"
            )
        self.mask_share, self.random_share = mask_share, random_share
        self.mask_id = tokenizer.mask_id
        pieces = np.arange(tokenizer.num_pieces, dtype=np.int32)
        self.drawable = pieces if random_from_specials else pieces[~tokenizer.is_special[: len(pieces)]]

    def draw(self, tokens: np.ndarray, units: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """What replaces ``tokens``: one kind of replacement a unit, one random token a token.

        Args:
            tokens: hidden ids, int32, shape (m,).
            units: number of the unit that each belongs to, from 0, shape (m,).
            rng: decides.
        """
        kind = rng.random(int(units[-1]) + 1 if len(units) else 0)[units]
        replaced = np.where(kind < self.mask_share, np.int32(self.mask_id), tokens)
        is_random = (kind >= self.mask_share) & (kind < self.mask_share + self.random_share)
        count = int(np.count_nonzero(is_random))
        if count:
            replaced[is_random] = self.drawable[rng.integers(len(self.drawable), size=count)]
        return replaced
