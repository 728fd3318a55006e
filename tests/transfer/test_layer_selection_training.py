"""Depths of parameters, layer-wise rates, and gradual unfreezing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from fakes.tasks import bert, gpt, labels_head, random_examples
from fakes.training import trainer_of
from support.refusals import refuses
from torch import nn

from lmtransfer.data.stream import PlannedStream
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead
from lmtransfer.tasks.source import TaskBatch, TaskSource
from lmtransfer.training.budget import Budget
from lmtransfer.training.callbacks import Callback
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.loop import Trainer
from lmtransfer.training.optim.optimizer import Optimizer
from lmtransfer.training.optim.optimizers import AdamW, Lamb, Muon
from lmtransfer.training.optim.schedules import Linear
from lmtransfer.transfer.learner import TaskLearner, depths_below_head, rate_scales
from lmtransfer.transfer.method import TransferMethod

SOURCE = TaskSource(random_examples(24))


def _batch() -> TaskBatch:
    return SOURCE.build(0, SOURCE.plan(0), range(5))


class _Shared(Encoder):
    """One layer run three times, an embedding, a projection above it, and a part that only pretraining uses."""

    attention, family_head = "bidirectional", FamilyHead(token="mean")

    def __init__(self) -> None:
        super().__init__(dim=8, num_layers=3, max_length=32, vocab_size=128)
        self.unused = nn.Parameter(torch.zeros(3))
        self.layer = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.project = nn.Linear(4, 8)
        self.token = nn.Embedding(128, 4)

    def forward(self, batch, recurrent_state=None, output_positions=None):
        layers = [self.project(self.token(batch.tokens_T))]
        for _ in range(3):
            layers.append(torch.tanh(self.layer(layers[-1])))
        return EncoderOutput((*layers[:-1], self.norm(layers[-1])))


def _by_module(encoder: nn.Module, num_layers: int) -> dict[str, int]:
    """Depths of BERT and GPT by the names of their modules, written out."""
    found = {}
    for name, _ in encoder.named_parameters():
        if name.startswith("embeddings."):
            found[name] = num_layers + 1
        elif name.startswith("stack.layers."):
            found[name] = num_layers - int(name.split(".")[2])
        elif name.startswith("stack.final_norm."):
            found[name] = 1
    return found


@pytest.mark.parametrize("make", [bert, gpt, lambda: bert(num_layers=4, norm="pre")])
@pytest.mark.parametrize("frozen", [False, True])
def test_depths_are_those_of_the_layers(make, frozen: bool) -> None:
    encoder = make().requires_grad_(not frozen).train()
    state = torch.get_rng_state()
    found = depths_below_head(encoder, _batch().packed, read=[encoder.num_layers])
    assert found == _by_module(encoder, encoder.num_layers)
    assert all(parameter.requires_grad is not frozen for parameter in encoder.parameters())
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert all(module.training for module in encoder.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_shared_layers_count_as_one_and_what_nothing_reads_has_no_depth() -> None:
    encoder = _Shared()
    inside = {"layer.weight": 2, "layer.bias": 2}
    below = {"project.weight": 3, "project.bias": 3, "token.weight": 3}
    found = depths_below_head(encoder, _batch().packed, read=[3])
    assert found == {"norm.weight": 1, "norm.bias": 1, **inside, **below}
    lower = depths_below_head(encoder, _batch().packed, read=[2, 0])
    assert lower == {name: depth - 1 for name, depth in (inside | below).items()}
    assert depths_below_head(encoder, _batch().packed, read=[0]) == dict.fromkeys(below, 1)


def test_arranging_turns_off_what_nothing_reads() -> None:
    learner = TransferMethod(freeze="full", layers=1, pooling="mean").learner(bert(), head=labels_head(2), seed=0)
    learner.arrange(_batch())
    off = {name for name, parameter in learner.named_parameters() if not parameter.requires_grad}
    assert off == {f"encoder.{n}" for n, _ in bert().named_parameters() if n.startswith(("stack.layers.1", "pooler"))}
    whole = TransferMethod(freeze="full").learner(bert(), head=labels_head(2), seed=0)
    whole.arrange(_batch())
    assert all(parameter.requires_grad for parameter in whole.parameters())


def _arranged(freeze: str = "full", encoder: nn.Module | None = None, **changes: object) -> tuple:
    method = TransferMethod(freeze=freeze, **changes)  # type: ignore[arg-type]
    learner = method.learner(encoder or bert(num_layers=3), head=labels_head(2), seed=0)
    learner.arrange(_batch())
    return method, learner


def _peaks(optimizer: Optimizer, learner: TaskLearner) -> dict[str, float]:
    names = {id(parameter): name for name, parameter in learner.named_parameters()}
    peaks: dict[str, float] = {}
    for part in optimizer.parts:
        for group in part.param_groups:
            for parameter in group["params"]:
                assert names[id(parameter)] not in peaks, "in two groups"
                peaks[names[id(parameter)]] = group["peak_lr"]
    return peaks


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("make", [AdamW, Lamb, Muon])
def test_rates_fall_from_the_head_down_in_closed_form(make: type[Optimizer], gap: bool) -> None:
    method, learner = _arranged(layer_decay=0.8, layer_decay_gap=gap)
    optimizer = make(learner=learner, learning_rate=1e-3, lr_scales=method.lr_scales(learner))
    peaks = _peaks(optimizer, learner)
    assert set(peaks) == {name for name, _ in learner.named_parameters()}
    for name, peak in peaks.items():
        if name.startswith("encoder.embeddings."):
            power = 4
        elif name.startswith("encoder.stack.layers."):
            power = 3 - int(name.split(".")[3])
        else:
            assert name.startswith(("head.", "encoder.pooler."))
            power = 0
        assert peak == pytest.approx(1e-3 * 0.8 ** (power + gap * (power > 0))), name
    assert optimizer.learning_rate_at(0.5) == pytest.approx(5e-4)  # logged as without layer-wise rates


def test_the_published_electra_code_has_one_factor_more() -> None:
    """``learning_rate * decay ** (num_layers + 2 - depth)``, depth 0 for embeddings and layer + 1 for layers."""
    depths = {"embeddings": 13, **{f"layer {number}": 12 - number for number in range(12)}}
    scales = rate_scales(depths, decay=0.8, gap=True)
    assert scales["embeddings"] == pytest.approx(0.8**14)
    for number in range(12):
        assert scales[f"layer {number}"] == pytest.approx(0.8 ** (12 + 2 - (number + 1)))


def test_an_update_moves_each_layer_by_its_rate() -> None:
    """Adam's first update has length rate x sign(gradient)."""
    method, learner = _arranged(layer_decay=0.5, dropout=0.0)
    optimizer = AdamW(learner=learner, learning_rate=1e-3, weight_decay=0.0, lr_scales=method.lr_scales(learner))
    before = {name: parameter.detach().clone() for name, parameter in learner.named_parameters()}
    for parameter in learner.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.set_factor(1.0)
    optimizer.step()
    moved = {name: float((before[name] - p.detach()).abs().max()) for name, p in learner.named_parameters()}
    assert moved["head.output.weight"] == pytest.approx(1e-3, rel=1e-2)
    assert moved["encoder.stack.layers.2.feed_forward.contract.bias"] == pytest.approx(5e-4, rel=1e-2)
    assert moved["encoder.embeddings.segment.weight"] == pytest.approx(1e-3 / 16, rel=1e-2)


