"""The interface of corruptions, and token masking (BERT)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Count, PositiveProb
from lmtransfer.data.token_frequencies import token_information
from lmtransfer.data.token_shards import MixedStore, TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.rows.base import Row
from lmtransfer.tokenizers.base import Tokenizer


class CorruptedRow(NamedTuple):
    """A row as the encoder sees it, and the tokens to predict.

    Attributes:
        tokens: token ids, int32, shape (n,).
        positions: indices into the row of the tokens to predict, int64, ascending, shape (m,).
        targets: the original ids at these positions, int32, shape (m,).
        per_target: additional integers for each target by name, int64, shape (m,) each.
        per_token: additional integers for each token by name, int64, shape (n,) each.
        causal: whether the row is unchanged and read left to right.
    """

    tokens: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    per_target: Mapping[str, np.ndarray] = MappingProxyType({})
    per_token: Mapping[str, np.ndarray] = MappingProxyType({})
    causal: bool = False


class Corruption(ABC):
    """Chooses the tokens to predict in a row, and masks them.

    Rows are corrupted independently, so the result does not depend on batching.

    Attributes:
        static_masking: whether every epoch repeats the rows and masks of the first epoch.
        provides: names of the additional integers per target or per token, which an objective may need.
        uses_mask: whether rows may contain [MASK], which the tokenizer must then have.
        hides: whether there are tokens to predict, which an objective must then predict.
        shows_targets: whether the tokens to predict remain visible in the row. An objective that needs ``provides``
            hides them itself; with any other objective, the encoder would see them.
        masks_uniformly: whether frequent tokens are masked as often as rare ones, so that the entropy of the token
            frequencies is the loss of a model that knows only these frequencies.
        causal_share: share of the rows that are left unchanged and read left to right.
    """

    static_masking: bool = False
    provides: tuple[str, ...] = ()
    uses_mask: ClassVar[bool] = False
    hides: ClassVar[bool] = True
    shows_targets: ClassVar[bool] = False
    masks_uniformly: bool = True
    causal_share: float = 0.0

    def observe(self, store: TokenStore | MixedStore) -> None:  # noqa: B027
        """Read statistics of the text, such as word frequencies, before the first row; by default, nothing."""

    @abstractmethod
    def corrupt(self, row: Row, rng: np.random.Generator) -> CorruptedRow:
        """Return the corrupted row, which depends only on the row and ``rng``; special tokens never change."""

    def expected_targets(self, num_tokens: int) -> int:
        """Return the expected number of predictions among ``num_tokens`` tokens, for static shapes."""
        return 0


class NoCorruption(Corruption):
    """Leaves rows unchanged, for objectives such as next-token prediction."""

    hides = False

    @override
    def corrupt(self, row: Row, rng: np.random.Generator) -> CorruptedRow:
        return CorruptedRow(row.tokens, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))


class Choice(NamedTuple):
    """The positions to mask.

    Attributes:
        units: index of the unit that each position belongs to, ascending from 0, int64, shape (m,).
        per_target: additional integers for each position by name, int64, shape (m,) each.
    """

    positions: np.ndarray
    units: np.ndarray
    per_target: Mapping[str, np.ndarray] = MappingProxyType({})


def sample_order(items: np.ndarray, weights: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Return items in random order, sampled one after another without replacement, in proportion to their weights.

    With weights, items are sorted by an exponential variate divided by the weight (Efraimidis and Spirakis 2006,
    https://doi.org/10.1016/j.ipl.2005.11.003).

    Args:
        weights: weight of each item, above 0; None for equal weights.
    """
    if weights is None:
        return rng.permutation(items)
    return items[np.argsort(rng.exponential(size=len(items)) / weights, kind="stable")]


class Selection(ABC):
    """Chooses units of a row until a token budget is used up.

    Attributes:
        supports_weights: whether ``token_weights`` is supported.
        token_weights: weight of each id, above 0; the weight of a unit is the mean over its tokens. None for equal
            weights.
    """

    provides: tuple[str, ...] = ()
    supports_weights: bool = False
    token_weights: np.ndarray | None = None

    def bind(self, tokenizer: Tokenizer) -> None:  # noqa: B027
        """Read properties of the vocabulary, once, before the first row; by default, nothing."""

    @abstractmethod
    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Choice:
        """Choose about ``budget`` tokens, all of them in ``maskable``.

        Args:
            maskable: positions that may be chosen, int64, ascending.
            budget: number of tokens to choose, from 1 to ``len(maskable)``.
        """


