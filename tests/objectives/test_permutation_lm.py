"""Permutation language modeling: the chosen tokens, their order, and no leaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fakes.objectives import TOKENIZER, bert, row_of
from support.refusals import refuses

from lmtransfer.data.batch import pack
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import OutputPositions
from lmtransfer.models.xlnet import XlnetEncoder
from lmtransfer.objectives.corruption.masking import NoCorruption
from lmtransfer.objectives.corruption.permutation import PermutationTargets
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.permutation_lm import PermutationLanguageModel
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource


def xlnet(**changes: Any) -> XlnetEncoder:
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"norm": "post", "max_length": 64, "memory_length": 8, "dropout": 0.0} | changes
    return XlnetEncoder(vocab_size=96, dim=32, num_layers=2, num_heads=2, hidden_dim=64, **arguments)


class TestTargets:
    """The tests of the chosen spans and their order."""

    def test_rate_and_special_tokens(self) -> None:
        rng = np.random.default_rng(0)
        corruption = PermutationTargets(tokenizer=TOKENIZER)
        chosen = of_text = 0
        for _ in range(1500):
            tokens = rng.integers(4, 90, rng.integers(40, 90))
            tokens[rng.random(len(tokens)) < 0.05] = TOKENIZER.sep_id
            corrupted = corruption.corrupt(row_of(tokens), rng)
            assert np.array_equal(corrupted.tokens, tokens)
            assert np.array_equal(corrupted.targets, tokens[corrupted.positions])
            assert (np.diff(corrupted.positions) > 0).all()
            assert not TOKENIZER.is_special[corrupted.targets].any()
            size = int((~TOKENIZER.is_special[tokens]).sum())
            assert len(corrupted.positions) == size // 6
            chosen, of_text = chosen + len(corrupted.positions), of_text + size
        assert chosen / of_text == pytest.approx(1 / 6, abs=0.01)

    def test_orders_are_uniform_permutations_of_the_targets(self) -> None:
        rng = np.random.default_rng(1)
        corruption = PermutationTargets(tokenizer=TOKENIZER)
        seen: dict[tuple[int, ...], int] = {}
        for _ in range(6000):
            corrupted = corruption.corrupt(row_of(np.full(20, 7)), rng)
            order = corrupted.per_token["order"]
            assert np.array_equal(np.flatnonzero(order), corrupted.positions)
            permutation = tuple(order[corrupted.positions].tolist())
            seen[permutation] = seen.get(permutation, 0) + 1
        assert len(seen) == 6
        assert sorted(next(iter(seen))) == [1, 2, 3]
        assert all(count == pytest.approx(1000, abs=4 * 29) for count in seen.values())  # four standard deviations

    def test_spans_have_lengths_as_one_over_n_and_lie_in_contexts_of_their_own(self) -> None:
        rng = np.random.default_rng(2)
        corruption = PermutationTargets(tokenizer=TOKENIZER)
        lengths = []
        for _ in range(300):
            chosen = corruption.choose(600, rng)
            assert len(chosen.positions) == 100
            assert (np.diff(chosen.positions) > 0).all()
            edges = np.flatnonzero(np.diff(chosen.units, prepend=-1, append=-1))
            sizes = np.diff(edges)
            first, last = chosen.positions[edges[:-1]], chosen.positions[edges[1:] - 1]
            assert np.array_equal(last - first + 1, sizes)  # no gaps
            assert first[0] >= 0
            assert last[-1] < 600
            ends = np.cumsum(6 * sizes)  # the contexts cover the row
            assert (first >= ends - 6 * sizes).all()
            assert (last < ends).all()
            lengths.extend(sizes.tolist())
        shares = np.bincount(lengths, minlength=6)[1:] / len(lengths)
        expected = 1 / np.arange(1, 6)
        # The last span of a row, about one in 45, gets the remaining budget.
        assert shares == pytest.approx(expected / expected.sum(), abs=0.02)

    def test_every_place_is_as_likely(self) -> None:
        rng = np.random.default_rng(3)
        corruption = PermutationTargets(max_ngram=1, tokenizer=TOKENIZER)
        counts = np.zeros(27)
        for _ in range(6000):
            counts[corruption.choose(27, rng).positions] += 1
        # Four contexts of 6 in 27 positions: the outer positions are covered in only (k + 1) / 4 of the cases.
        covered = np.minimum(np.minimum(np.arange(27) + 1, 27 - np.arange(27)), 4) / 4
        assert counts / 6000 == pytest.approx(covered / 6, abs=0.02)

    @pytest.mark.parametrize("most", [1, 7, 40])
    def test_max_predictions(self, most: int) -> None:
        rng = np.random.default_rng(4)
        corruption = PermutationTargets(max_predictions=most, tokenizer=TOKENIZER)
        hits = np.zeros(96)
        for _ in range(400):
            corrupted = corruption.corrupt(row_of(np.full(96, 8)), rng)
            assert len(corrupted.positions) == min(most, 16)
            hits[corrupted.positions] += 1
        assert hits[:48].sum() / hits.sum() == pytest.approx(0.5, abs=0.1)

    @pytest.mark.parametrize("size", [0, 1, 2, 5, 6, 11, 12])
    def test_short_rows(self, size: int) -> None:
        corruption = PermutationTargets(tokenizer=TOKENIZER)
        for seed in range(50):
            with_specials = np.concatenate([[1], np.full(size, 9), [2]])
            expected = min(size, max(size // 6, 1))
            rng = np.random.default_rng(seed)
            assert len(corruption.corrupt(row_of(with_specials), rng).positions) == expected
            bare = corruption.corrupt(row_of(np.full(max(size, 1), 9)), rng)
            assert len(bare.positions) == (0 if size < 2 else expected)

    def test_what_makes_no_sense_is_refused(self) -> None:
        for changes in ({"alpha": 1.0}, {"beta": 0.0}):
            ((name, value),) = changes.items()
            with refuses(ConfigError, f"objective.corruption.{name}={value}"):
                PermutationTargets(**changes, tokenizer=TOKENIZER)  # type: ignore[arg-type]


class TestLeaks:
    """The tests of what a query depends on, by gradients."""

    @pytest.mark.parametrize("norm", ["post", "pre"])
    @pytest.mark.parametrize("with_memory", [False, True])
    def test_a_query_depends_on_what_is_before_it_in_the_order_and_on_nothing_else(
        self, norm: str, with_memory: bool
    ) -> None:
        encoder = xlnet(norm=norm).double().eval()
        for parameter in encoder.parameters():
            parameter.data.add_(0.2 * torch.randn_like(parameter))
        rng = np.random.default_rng(5)
        rows = [rng.permutation(np.arange(4, 90))[:n] for n in (11, 17)]  # each token occurs once in a row
        orders = []
        for row in rows:
            order = np.zeros(len(row), dtype=np.int64)
            order[rng.permutation(len(row))[:5]] = np.arange(1, 6)
            orders.append(order)
        batch = pack(rows)
        recurrent_state = (
            encoder(pack([rng.integers(4, 90, 6), rng.integers(4, 90, 6)])).recurrent_state if with_memory else None
        )
        order_T = torch.from_numpy(np.concatenate(orders))
        output_positions = OutputPositions.of(np.flatnonzero(np.concatenate(orders)), batch.cu_seqlens.numpy())
        embedded: list[torch.Tensor] = []

        def keep(module: Any, arguments: Any, result: torch.Tensor) -> torch.Tensor:
            embedded.append(result.detach().requires_grad_())
            return embedded[-1]

        handle = encoder.token_embedding.register_forward_hook(keep)
        output = encoder.two_stream(
            batch, order_T=order_T, output_positions=output_positions, recurrent_state=recurrent_state
        )
        handle.remove()
        sequence_T = np.repeat([0, 1], batch.lengths)
        for place, position in enumerate(output_positions.positions_N.tolist()):
            (gradient,) = torch.autograd.grad(output.last[place].sum(), embedded[0], retain_graph=True)
            depends = gradient.abs().sum(-1).numpy() > 0
            expected = (sequence_T == sequence_T[position]) & (order_T.numpy() < order_T[position].item())
            assert np.array_equal(depends, expected)
        for layer in output.layers[:-1][1:]:  # the content stream also sees its own token
            for position in range(len(order_T)):
                (gradient,) = torch.autograd.grad(layer[position].sum(), embedded[0], retain_graph=True)
                depends = gradient.abs().sum(-1).numpy() > 0
                expected = (sequence_T == sequence_T[position]) & (order_T.numpy() <= order_T[position].item())
                assert np.array_equal(depends, expected)

    def test_queries_of_one_row_do_not_see_one_another(self) -> None:
        encoder = xlnet().eval()
        tokens, order = np.arange(10, 30), torch.zeros(20, dtype=torch.int64)
        order[[3, 9, 15]] = torch.tensor([2, 3, 1])
        batch = pack([tokens])
        with torch.no_grad():
            every = encoder.two_stream(
                batch,
                order_T=order,
                output_positions=OutputPositions.of(np.array([3, 9, 15]), batch.cu_seqlens.numpy()),
            )
            for place, position in enumerate((3, 9, 15)):
                output_positions = OutputPositions.of(np.array([position]), batch.cu_seqlens.numpy())
                alone = encoder.two_stream(batch, order_T=order, output_positions=output_positions)
                torch.testing.assert_close(alone.last[0], every.last[place], atol=1e-5, rtol=1e-5)


def _source(store: TokenStore, *, contiguous: bool = False, static: bool = False) -> PretrainingSource:
    rows = LanguageStream(
        max_length=24, frame="none" if contiguous else "both", contiguous=contiguous, tokenizer=TOKENIZER
    )
    return PretrainingSource(
        store=store,
        rows=rows,
        corruption=PermutationTargets(static_masking=static, tokenizer=TOKENIZER),
        seed=0,
        output_positions={"masked"},
    )


def test_spare_places_and_filler_change_no_loss(store: TokenStore) -> None:
    source = _source(store)
    learner = PretrainingLearner(xlnet(), [PermutationLanguageModel()]).eval()
    plain = source.build(0, source.plan(0), range(5))
    source.few_shapes = True
    filled = source.build(0, source.plan(0), range(5))
    assert len(filled.positions_M) > len(plain.positions_M)
    assert len(filled.inputs.tokens_T) > len(plain.inputs.tokens_T)
    for name, loss in learner.losses(plain)[0].items():
        other = learner.losses(filled)[0][name]
        assert loss.count == other.count == learner.counts(filled)[name] == 5 * (22 // 6)
        torch.testing.assert_close(loss.sum, other.sum)


def test_a_memory_is_carried_where_rows_follow(store: TokenStore) -> None:
    source = _source(store, contiguous=True)
    learner = PretrainingLearner(xlnet(), [PermutationLanguageModel()]).eval()
    plan = source.plan(0)
    first = source.build(0, plan, [0, 4], follows=False)
    second = source.build(0, plan, [1, 5], follows=True)
    _, recurrent_state = learner.losses(first)
    assert [tuple(rows.shape) for rows in recurrent_state] == [(2, 8, 32)] * 2
    without, with_memory = learner.losses(second, None)[0]["plm"], learner.losses(second, recurrent_state)[0]["plm"]
    assert without.sum.item() != pytest.approx(with_memory.sum.item(), rel=1e-6)
    assert learner.losses(source.build(0, plan, [1, 5]), None)[1] is None


def test_what_does_not_fit_is_refused(store: TokenStore) -> None:
    with refuses(ConfigError, "objective=plm", "BertEncoder", "model=xlnet_laptop"):
        PretrainingLearner(bert(), [PermutationLanguageModel()])
    source = _source(store)
    source.corruption = NoCorruption()
    learner = PretrainingLearner(xlnet(), [PermutationLanguageModel()])
    with refuses(ConfigError, "objective=plm", "objective/corruption=permutation"):
        learner.losses(source.build(0, source.plan(0), range(2)))