def _hashes(learner: TaskLearner) -> dict[int, str]:
    """One hash for each depth of the encoder, and one (0) for everything else."""
    digests: dict[int, hashlib._Hash] = {}
    for name, parameter in learner.named_parameters():
        depth = learner.depths.get(name.removeprefix("encoder."), 0)
        digests.setdefault(depth, hashlib.sha256()).update(parameter.detach().numpy().tobytes())
    return {depth: digest.hexdigest() for depth, digest in digests.items()}


class _Stopped(Exception):
    pass


def _trainer(learner: TaskLearner, method: TransferMethod, make: type[Optimizer], folder: Path, **more) -> Trainer:
    return trainer_of(
        learner=learner,
        stream=PlannedStream(SOURCE, seed=3, batch_examples=6),
        optimizer=make(learner=learner, learning_rate=0.01, lr_scales=method.lr_scales(learner)),
        schedule=Linear(warmup_fraction=0.1),
        budget=Budget(steps=20),
        seed=3,
        checkpoints=Checkpoints(folder),
        **more,
    )


class _Recorder(Callback):
    """A callback that hashes every layer after every step."""

    name = "recorder"

    def __init__(self, learner: TaskLearner) -> None:
        self.learner = learner
        self.hashes = [_hashes(learner)]

    def on_step_end(self, outcome, record, *, fraction):
        self.hashes.append(_hashes(self.learner))
        return ()


