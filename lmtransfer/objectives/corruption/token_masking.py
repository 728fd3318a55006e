"""Masked-token corruption (BERT)."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import PositiveProb
from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.data.store.token_shares import token_information
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.base import CorruptedRow, Corruption
from lmtransfer.objectives.corruption.selection import Selection, SingleTokens
from lmtransfer.objectives.rows.base import Row
from lmtransfer.tokenizers.base import Tokenizer

#: How the tokens to mask are sampled: all with the same probability, or rare tokens more often.
Weighting = Literal["uniform", "rare"]
#: Minimum information of a token, in nats, used for tokens that are more than a third of the text.
_LEAST_INFORMATION = 1.0


class Replacement:
    """BERT's 80 / 10 / 10 replacement, or any other split (Devlin et al. 2019, section 3.1).

    Args:
        mask_share: share of the chosen units that become [MASK].
        random_share: share of the chosen units that become random tokens; the rest stay unchanged.
        random_from_specials: draw the random token from the whole vocabulary, special tokens included.
        tokenizer: defines [MASK], the special tokens and the pieces that occur.

    Raises:
        ConfigError: a share is negative, or their sum exceeds 1.
    """

    def __init__(
        self, *, mask_share: float, random_share: float, random_from_specials: bool, tokenizer: Tokenizer
    ) -> None:
        if min(mask_share, random_share) < 0 or mask_share + random_share > 1 + 1e-9:
            raise ConfigError(
                f"objective.corruption.mask_share={mask_share} and objective.corruption.random_share={random_share} "
                f"are not allowed: use numbers from 0 to 1 with a sum of at most 1 (BERT uses 0.8 and 0.1)"
            )
        self.mask_share, self.random_share = mask_share, random_share
        self.mask_id = np.int32(tokenizer.mask_id)
        pieces = np.arange(tokenizer.num_pieces, dtype=np.int32)
        self.drawable = pieces if random_from_specials else pieces[~tokenizer.is_special[: len(pieces)]]

    def draw(self, tokens: np.ndarray, units: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw replacements for ``tokens``: one kind of replacement per unit, one random token per token.

        Args:
            tokens: ids of the chosen tokens, int32, shape (m,).
            units: number of the unit of each token, from 0, shape (m,).
        """
        kind = rng.random(int(units[-1]) + 1 if len(units) else 0)[units]
        replaced = np.where(kind < self.mask_share, self.mask_id, tokens)
        is_random = (kind >= self.mask_share) & (kind < self.mask_share + self.random_share)
        (places,) = is_random.nonzero()
        if len(places):
            replaced[places] = self.drawable[rng.integers(len(self.drawable), size=len(places))]
        return replaced


