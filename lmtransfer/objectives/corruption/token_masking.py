"""Masked-token corruption (BERT)."""

from __future__ import annotations

import numpy as np

from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.base import Corrupted
from lmtransfer.objectives.corruption.replacement import Replacement
from lmtransfer.objectives.corruption.selection import Selection, SingleTokens
from lmtransfer.objectives.rows.base import Row
from lmtransfer.tokenizers.base import Tokenizer


class TokenMasking:
    """Hides a number of tokens of each row (Devlin et al. 2019, section 3.1; create_pretraining_data.py).

    That number is ``min(max_predictions, max(1, round(mask_prob * len(row))))``, where the length counts special
    tokens as in the original; special tokens themselves are never hidden. Single tokens hit it exactly; units larger
    than a token come as near to it from below as whole units do.

    Args:
        mask_prob: share of a row's tokens to hide, above 0, at most 1.
        mask_share: share of the hidden tokens that become [MASK].
        random_share: share that become random tokens; what is left stays as it is.
        max_predictions: most tokens to hide in a row; null for no limit (20 at 128 tokens in the original).
        selection: the units that are hidden whole, such as words or spans; single tokens if omitted.
        shared_replacement: one draw of the three outcomes for all tokens of a unit (SpanBERT); otherwise each token
            has its own (BERT's whole words, ALBERT, ERNIE).
        static_masking: every epoch repeats the rows and masks of the first (Liu et al. 2019, section 4.1, compares).
        random_from_specials: draw random tokens from the whole vocabulary, special tokens included, as the original
            code does; the paper does not say.
        tokenizer: names the special tokens, and binds the selection.

    Raises:
        ConfigError: a number outside what is allowed.
    """

    def __init__(
        self,
        *,
        mask_prob: float = 0.15,
        mask_share: float = 0.8,
        random_share: float = 0.1,
        max_predictions: int | None = None,
        selection: Selection | None = None,
        shared_replacement: bool = False,
        static_masking: bool = False,
        random_from_specials: bool = False,
        tokenizer: Tokenizer,
    ) -> None:
        if not 0 < mask_prob <= 1:
            raise ConfigError(f"objective.mask_prob={mask_prob} is not allowed: use a number above 0 and at most 1")
        if max_predictions is not None and max_predictions < 1:
            raise ConfigError(
                f"objective.corruption.max_predictions={max_predictions} is not allowed: use 1 or more, or null"
            )
        self.mask_prob, self.max_predictions = mask_prob, max_predictions
        self.static_masking = static_masking
        self.maskable = ~tokenizer.is_special
        self.selection: Selection = selection or SingleTokens()
        self.selection.bind(tokenizer)
        self.shared_replacement = shared_replacement
        self.replacement = Replacement(
            mask_share=mask_share,
            random_share=random_share,
            random_from_specials=random_from_specials,
            tokenizer=tokenizer,
        )

    @property
    def gives(self) -> tuple[str, ...]:
        """See ``Corruption``."""
        return self.selection.gives

    def corrupt(self, row: Row, rng: np.random.Generator) -> Corrupted:
        """See ``Corruption``."""
        tokens = row.tokens
        maskable = np.flatnonzero(self.maskable[tokens])
        budget = min(max(1, round(self.mask_prob * len(tokens))), len(maskable))
        if self.max_predictions is not None:
            budget = min(budget, self.max_predictions)
        if budget == 0:
            nothing = {name: maskable for name in self.gives}
            return Corrupted(tokens, maskable, tokens[maskable], nothing)
        chosen = self.selection.choose(tokens, maskable, budget, rng)
        positions = chosen.positions
        targets = tokens[positions]
        units = chosen.units if self.shared_replacement else np.arange(len(positions))
        corrupted = tokens.copy()
        corrupted[positions] = self.replacement.draw(targets, units, rng)
        return Corrupted(corrupted, positions, targets, chosen.per_target)

    def expected_targets(self, num_tokens: int) -> int:
        """See ``Corruption``."""
        return round(self.mask_prob * num_tokens)
