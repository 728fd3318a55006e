"""Contiguous rows in parallel streams, and a model with a recurrent memory that reads them."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.objectives import NumberTokenizer, random_documents, store_of
from fakes.training import trainer_of
from support.refusals import refuses

from lmtransfer.data.batch import pack
from lmtransfer.data.micro_batches import PlannedStream, contiguous_streams, evaluation_batches
from lmtransfer.errors import ConfigError, TrainingError
from lmtransfer.models.transformer_xl import TransformerXlEncoder
from lmtransfer.objectives.corruption.masking import NoCorruption
from lmtransfer.objectives.language_model import LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.training.budget import Budget
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.loop import Trainer
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.training.optim.schedules import Linear
from lmtransfer.training.recurrent_state import redistribute

TOKENIZER = NumberTokenizer()
LENGTH = 8


def _source(tmp_path: Path, *, documents: int = 9, few_shapes: bool = False) -> PretrainingSource:
    return PretrainingSource(
        store=store_of(tmp_path / "s", random_documents(documents)),
        rows=LanguageStream(max_length=LENGTH, frame="none", contiguous=True, tokenizer=TOKENIZER),
        corruption=NoCorruption(),
        seed=0,
        few_shapes=few_shapes,
    )


def _stream(tmp_path: Path, **changes: Any) -> PlannedStream:
    settings: dict[str, Any] = {"seed": 0, "batch_tokens": 4 * LENGTH + 3, "contiguous": True} | changes
    return PlannedStream(_source(tmp_path), **settings)


def _learner(**changes: Any) -> PretrainingLearner:
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"memory_length": 12, "dropout": 0.0, "norm": "pre"} | changes
    encoder = TransformerXlEncoder(vocab_size=96, dim=16, num_layers=2, num_heads=2, hidden_dim=32, **arguments)
    return PretrainingLearner(encoder, [LanguageModel()])


def _trainer(tmp_path: Path, learner: PretrainingLearner, *, steps: int = 9, **changes: Any) -> Trainer:
    source = _source(tmp_path)
    settings: dict[str, Any] = {
        "stream": PlannedStream(source, seed=0, batch_tokens=4 * LENGTH, contiguous=True),
        "optimizer": AdamW(learner=learner, learning_rate=0.01),
        "schedule": Linear(),
        "budget": Budget(steps=steps),
        "seed": 3,
        "max_grad_norm": 1.0,
    }
    return trainer_of(learner=learner, **(settings | changes))


class TestPlan:
    """Return the rows of each stream and step."""

    @pytest.mark.parametrize(("num_rows", "num_streams"), [(12, 3), (14, 3), (5, 5), (7, 1)])
    def test_each_lane_is_a_stretch_of_the_text(self, num_rows: int, num_streams: int) -> None:
        lengths = np.array([LENGTH] * num_rows + [3])
        order, edges = contiguous_streams(lengths, batch_examples=num_streams)
        steps = [order[first:last].tolist() for first, last in zip(edges, edges[1:], strict=False)]
        num_steps = num_rows // num_streams
        assert steps == [[stream * num_steps + step for stream in range(num_streams)] for step in range(num_steps)]
        by_tokens, _ = contiguous_streams(lengths, batch_tokens=num_streams * LENGTH + LENGTH - 1)
        assert np.array_equal(order, by_tokens)

    def test_too_few_rows_or_tokens_are_refused(self) -> None:
        with refuses(ConfigError, "4 rows", "8 tokens", "5", "train.batch_tokens", "objective.max_length"):
            contiguous_streams(np.array([8, 8, 8, 8, 2]), batch_examples=5)
        with refuses(ConfigError, "train.batch_tokens=7", "8 tokens"):
            contiguous_streams(np.array([8, 8]), batch_tokens=7)


class TestStream:
    """Return the steps of contiguous streams."""

    def test_each_row_goes_on_where_the_same_row_of_the_step_before_ended(self, tmp_path: Path) -> None:
        stream = _stream(tmp_path)
        in_epoch = stream.steps_in(0)
        assert in_epoch > 5
        steps = list(islice(stream.steps(), 2 * in_epoch + 1))
        batches = [step.micro_batches[0] for step in steps]
        assert all(len(step.micro_batches) == 1 for step in steps)
        assert all(batch.num_tokens == 32 for batch in batches)
        assert [batch.follows for batch in batches] == ([False] + [True] * (in_epoch - 1)) * 2 + [False]
        for before, after in zip(batches, batches[1:], strict=False):
            if not after.follows:
                continue
            tokens, following = (batch.inputs.tokens_T.view(4, LENGTH) for batch in (before, after))
            assert torch.equal(before.labels["next_token"], following[:, 0])
            assert torch.equal(after.labels["previous_token"], tokens[:, -1])
        text = _source(tmp_path).plan(0)
        first = torch.stack([batch.inputs.tokens_T.view(4, LENGTH) for batch in batches[:in_epoch]], 1)
        rows = [text.row(i).tokens for i in range(4 * in_epoch)]
        assert first.reshape(-1).tolist() == np.concatenate(rows).tolist()

    @pytest.mark.parametrize("num_workers", [1, 3])
    @pytest.mark.filterwarnings("ignore:This DataLoader will create")
    def test_workers_change_nothing(self, tmp_path: Path, num_workers: int) -> None:
        alone = _taken(_stream(tmp_path, micro_batch_tokens=16), 12)
        assert _taken(_stream(tmp_path, micro_batch_tokens=16, num_workers=num_workers), 12) == alone

    @pytest.mark.parametrize("start", [1, 4, 11])
    def test_a_resumed_stream_goes_on_with_the_same_steps(self, tmp_path: Path, start: int) -> None:
        assert _taken(_stream(tmp_path), 5, start) == _taken(_stream(tmp_path), start + 5)[start:]

    def test_micro_batches_and_ranks_keep_the_lanes(self, tmp_path: Path) -> None:
        whole = _taken(_stream(tmp_path), 12)
        for world_size in (1, 2):
            ranks = [
                _taken(_stream(tmp_path, micro_batch_tokens=16, rank=rank, world_size=world_size), 12)
                for rank in range(world_size)
            ]
            for number, ((_, rows),) in enumerate(whole):
                parts = [batch for steps in ranks for batch in steps[number]]
                assert [len(keys) for _, keys in parts] == [2, 2]
                assert tuple(key for _, keys in parts for key in keys) == rows


def _taken(stream: PlannedStream, count: int, start: int = 0) -> list[Any]:
    """Return, for each micro-batch, whether it continues the previous one, and its tokens."""
    return [
        [(batch.follows, batch.keys) for batch in step.micro_batches] for step in islice(stream.steps(start), count)
    ]


class TestMemory:
    """A model that reads contiguous streams with a recurrent memory."""

    def test_lanes_of_one_text_have_the_loss_of_one_long_row(self, tmp_path: Path) -> None:
        source = _source(tmp_path)
        plan = source.plan(0)
        text = np.concatenate([plan.row(i).tokens for i in range(len(plan.lengths))])
        size = len(text)
        learner = _learner(memory_length=size, max_length=size + 1).double().eval()
        tokens = np.append(text, text[0]).astype(np.int64)  # the documents form a ring
        encoder: Any = learner.encoder

        def loss_of(first: int, last: int) -> float:
            with torch.no_grad():
                logits = encoder(pack([tokens[first:last]])).last @ encoder.token_embedding.weight.T
            following = torch.from_numpy(tokens[first + 1 : last + 1])
            return torch.nn.functional.cross_entropy(logits, following, reduction="sum").item()

        # One stream of all full rows, and one with the remaining short row at the end.
        full = int((plan.lengths == LENGTH).sum()) * LENGTH
        assert 0 < size - full < LENGTH
        expected = (loss_of(0, full) + loss_of(full, size)) / size
        measured = evaluate_losses(learner, evaluation_batches(source, micro_batch_tokens=LENGTH, num_streams=1))
        assert measured["lm"] == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("max_tokens", [None, 100])
    def test_the_loss_of_lanes_does_not_depend_on_the_batch_size(self, tmp_path: Path, max_tokens: int | None) -> None:
        source, learner = _source(tmp_path), _learner().double()
        seen, measured = [], []
        for micro_batch_tokens in (1, LENGTH, 3 * LENGTH, 10_000):
            batches = list(
                evaluation_batches(source, micro_batch_tokens=micro_batch_tokens, num_streams=5, max_tokens=max_tokens)
            )
            assert all(batch.num_tokens <= max(micro_batch_tokens, LENGTH) for batch in batches)
            seen.append(sorted(key for batch in batches for key in batch.keys))
            measured.append(evaluate_losses(learner, batches))
        assert seen[0] == seen[1] == seen[2] == seen[3]
        for other in measured[1:]:
            assert other == pytest.approx(measured[0], rel=1e-9)

    @pytest.mark.parametrize("num_streams", [1, 7, 10_000])
    def test_evaluation_of_lanes_counts_each_token_once(self, tmp_path: Path, num_streams: int) -> None:
        source = _source(tmp_path)
        every = sorted(source.plan(0).row(i).key for i in range(len(source.plan(0).lengths)))
        for world_size in (1, 2, 5):
            batches = [
                batch
                for rank in range(world_size)
                for batch in evaluation_batches(
                    source, micro_batch_tokens=24, num_streams=num_streams, rank=rank, world_size=world_size
                )
            ]
            assert sorted(key for batch in batches for key in batch.keys) == every
            for before, after in pairwise(batches):
                if after.follows:
                    firsts = after.inputs.tokens_T[after.inputs.cu_seqlens[:-1].long()]
                    assert torch.equal(before.labels["next_token"], firsts)
        some = list(evaluation_batches(source, micro_batch_tokens=24, max_tokens=100, num_streams=3))
        assert [batch.num_tokens for batch in some] == [24] * 4

    def test_micro_batches_change_no_gradient(self, tmp_path: Path) -> None:
        weights = []
        for micro_batch_tokens, few_shapes in ((None, False), (16, True), (8, False)):
            learner = _learner().double()
            stream = PlannedStream(
                _source(tmp_path, few_shapes=few_shapes),
                seed=0,
                batch_tokens=4 * LENGTH,
                micro_batch_tokens=micro_batch_tokens,
                contiguous=True,
            )
            _trainer(tmp_path, learner, stream=stream).train()
            weights.append(torch.cat([parameter.detach().flatten() for parameter in learner.parameters()]))
        torch.testing.assert_close(weights[0], weights[1], atol=1e-9, rtol=1e-6)
        torch.testing.assert_close(weights[0], weights[2], atol=1e-9, rtol=1e-6)

    def test_the_memory_is_used_and_dropped_at_an_epochs_start(self, tmp_path: Path) -> None:
        learner = _learner().double().eval()
        stream = _stream(tmp_path)
        in_epoch = stream.steps_in(0)
        recurrent_state: Any = None
        for step in islice(stream.steps(), in_epoch + 1):
            (batch,) = step.micro_batches
            with_memory, after = learner.losses(batch, recurrent_state)
            alone, _ = learner.losses(batch, None)
            same = torch.equal(with_memory["lm"].sum, alone["lm"].sum)
            assert same == (step.number in (0, in_epoch))
            recurrent_state = after
            assert [tuple(rows.shape) for rows in recurrent_state] == [(4, 12 if batch.follows else 8, 16)] * 2

    @pytest.mark.parametrize(("stop", "micro_batch_tokens"), [(3, None), (4, 16), (13, None)])
    def test_resumed_with_memory_is_bit_identical(
        self, tmp_path: Path, stop: int, micro_batch_tokens: int | None
    ) -> None:
        def trainer(folder: Path, steps: int, **changes: Any) -> Trainer:
            learner = _learner(dropout=0.2)
            stream = _stream(tmp_path, micro_batch_tokens=micro_batch_tokens)
            checkpoints = Checkpoints(folder / "checkpoints")
            return _trainer(tmp_path, learner, steps=steps, stream=stream, checkpoints=checkpoints, **changes)

        straight = trainer(tmp_path / "a", 17)
        straight.train()
        torch.manual_seed(99)
        # The schedule follows the budget, so the first part has the whole budget and is interrupted.
        broken = trainer(tmp_path / "b", 17, save_every=stop)
        steps, original = iter(range(stop)), broken.updater.launch_step

        def interrupted(step: Any, **settings: Any) -> Any:
            if next(steps, None) is None:
                raise KeyboardInterrupt
            return original(step, **settings)

        broken.updater.launch_step = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            broken.train()
        resumed = trainer(tmp_path / "b", 17)
        resumed.resume()
        assert resumed.state.step == stop
        assert resumed.updater.recurrent_states[0] is not None
        resumed.train()
        ours, theirs = resumed.learner.state_dict(), straight.learner.state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


class TestRecut:
    """Recurrent states for a different split into micro-batches."""

    def test_rows_keep_their_order(self) -> None:
        memory = [torch.arange(12.0).view(6, 2), torch.arange(6.0).view(6, 1)]
        whole = {0: tuple(memory)}
        parts = redistribute(whole, [2, 4])
        assert [[len(tensor) for tensor in parts[place]] for place in (0, 1)] == [[2, 2], [4, 4]]
        again = redistribute(redistribute(parts, [1, 2, 3]), [6])
        assert list(again) == [0]
        assert all(torch.equal(local, tensor) for local, tensor in zip(again[0], memory, strict=True))
        assert redistribute({0: None, 1: None}, [3]) == {0: None, 1: None}
        assert redistribute({}, [3]) == {}

    def test_another_number_of_rows_is_refused(self) -> None:
        with refuses(TrainingError, "[6]", "[3, 4]", "train.micro_batch_tokens"):
            redistribute({0: torch.zeros(6, 2)}, [3, 4])

    def test_a_smaller_micro_batch_in_the_middle_of_a_run_changes_no_loss(self, tmp_path: Path) -> None:
        weights = []
        for smaller in (None, 16):
            learner = _learner().double()
            stream = _stream(tmp_path)
            trainer = _trainer(tmp_path, learner, stream=stream, steps=6)
            steps = islice(stream.steps(), 6)
            for number, step in enumerate(steps):
                if smaller and number >= 3:
                    stream.set_micro_batch_tokens(smaller)
                    step = next(iter(stream.steps(number)))
                trainer.updater.step(step, factor=lambda tokens: 1.0)
            weights.append(torch.cat([parameter.detach().flatten() for parameter in learner.parameters()]))
        torch.testing.assert_close(weights[0], weights[1], atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("world_size", [1, 2, 8])
@pytest.mark.parametrize("contiguous", [True, False])
def test_batches_of_a_fixed_size_are_full(tmp_path: Path, world_size: int, contiguous: bool) -> None:
    """60 rows in a step, as in Transformer-XL's recipe, which eight ranks cannot share equally."""
    documents = random_documents(300, most_sentences=40, longest=20)
    rows = LanguageStream(max_length=48, frame="none", contiguous=contiguous, tokenizer=TOKENIZER)
    real = computed = 0
    for rank in range(world_size):
        source = PretrainingSource(
            store=store_of(tmp_path / str(rank), documents), rows=rows, corruption=NoCorruption(), seed=0
        )
        stream = PlannedStream(
            source, seed=0, batch_tokens=60 * 48, rank=rank, world_size=world_size, contiguous=contiguous
        )
        source.capacity = stream.capacity(48)
        for step in islice(stream.steps(), 4):
            (batch,) = step.micro_batches
            computed += len(batch.original.tokens_T)
            real += int(batch.original.cu_seqlens[len(batch.keys)])
    assert real == 4 * 60 * 48
    assert real / computed == (1 if contiguous or world_size < 8 else 60 / 64)
