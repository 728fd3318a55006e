"""Which parameters are trained, when and at which rate: depths, layer-wise rates, gradual unfreezing, BitFit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fakes.tasks import bert, gpt, labels_head, random_examples
from fakes.training import trainer_of
from support.refusals import refuses
from torch import Tensor, nn

from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead
from lmtransfer.models.modern import ModernEncoder
from lmtransfer.models.word_embeddings import WordEmbeddings
from lmtransfer.models.xlnet import XlnetEncoder
from lmtransfer.tasks.source import TaskBatch, TaskSource
from lmtransfer.training.budget import Budget
from lmtransfer.training.callbacks import Callback
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.loop import Trainer
from lmtransfer.training.optim.optimizers import AdamW, Lamb, Muon, Optimizer
from lmtransfer.training.optim.schedules import Linear
from lmtransfer.transfer.experiment.training_run import train_used_rows
from lmtransfer.transfer.learner import TaskLearner, depths_below_head
from lmtransfer.transfer.method import TransferMethod

SOURCE = TaskSource(random_examples(24))
#: Attention pooling and the scalar mix have parameters of their own, which are new.
NEW = {"layers": "mix", "pooling": "attention"}
SIZES = {"vocab_size": 128, "dim": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 32}


def _batch(step: int = 0) -> TaskBatch:
    return SOURCE.build(0, SOURCE.plan(0), [(7 * step + i) % 24 for i in range(6)])


def _arranged(freeze: str = "full", encoder: nn.Module | None = None, **changes: object) -> tuple:
    method = TransferMethod(freeze=freeze, **{"dropout": 0.0, **changes})  # type: ignore[arg-type]
    learner = method.learner(encoder or bert(num_layers=3, dropout=0.0), head=labels_head(2), seed=0)
    learner.arrange(_batch())
    return method, learner


def _train(method: TransferMethod, learner: TaskLearner, make: type[Optimizer] = AdamW, steps: int = 4) -> Optimizer:
    optimizer = make(learner=learner, learning_rate=0.01, lr_scales=method.lr_scales(learner))  # type: ignore[call-arg]
    learner.train()
    for step in range(steps):
        learner.on_progress(step / steps)
        losses, _ = learner.losses(_batch(step))
        optimizer.zero_grad()
        (losses["classification"].sum / losses["classification"].count).backward()
        optimizer.step()
    return optimizer


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def _peaks(optimizer: Optimizer, learner: TaskLearner) -> dict[str, float]:
    names = {id(parameter): name for name, parameter in learner.named_parameters()}
    peaks: dict[str, float] = {}
    for part in optimizer.parts:
        for group in part.param_groups:
            for parameter in group["params"]:
                assert names[id(parameter)] not in peaks, "in two groups"
                peaks[names[id(parameter)]] = group["peak_lr"]
    return peaks


class _Shared(Encoder):
    """An embedding, a projection above it, one layer that runs three times, and a part that only pretraining uses."""

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
    """Return the depths of BERT and GPT, written out by module name."""
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


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("make", [AdamW, Lamb, Muon])
def test_rates_in_closed_form(make: type[Optimizer], gap: bool) -> None:
    """Three layers: decay ** depth, times the embeddings' factor; the head has its own factor, the pooler has 1."""
    method, learner = _arranged(layer_decay=0.8, layer_decay_gap=gap, embedding_rate=0.25, head_rate=3.0)
    optimizer = make(learner=learner, learning_rate=1e-3, lr_scales=method.lr_scales(learner))  # type: ignore[call-arg]
    peaks = _peaks(optimizer, learner)
    assert set(peaks) == {name for name, _ in learner.named_parameters()}
    for name, peak in peaks.items():
        if name.startswith("encoder.embeddings."):
            factor = 0.25 * 0.8 ** (4 + gap)
        elif name.startswith("encoder.stack.layers."):
            factor = 0.8 ** (3 - int(name.split(".")[3]) + gap)
        else:
            factor = 1.0 if name.startswith("encoder.pooler.") else 3.0
        assert peak == pytest.approx(1e-3 * factor), name
    assert optimizer.learning_rate_at(0.5) == pytest.approx(5e-4)  # logged as without layer-wise rates