class SingleTokens(Selection):
    """Each token is a unit; exactly the budget is chosen (Devlin et al. 2019, section 3.1)."""

    supports_weights = True

    @override
    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Choice:
        weights = None if self.token_weights is None else self.token_weights[tokens[maskable]]
        positions = sample_order(maskable, weights, rng)[:budget]
        positions.sort()
        return Choice(positions, np.arange(budget))


#: How the tokens to mask are sampled: all with equal probability, or rare tokens more often.
Weighting = Literal["uniform", "rare"]
#: Minimum information of a token in nats, which limits the weight of tokens that make up more than a third of the text.
_LEAST_INFORMATION = 1.0


class TokenMasking(Corruption):
    """Masks some tokens of each row (Devlin et al. 2019, section 3.1; create_pretraining_data.py).

    The number of masked tokens is ``min(max_predictions, max(1, round(mask_prob * len(row))))``. As in the original,
    the length includes special tokens, but these are never masked. With single tokens, the number is exact. With larger
    units, it is an upper limit, and only whole units are masked.

    Args:
        mask_share: share of the masked tokens that become [MASK].
        random_share: share of the masked tokens that become random tokens; the rest stay unchanged.
        max_predictions: maximum number of tokens to mask in a row (20 at 128 tokens in the original); null for no
            limit.
        selection: the units that are masked as a whole, such as words or spans; single tokens by default.
        shared_replacement: whether all tokens of a unit share one of the three outcomes (SpanBERT); otherwise, the
            outcome is drawn for each token (BERT's whole words, ALBERT, ERNIE).
        random_from_specials: draw random tokens from the whole vocabulary including special tokens, as in the original
            code; the paper does not specify this.
        weighting: with "uniform", all tokens of a row have the same probability. With "rare", tokens are sampled in
            proportion to their information ``-log p`` (at least 1 nat), where p is the token's share of the training
            text. The number of masked tokens is the same, but they are harder to predict, so the losses of the two
            settings are not comparable. (Yang et al. 2022, https://arxiv.org/abs/2208.10806, use past losses as
            weights; here, batches do not depend on the state of the model.)
        causal_share: share of the rows, sampled independently, that are left unchanged and read left to right, for a
            language model in addition to the masked language model (Charpentier & Samuel 2024, arXiv 2410.24159).
    """

    uses_mask = True

    def __init__(
        self,
        *,
        mask_prob: PositiveProb = 0.15,
        mask_share: float = 0.8,
        random_share: float = 0.1,
        max_predictions: Count | None = None,
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
                f"objective.causal_share={causal_share} is not allowed: use a number of at least 0 and below 1; to "
                "read all rows left to right, use objective=lm"
            )
        if min(mask_share, random_share) < 0 or mask_share + random_share > 1 + 1e-9:
            raise ConfigError(
                f"objective.corruption.mask_share={mask_share} and objective.corruption.random_share={random_share} "
                f"are not allowed: use numbers from 0 to 1 with a sum of at most 1 (BERT uses 0.8 and 0.1)"
            )
        self.mask_prob, self.max_predictions = mask_prob, max_predictions
        self.mask_share, self.random_share = mask_share, random_share
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
        self.mask_id = np.int32(tokenizer.mask_id)
        pieces = np.arange(tokenizer.num_pieces, dtype=np.int32)
        self.drawable = pieces if random_from_specials else pieces[~tokenizer.is_special[: len(pieces)]]

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
        corrupted[positions] = self._replace(targets, units, rng)
        return CorruptedRow(corrupted, positions, targets, choice.per_target)

    def _replace(self, tokens: np.ndarray, units: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw the outcome of each unit, and replace its tokens accordingly."""
        kind = rng.random(int(units[-1]) + 1 if len(units) else 0)[units]
        replaced = np.where(kind < self.mask_share, self.mask_id, tokens)
        (places,) = ((kind >= self.mask_share) & (kind < self.mask_share + self.random_share)).nonzero()
        if len(places):
            replaced[places] = self.drawable[rng.integers(len(self.drawable), size=len(places))]
        return replaced

    @override
    def expected_targets(self, num_tokens: int) -> int:
        return round(self.mask_prob * num_tokens)
