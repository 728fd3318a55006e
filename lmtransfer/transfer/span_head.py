"""The head for answer spans: the first and last token of an answer, or another kind of answer.

Shape legend: T real tokens of a packed batch, S sequences (windows of passages), E width of a token's vector, C other
kinds of answer, K logits of a token, L maximum number of tokens in an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from lmtransfer.models.base import Encoder
from lmtransfer.tasks.heads import HeadSpec, SpanSpec, SpanTargets
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.learner import Loss
from lmtransfer.transfer.heads import Head, HeadLayers, Pieces, at_least_float32
from lmtransfer.transfer.pooling import owners, segment_sum

_LOWEST = float("-inf")


class SpanHead(Head):
    """A start and an end classifier over the tokens of a passage (Devlin et al. 2019, sections 4.2 and 4.3).

    "No answer" is a span that starts and ends at the null token. Each classifier is a softmax over the passage and the
    null token. The loss is half the sum of their cross-entropies in nats, summed over sequences. If there are other
    kinds of answer (yes, no, unknown in CoQA), a third classifier on the null token chooses between a span (or no
    answer) and each kind. Its cross-entropy is added. If the gold answer is of another kind, the span losses are 0.

    In the targets, -1 for start and end is the null token. Outputs are [start, end, score, null score] and the log odds
    of each other kind against a span. Start, end and score are those of the best span of at most ``max_answer_tokens``
    inside the passage (on a tie the first, then the shortest); for an empty passage they are -1, -1 and minus infinity.
    A score is a start logit plus an end logit.

    Difference from run_squad.py of google-research/bert, whose softmax is over all tokens of a sequence: here tokens
    that cannot be part of an answer, such as the question, are excluded.

    Args:
        max_answer_tokens: maximum number of tokens in an answer.
        null: the null token of a sequence: the first token ([CLS]), or the last one, which alone has seen the whole
            sequence in a causal encoder.
    """

    loss_name: ClassVar[str] = "span"
    per: ClassVar[Literal["sequence", "token"]] = "token"

    def __init__(
        self,
        layers: HeadLayers,
        *,
        max_answer_tokens: int,
        num_labels: int = 0,
        null: Literal["first", "last"] = "first",
    ) -> None:
        super().__init__(layers, num_labels=num_labels)
        self.max_answer_tokens = max_answer_tokens
        self.null = null

    @property
    @override
    def graph_outputs(self) -> tuple[str, ...]:
        """Names of the outputs; empty with other kinds of answer, which no published head has."""
        return () if self.num_labels else ("start_logits", "end_logits")

    @classmethod
    @override
    def of(cls, spec: HeadSpec, encoder: Encoder, layers: HeadLayers, *, pieces: Pieces) -> SpanHead:
        """Build the head; the task sets the maximum answer length; the null token has seen the whole sequence."""
        assert isinstance(spec, SpanSpec)
        return cls(
            layers,
            num_labels=spec.num_labels,
            max_answer_tokens=spec.max_answer_tokens or encoder.max_length,
            null="last" if encoder.attention == "causal" else "first",
        )

    @property
    def num_logits(self) -> int:
        """2 for start and end; with other kinds of answer, also one for a span and one per kind."""
        return 2 + (self.num_labels + 1 if self.num_labels else 0)

    def count(self, batch: TaskBatch) -> int:
        """Return the number of sequences."""
        return len(batch.targets)

    @override
    def loss(self, logits: Tensor, batch: TaskBatch) -> Loss:
        """Return the loss of logits (T, 2), or (T, 2 + 1 + C): start, end, a span, each other kind."""
        logits_TK, windows = at_least_float32(logits), _Windows.of(batch, null=self.null)
        targets_of = SpanTargets.of(batch.targets)
        gold_S2, kind_S = torch.stack([targets_of.start, targets_of.end], dim=1), targets_of.kind
        gold_S2 = torch.where(gold_S2 < 0, windows.null_S[:, None], windows.begin_S[:, None] + gold_S2)
        losses_S = windows.cross_entropy(logits_TK[:, :2], gold_S2).mean(1)
        total = losses_S.masked_fill(kind_S >= 0, 0.0).sum()
        if self.num_labels:
            total = total + functional.cross_entropy(logits_TK[windows.null_S, 2:], kind_S + 1, reduction="sum")
        return Loss(sum=total, count=self.count(batch))

    @override
    def outputs(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """Return the outputs, (T, K) -> (S, 4 + C)."""
        logits_TK, windows = at_least_float32(logits), _Windows.of(batch, null=self.null)
        longest = min(self.max_answer_tokens, batch.packed.max_seqlen)
        start_S, end_S, score_S = windows.best_spans(logits_TK[:, 0], logits_TK[:, 1], longest=longest)
        null_SK = logits_TK[windows.null_S]
        columns = [start_S, end_S, score_S, null_SK[:, 0] + null_SK[:, 1]]
        columns += [null_SK[:, 2 + kind] - null_SK[:, 2] for kind in range(1, self.num_labels + 1)]
        return torch.stack([column.float() for column in columns], dim=1)


@dataclass(frozen=True, slots=True)
class _Windows:
    """Positions of a batch's passages; token indices count over the whole batch, int64.

    Attributes:
        begin_S: first token of each sequence.
        first_S: first token of each passage.
        stop_S: one past the last token of each passage.
    """

    lengths_S: Tensor
    owner_T: Tensor
    begin_S: Tensor
    null_S: Tensor
    first_S: Tensor
    stop_S: Tensor

    @classmethod
    def of(cls, batch: TaskBatch, *, null: Literal["first", "last"]) -> _Windows:
        packed, targets_of = batch.packed, SpanTargets.of(batch.targets)
        assert len(targets_of) == packed.num_real, "one row of targets per sequence"
        offsets = packed.cu_seqlens[: packed.num_real + 1].long()
        lengths_S, begin_S = offsets.diff(), offsets[:-1]
        return cls(
            lengths_S=lengths_S,
            owner_T=owners(lengths_S, num_tokens=packed.num_tokens),
            begin_S=begin_S,
            null_S=begin_S if null == "first" else offsets[1:] - 1,
            first_S=begin_S + targets_of.first,
            stop_S=begin_S + targets_of.stop,
        )

    def cross_entropy(self, logits_TK: Tensor, gold_SK: Tensor) -> Tensor:
        """Return the cross-entropies of softmaxes over each passage and its null token, (T, K) -> (S, K)."""
        place_T = self._places()
        in_passage_T = (place_T >= self.first_S[self.owner_T]) & (place_T < self.stop_S[self.owner_T])
        allowed_T = in_passage_T | (place_T == self.null_S[self.owner_T])
        open_TK = logits_TK.masked_fill(~allowed_T[:, None], _LOWEST)
        highest_SK = self._highest(open_TK.detach())
        sums_SK = segment_sum(torch.exp(open_TK - highest_SK[self.owner_T]), self.lengths_S)
        return torch.log(sums_SK) + highest_SK - open_TK.gather(0, gold_SK)

    def best_spans(self, start_T: Tensor, end_T: Tensor, *, longest: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the span in each passage whose start and end logits have the highest sum.

        All valid pairs are compared, using a table (T, L) of the end logits of the L tokens from each token on. The
        result is the first and the last token, as indices in the sequence, and the score, (S,) each; without a valid
        span they are -1, -1 and minus infinity.
        """
        place_T = self._places()
        tokens_left_T = self.stop_S[self.owner_T] - place_T
        ends_TL = functional.pad(end_T, (0, longest - 1)).unfold(0, longest, 1)
        too_far_TL = torch.arange(longest, device=end_T.device) >= tokens_left_T[:, None]
        best_end_T, further_T = ends_TL.masked_fill(too_far_TL, _LOWEST).max(1)
        before_T = place_T < self.first_S[self.owner_T]
        best_T = (start_T + best_end_T).masked_fill(before_T, _LOWEST)
        score_S = self._highest(best_T[:, None])[:, 0]
        nowhere = len(place_T)
        candidates_T = place_T.masked_fill(best_T != score_S[self.owner_T], nowhere)
        start_S = torch.full_like(self.begin_S, nowhere).scatter_reduce(0, self.owner_T, candidates_T, "amin")
        start_S = start_S.clamp(max=nowhere - 1)  # if logits are NaN, there are no candidates
        end_S = start_S + further_T[start_S]
        none_S = ~(score_S > _LOWEST)
        first_S, last_S = ((edge_S - self.begin_S).masked_fill(none_S, -1) for edge_S in (start_S, end_S))
        return first_S, last_S, score_S

    def _highest(self, values_TK: Tensor) -> Tensor:
        """Return the maximum over each sequence, (T, K) -> (S, K), without a gradient."""
        lowest_SK = values_TK.new_full((len(self.lengths_S), values_TK.shape[1]), _LOWEST)
        return lowest_SK.scatter_reduce(0, self.owner_T[:, None].expand_as(values_TK), values_TK, "amax")

    def _places(self) -> Tensor:
        return torch.arange(len(self.owner_T), device=self.owner_T.device)