def test_the_published_electra_code_has_one_factor_more() -> None:
    """``learning_rate * decay ** (num_layers + 2 - depth)``, depth 0 for embeddings and layer + 1 for layers."""
    depths = {"embeddings": 13, **{f"layer {number}": 12 - number for number in range(12)}}
    method = TransferMethod(freeze="full", layer_decay=0.8, layer_decay_gap=True)
    scales = method.lr_scales(SimpleNamespace(depths=depths, named_parameters=lambda: ()))  # type: ignore[arg-type]
    assert scales["encoder.embeddings"] == pytest.approx(0.8**14)
    for number in range(12):
        assert scales[f"encoder.layer {number}"] == pytest.approx(0.8 ** (12 + 2 - (number + 1)))


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
    """Return one hash per depth of the encoder, and one (depth 0) for everything else."""
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


@pytest.mark.parametrize("make", [AdamW, Muon])
def test_a_layer_is_frozen_until_its_time(make: type[Optimizer], tmp_path: Path) -> None:
    """With 20 steps, share 0.4, three layers and embeddings: they are unfrozen before steps 2, 4, 6 and 8 (from 0)."""
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
    learner.on_progress(fraction=0.1)  # the first layer is unfrozen
    trainer.updater.step(next(iter(trainer.stream.steps(0))), factor=lambda tokens: 1.0)
    with_state = {key.rpartition("/")[0] for key in trainer.optimizer.state_dict()}
    expected = {n for n, _ in learner.named_parameters() if learner.depths.get(n.removeprefix("encoder."), 0) <= 1}
    assert with_state == expected


@pytest.mark.parametrize(("make", "stop_at"), [(AdamW, 3), (Muon, 9)])
def test_resuming_amid_unfreezing_is_exact(make: type[Optimizer], stop_at: int, tmp_path: Path) -> None:
    def parts(folder: str, **more) -> Trainer:
        method, learner = _arranged("gradual", bert(num_layers=3), dropout=0.1, unfreeze_share=0.6, layer_decay=0.5)
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


@pytest.mark.parametrize(("make", "freeze"), [(AdamW, "full"), (Lamb, "full"), (Muon, "gradual")])
def test_frozen_embeddings_stay_bit_for_bit_and_no_optimiser_knows_them(make: type[Optimizer], freeze: str) -> None:
    method, learner = _arranged(freeze=freeze, embedding_rate=0, **NEW)
    before = _state(learner)
    optimizer = _train(method, learner, make)
    after = _state(learner)
    same = {name for name in before if torch.equal(before[name], after[name])}
    embeddings = {name for name in before if name.startswith("encoder.embeddings.")}
    assert len(embeddings) == 5  # three tables, and the norm's gain and offset
    assert same & {name for name in before if not name.startswith("encoder.pooler.")} == embeddings
    assert not embeddings & set(_peaks(optimizer, learner))
    assert all(learner.get_parameter(name).grad is None for name in embeddings)


def test_the_embeddings_of_frozen_embeddings_have_no_graph() -> None:
    _, learner = _arranged(encoder=gpt(), embedding_rate=0, pooling="mean")
    layers = learner.encoder(_batch().packed).layers
    assert layers[0].grad_fn is None
    assert layers[1].grad_fn is not None


def test_only_rows_in_use_are_learnt_where_embeddings_learn_at_all() -> None:
    _, learner = _arranged(embedding_rate=0)
    assert not train_used_rows(learner.encoder, SOURCE.encoded.tokens_T)
    _, learner = _arranged(embedding_rate=0.5)
    assert train_used_rows(learner.encoder, SOURCE.encoded.tokens_T)
    learner.arrange(_batch())
    method = TransferMethod(freeze="full", embedding_rate=0.5)
    scales = method.lr_scales(learner)
    assert scales["encoder.embeddings.token.rows"] == scales["encoder.embeddings.position.weight"] == 0.5


def test_what_mixes_and_composes_is_as_new_as_the_head() -> None:
    method, learner = _arranged(head_rate=2.0, **NEW)
    fast = {name for name, scale in method.lr_scales(learner).items() if scale == 2.0}
    assert fast == {name for name, _ in learner.named_parameters() if not name.startswith("encoder.")}
    assert {"reading.scalars", "reading.gamma", "composition.score.weight", "head.output.bias"} <= fast


def test_an_embedding_layer_that_is_all_that_is_read_is_the_embedding_layer() -> None:
    method, learner = _arranged(layers=0, pooling="mean", embedding_rate=0.5)
    scales = method.lr_scales(learner)
    assert {name for name, scale in scales.items() if scale == 0.5} == {
        name for name in scales if name.startswith("encoder.embeddings.")
    }