@pytest.mark.parametrize("make", [AdamW, Lamb, Muon])
def test_a_layer_is_frozen_until_its_time(make: type[Optimizer], tmp_path: Path) -> None:
    """Twenty steps, share 0.4, three layers and embeddings: they join before steps 2, 4, 6 and 8 (counted from 0)."""
    method, learner = _arranged("gradual", unfreeze_share=0.4)
    recorder = _Recorder(learner)
    _trainer(learner, method, make, tmp_path, callbacks=[recorder]).train()
    hashes = recorder.hashes
    for depth, first_step in {0: 0, 1: 2, 2: 4, 3: 6, 4: 8}.items():
        of_layer = [found[depth] for found in hashes]
        changed = [step for step in range(20) if of_layer[step] != of_layer[step + 1]]
        assert changed == list(range(first_step, 20))


def test_a_frozen_layer_has_no_optimiser_state(tmp_path: Path) -> None:
    method, learner = _arranged("gradual", unfreeze_share=0.4)
    trainer = _trainer(learner, method, AdamW, tmp_path)
    learner.on_progress(fraction=0.1)  # the first layer joins
    trainer.updater.step(next(iter(trainer.stream.steps(0))), factor=lambda tokens: 1.0)
    with_state = {key.rpartition("/")[0] for key in trainer.optimizer.state_dict()}
    expected = {n for n, _ in learner.named_parameters() if learner.depths.get(n.removeprefix("encoder."), 0) <= 1}
    assert with_state == expected


@pytest.mark.parametrize("make", [AdamW, Muon])
@pytest.mark.parametrize("stop_at", [3, 5, 9])
def test_resuming_amid_unfreezing_is_exact(make: type[Optimizer], stop_at: int, tmp_path: Path) -> None:
    def parts(folder: str, **more) -> Trainer:
        method, learner = _arranged("gradual", unfreeze_share=0.6, layer_decay=0.5)
        return _trainer(learner, method, make, tmp_path / folder, **more)

    straight = parts("straight")
    straight.train()
    first = parts("resumed", save_every=stop_at)

    def interrupt(step, *, factor, make=first.updater.launch_step):
        if step.number == stop_at:
            raise _Stopped
        return make(step, factor=factor)

    first.updater.launch_step = interrupt  # type: ignore[method-assign]
    with pytest.raises(_Stopped):
        first.train()
    second = parts("resumed")
    second.resume()
    assert second.state.step == stop_at
    second.train()
    for one, other in zip(straight.learner.parameters(), second.learner.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_a_share_outside_the_budget_is_refused(share: float) -> None:
    with refuses(ConfigError, f"transfer.unfreeze_share={share}"):
        TransferMethod(freeze="gradual", unfreeze_share=share)


@pytest.mark.parametrize(("freeze", "decay"), [("full", 0.0), ("full", 1.5), ("frozen", 0.8)])
def test_a_decay_without_sense_is_refused(freeze: str, decay: float) -> None:
    with refuses(ConfigError, f"transfer.layer_decay={decay}"):
        TransferMethod(freeze=freeze, layer_decay=decay)  # type: ignore[arg-type]
