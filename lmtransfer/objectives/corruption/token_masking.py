"""Masked-token corruption (BERT)."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.data.store.token_shares import token_information
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.base import Corrupted, Corruption
from lmtransfer.objectives.corruption.selection import Selection, SingleTokens
from lmtransfer.objectives.rows.base import Row
from lmtransfer.tokenizers.base import Tokenizer

#: How tokens of a row are drawn: all alike, or rare ones more often.
Weighting = Literal["uniform", "rare"]
#: In nats; less, which a token has that makes up more than a third of the text, counts as this.
_LEAST_INFORMATION = 1.0


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


class TokenMasking(Corruption):
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
        weighting: "uniform" hides all tokens of a row alike; "rare" draws them, one after the other, in proportion to
            their information ``-log p``, p being a token's share of the training text, or 1 nat where it has less. As
            many are hidden either way, but harder ones, so losses do not compare. (Yang et al. 2022,
            https://arxiv.org/abs/2208.10806, weigh by losses so far; batches here depend on nothing that was learnt.)
        causal_share: share of the rows, drawn one by one, that are left as they are and read left to right, for a
            language model beside the masked one (Charpentier & Samuel 2024, arXiv 2410.24159).
        tokenizer: names the special tokens, and binds the selection.

    Raises:
        ConfigError: a number outside what is allowed.
    """

    uses_mask = True

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
        weighting: Weighting = "uniform",
        causal_share: float = 0.0,
        tokenizer: Tokenizer,
    ) -> None:
        if not 0 <= causal_share < 1:
            raise ConfigError(
                f"objective.causal_share={causal_share} is not allowed: use a number from 0 to below 1; with all rows "
                "left to right use objective=lm"
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
        self.hides_alike = weighting == "uniform"
        if weighting == "rare" and not self.selection.weighs:
            raise ConfigError(
                f"objective.corruption.weighting=rare: {type(self.selection).__name__} draws all units alike "
                f"(weighs=False); use weighting=uniform"
            )
        self.gives = self.selection.gives
        self.shared_replacement = shared_replacement
        self.replacement = Replacement(
            mask_share=mask_share,
            random_share=random_share,
            random_from_specials=random_from_specials,
            tokenizer=tokenizer,
        )

    def observe(self, store: TokenStore | MixedStore) -> None:
        """See ``Corruption``: how often words occur, where it matters; until then all are hidden alike."""
        if self.weighting == "rare":
            weights = token_information(store, size=len(self.maskable))
            self.selection.token_weights = np.maximum(weights, _LEAST_INFORMATION)

    def corrupt(self, row: Row, rng: np.random.Generator) -> Corrupted:
        """See ``Corruption``."""
        tokens = row.tokens
        if self.causal_share and rng.random() < self.causal_share:
            none = np.zeros(0, dtype=np.int64)
            return Corrupted(tokens, none, tokens[none], dict.fromkeys(self.gives, none), causal=True)
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