def test_rates_of_one_change_nothing() -> None:
    learners = []
    for changes in ({}, {"embedding_rate": 1.0, "head_rate": 1.0}):
        method, learner = _arranged(**changes)
        _train(method, learner)
        learners.append(_state(learner))
    bare = TransferMethod(freeze="full", dropout=0.0).learner(
        bert(num_layers=3, dropout=0.0), head=labels_head(2), seed=0
    )
    optimizer = AdamW(learner=bare, learning_rate=0.01)  # no layer-wise rates at all
    for step in range(4):
        losses, _ = bare.losses(_batch(step))
        optimizer.zero_grad()
        (losses["classification"].sum / losses["classification"].count).backward()
        optimizer.step()
    learners.append(_state(bare))
    for name, tensor in learners[0].items():
        assert all(torch.equal(tensor, other[name]) for other in learners[1:]), name


def _moved(learner: TaskLearner) -> set[str]:
    """Train with weight decay; return the tensors that change, after checking that no other tensor has a gradient."""
    before = _state(learner)
    optimizer = AdamW(learner=learner, learning_rate=0.05, weight_decay=0.1)
    learner.train()
    for step in range(3):
        losses, _ = learner.losses(_batch(step))
        optimizer.zero_grad()
        losses["classification"].sum.backward()
        optimizer.step()
    learner.on_progress(1.0)
    moved = {name for name, tensor in _state(learner).items() if not torch.equal(tensor, before[name])}
    assert {name for name, parameter in learner.named_parameters() if parameter.grad is not None} == moved
    return moved


@pytest.mark.parametrize("make", [bert, gpt])
def test_with_bitfit_the_biases_and_the_head_move(make) -> None:
    _, learner = _arranged("bitfit", make(), pooling="mean")
    biases = {name for name in _state(learner) if name.endswith(".bias") and ".pooler." not in name}
    assert _moved(learner) == biases | {"head.output.weight"}
    _, family = _arranged("bitfit", make())
    assert make is gpt or "encoder.pooler.dense.weight" in _moved(family)  # the pooler is part of the head


def test_the_biases_of_relative_attention_are_those_of_the_queries() -> None:
    _, learner = _arranged("bitfit", XlnetEncoder(**SIZES, num_segments=1))
    moved = _moved(learner)
    for layer in range(2):
        assert {f"encoder.stack.layers.{layer}.biases.{kind}" for kind in ("content", "position")} <= moved
    assert not any(name.endswith(("query", "same_or_different")) for name in moved)
    assert {name for name in moved if name.endswith("weight")} == {"head.hidden.weight", "head.output.weight"}


@pytest.mark.parametrize("make", [lambda: WordEmbeddings(vocab_size=128, dim=16), lambda: ModernEncoder(**SIZES)])
def test_an_encoder_without_biases_is_refused(make) -> None:
    encoder = make()
    with refuses(ConfigError, "transfer=bitfit", type(encoder).__name__, "transfer=frozen"):
        _arranged("bitfit", encoder)


@pytest.mark.parametrize(
    ("freeze", "changes", "names"),
    [
        *(("gradual", {"unfreeze_share": share}, ()) for share in (0.0, 1.0, -1.0)),
        *(("full", {"layer_decay": decay}, ()) for decay in (0.0, 1.5)),
        *(("full", {"embedding_rate": rate}, ("[0, 10]",)) for rate in (-0.1, 10.5, float("nan"))),
        *(("full", {"head_rate": rate}, ()) for rate in (0.0, -1.0, float("nan"))),
        *(("frozen", {key: 0.5}, ()) for key in ("embedding_rate", "head_rate", "layer_decay")),
        ("bitfit", {"layer_decay": 0.5, "embedding_rate": 0}, ()),
    ],
)
def test_rates_and_shares_that_cannot_be_are_refused(freeze, changes: dict[str, float], names: tuple[str, ...]) -> None:
    given = [f"transfer.{key}={value}" for key, value in changes.items()]
    method = [f"transfer.freeze={freeze}"] if freeze in ("frozen", "bitfit") else []
    with refuses(ConfigError, *given, *method, *names):
        TransferMethod(freeze=freeze, **changes)  # type: ignore[arg-type]