class TokenMasking(Corruption):
    """Masks some tokens of each row (Devlin et al. 2019, section 3.1; create_pretraining_data.py).

    Their number is ``min(max_predictions, max(1, round(mask_prob * len(row))))``. As in the original, the length
    includes special tokens, but special tokens are never masked. With single tokens, the number is exact. With larger
    units, it is an upper limit, and as many whole units are masked as fit.

    Args:
        mask_prob: share of the tokens of a row to mask, above 0, at most 1.
        mask_share: share of the masked tokens that become [MASK].
        random_share: share of the masked tokens that become random tokens; the rest stay unchanged.
        max_predictions: maximum number of tokens to mask in a row; null for no limit (20 at 128 tokens in the
            original).
        selection: the units that are masked as a whole, such as words or spans; single tokens by default.
        shared_replacement: draw one of the three outcomes for all tokens of a unit together (SpanBERT); otherwise for
            each token separately (BERT's whole words, ALBERT, ERNIE).
        static_masking: every epoch repeats the rows and masks of the first epoch (compared in Liu et al. 2019, section
            4.1).
        random_from_specials: draw random tokens from the whole vocabulary, special tokens included, as the original
            code does; the paper does not specify it.
        weighting: with "uniform", all tokens of a row have the same probability. With "rare", tokens are sampled, one
            after the other, in proportion to their information ``-log p``, where p is the token's share of the training
            text; the minimum is 1 nat. The number of masked tokens is the same, but they are harder, so losses of the
            two settings are not comparable. (Yang et al. 2022, https://arxiv.org/abs/2208.10806, weight by the losses
            so far; batches here do not depend on the state of the model.)
        causal_share: share of the rows, sampled independently, that are left unchanged and read left to right, for a
            language model next to the masked language model (Charpentier & Samuel 2024, arXiv 2410.24159).
        tokenizer: defines the special tokens; the selection is bound to it.

    Raises:
        ConfigError: a number is outside its allowed range, or the selection does not support the weighting.
    """

    uses_mask = True

    def __init__(
        self,
        *,
        mask_prob: PositiveProb = 0.15,
        mask_share: float = 0.8,
        random_share: float = 0.1,
        max_predictions: int | None = None,
        selection: Selection | None = None,
        shared_replacement: bool = False,
        static_masking: bool = False,
        random_from_specials: bool = False,
        weighting: Weighting = "uniform",
        causal_share: float = 0.0,
        tokenizer: Tokenizer,
    ) -> None:
        if not 0 <= causal_share < 1:
            raise ConfigError(
                f"objective.causal_share={causal_share} is not allowed: use a number from 0 to below 1; to read all "
                "rows left to right, use objective=lm"
            )
        if weighting not in get_args(Weighting):
            ways = ", ".join(get_args(Weighting))
            raise ConfigError(f"objective.corruption.weighting={weighting} is not allowed: use one of {ways}")
        if not 0 < mask_prob <= 1:
            raise ConfigError(f"objective.mask_prob={mask_prob} is not allowed: use a number above 0 and at most 1")
        if max_predictions is not None and max_predictions < 1:
            raise ConfigError(
                f"objective.corruption.max_predictions={max_predictions} is not allowed: use 1 or more, or null"
            )
        self.mask_prob, self.max_predictions = mask_prob, max_predictions
        self.static_masking, self.causal_share = static_masking, causal_share
        self.maskable = ~tokenizer.is_special
        self.selection: Selection = selection or SingleTokens()
        self.selection.bind(tokenizer)
        self.weighting = weighting
        self.masks_uniformly = weighting == "uniform"
        if weighting == "rare" and not self.selection.supports_weights:
            raise ConfigError(
                f"objective.corruption.weighting=rare is not allowed: {type(self.selection).__name__} samples all "
                f"units with the same probability (supports_weights=False); use weighting=uniform"
            )
        self.provides = self.selection.provides
        self.shared_replacement = shared_replacement
        self.replacement = Replacement(
            mask_share=mask_share,
            random_share=random_share,
            random_from_specials=random_from_specials,
            tokenizer=tokenizer,
        )

    @override
    def observe(self, store: TokenStore | MixedStore) -> None:
        """Read the token frequencies if the weighting is "rare"; until then, all tokens have equal weight."""
        if self.weighting == "rare":
            weights = token_information(store, size=len(self.maskable))
            self.selection.token_weights = np.maximum(weights, _LEAST_INFORMATION)

    @override
    def corrupt(self, row: Row, rng: np.random.Generator) -> CorruptedRow:
        tokens = row.tokens
        if self.causal_share and rng.random() < self.causal_share:
            none = np.zeros(0, dtype=np.int64)
            return CorruptedRow(tokens, none, tokens[none], dict.fromkeys(self.provides, none), causal=True)
        (maskable,) = self.maskable[tokens].nonzero()
        budget = min(max(1, round(self.mask_prob * len(tokens))), len(maskable))
        if self.max_predictions is not None:
            budget = min(budget, self.max_predictions)
        if budget == 0:
            nothing = {name: maskable for name in self.provides}
            return CorruptedRow(tokens, maskable, tokens[maskable], nothing)
        choice = self.selection.choose(tokens, maskable, budget, rng)
        positions = choice.positions
        targets = tokens[positions]
        units = choice.units if self.shared_replacement else np.arange(len(positions))
        corrupted = tokens.copy()
        corrupted[positions] = self.replacement.draw(targets, units, rng)
        return CorruptedRow(corrupted, positions, targets, choice.per_target)

    @override
    def expected_targets(self, num_tokens: int) -> int:
        return round(self.mask_prob * num_tokens)
