"""Joint training: the loss is the sum of both losses for any micro-batches, and every objective can be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from fakes.objectives import random_documents, store_of
from fakes.tasks import labels_head, random_examples
from support.objective_table import built
from support.refusals import refuses
from torch.nn import functional

from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.layers.disentangled import merge
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.tasks.source import TaskSource
from lmtransfer.training.learner import Step
from lmtransfer.training.optim.optimizers import Optimizer
from lmtransfer.training.precision import Precision
from lmtransfer.training.update import StepResult, Updater
from lmtransfer.training.weights import load_weights, weights
from lmtransfer.transfer.joint import JointLearner, JointStream
from lmtransfer.transfer.method import TextShare, TransferMethod

EXAMPLES = TaskSource(random_examples(24))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return store_of(tmp_path_factory.mktemp("store"), random_documents(20, longest=8))


def _joint(name: str, store: TokenStore, **share: Any) -> tuple[JointLearner, Any]:
    """Return a joint learner of a task and an objective, over the objective's small model, and the text's source."""
    text, source, _ = built(name, store, "objective.max_length=16")
    method = TransferMethod(freeze="joint", dropout=0.0, pooling="mean")
    task = method.learner(text.encoder, head=labels_head(2), seed=0)
    learner = JointLearner(task, text, TextShare(**{"weight": 0.5, "tokens": 64, "until": 1.0, **share}))
    learner.arrange(EXAMPLES.build(0, EXAMPLES.plan(0), [0]))
    return learner, source


def _batches(source: Any, cuts: Sequence[Sequence[int]]) -> list[Any]:
    plan = source.plan(0)
    return [source.build(0, plan, rows) for rows in cuts]


class _Keep(Optimizer):
    """An optimizer that stores its gradients and updates nothing."""

    def __init__(self, learner: torch.nn.Module) -> None:
        learning = [parameter for parameter in learner.parameters() if parameter.requires_grad]
        super().__init__(learner, [torch.optim.SGD(learning, lr=0.0)])
        self.kept: dict[str, torch.Tensor] = {}

    def step(self) -> None:
        self.kept = {self.names[id(p)]: p.grad.clone() for p in self.parameters if p.grad is not None}


def _step(learner: JointLearner, micro_batches: Sequence[Any]) -> tuple[StepResult, dict[str, torch.Tensor]]:
    """Return the losses and gradients of a step."""
    optimizer = _Keep(learner)
    updater = Updater(
        learner=learner, optimizer=optimizer, seed=0, device="cpu", precision=Precision(), max_grad_norm=None
    )
    learner.train()
    step = Step(number=0, epoch=0.1, micro_batches=micro_batches)
    return updater.step(step, factor=lambda tokens: 1.0), optimizer.kept


def _mlm_by_hand(text: PretrainingLearner, batch: Any) -> torch.Tensor:
    """Return the mean cross-entropy at the masked positions, from the softmax over the whole vocabulary."""
    (head,) = text.objective_list()
    hidden_TD = text.encoder(batch.inputs).last
    logits_TV = head.token_logits(hidden_TD)
    assert logits_TV is not None
    return functional.cross_entropy(logits_TV[batch.positions_M], batch.targets_M)


@pytest.mark.parametrize("weight", [0.5, 3.0])
def test_the_loss_is_the_sum_of_both_by_hand(weight: float, store: TokenStore) -> None:
    learner, source = _joint("mlm", store, weight=weight)
    (labelled,), (text,) = _batches(EXAMPLES, [range(9)]), _batches(source, [[0, 3, 5, 6]])
    outcome, found = _step(learner, [labelled, text])

    task = functional.cross_entropy(learner.task.logits(labelled), labelled.targets.labels)
    mlm = _mlm_by_hand(learner.text, text)
    (task + weight * mlm).backward()
    expected = {name: p.grad for name, p in learner.named_parameters() if p.grad is not None}
    assert outcome.losses["classification"] == pytest.approx(task.item(), rel=1e-5)
    assert outcome.losses["mlm"] == pytest.approx(mlm.item(), rel=1e-5)
    assert outcome.loss == pytest.approx((task + weight * mlm).item(), rel=1e-5)
    assert outcome.tokens == labelled.num_tokens + text.num_tokens
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("labelled", "text"),
    [
        ([range(4), range(4, 9)], [[0, 3, 5, 6]]),
        ([range(9)], [[0], [3, 5], [6]]),
        ([[0], range(1, 9)], [[0, 3], [5, 6]]),
    ],
)
def test_micro_batches_change_nothing(labelled: Sequence[Any], text: Sequence[Any], store: TokenStore) -> None:
    learner, source = _joint("mlm", store)
    whole = [*_batches(EXAMPLES, [range(9)]), *_batches(source, [[0, 3, 5, 6]])]
    one, expected = _step(learner, whole)
    many, found = _step(learner, [*_batches(EXAMPLES, labelled), *_batches(source, text)])
    assert many.losses == pytest.approx(one.losses, rel=1e-5)
    assert many.loss == pytest.approx(one.loss, rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", ["bilm", "mlm_nsp", "plm", "rtd"])
def test_every_objective_goes_beside_a_task(name: str, store: TokenStore) -> None:
    """Shared parameters learn from both losses and each head from its own; every trained parameter has a gradient."""
    learner, source = _joint(name, store)
    labelled = _batches(EXAMPLES, [range(9)])
    outcome, found = _step(learner, [*labelled, *_batches(source, [range(8)])])
    _, alone = _step(learner, labelled)
    weights = {objective.name: objective.weight for objective in learner.text.objective_list()}
    assert {"classification", *weights} <= outcome.losses.keys()
    assert found.keys() == {name for name, p in learner.named_parameters() if p.requires_grad}
    shared = [key for key in alone if key.startswith("task.encoder.")]
    assert any(not torch.equal(found[key], alone[key]) for key in shared)
    heads = [key for key in alone if not key.startswith("task.encoder.")]
    assert all(torch.equal(found[key], alone[key]) for key in heads)


def test_text_stops_at_its_share_of_the_budget(store: TokenStore) -> None:
    learner, source = _joint("mlm", store, until=0.5)
    labelled = PlannedStream(EXAMPLES, seed=0, batch_examples=6)
    text = PlannedStream(source, seed=1, batch_tokens=64)
    stream = JointStream(labelled, text, reads_text=lambda: learner.reads_text)
    steps, kinds, seen = stream.steps(), [], []
    for number in range(8):
        learner.on_progress(number / 8)
        step = next(steps)
        kinds.append([type(batch).__name__ for batch in step.micro_batches])
        seen.append([batch.keys for batch in step.micro_batches])
    assert kinds == [["TaskBatch", "PretrainingBatch"]] * 4 + [["TaskBatch"]] * 4
    alone = [[next(steps_of).micro_batches for steps_of in (labelled.steps(k), text.steps(k))] for k in range(8)]
    assert seen[:4] == [[batch.keys for part in parts for batch in part] for parts in alone[:4]]
    assert seen[4:] == [[batch.keys for batch in parts[0]] for parts in alone[4:]]
    learner.on_progress(2 / 8)
    resumed = next(stream.steps(2))  # any step can be requested by its index
    assert [batch.keys for batch in resumed.micro_batches] == seen[2]
    assert resumed.number == 2


def test_no_two_micro_batches_of_any_rank_share_a_key(store: TokenStore) -> None:
    _, source = _joint("mlm", store)
    keys = []
    for rank in range(2):
        ranks: dict[str, Any] = {"rank": rank, "world_size": 2, "micro_batch_tokens": 32}
        labelled = PlannedStream(EXAMPLES, seed=0, batch_examples=6, **ranks)
        text = PlannedStream(source, seed=1, batch_tokens=64, **ranks)
        stream = JointStream(labelled, text, reads_text=lambda: True)
        for _, step in zip(range(5), stream.steps(), strict=False):
            keys += [step.key(place) for place in range(len(step.micro_batches))]
    assert len(set(keys)) == len(keys) > 20


@pytest.mark.parametrize("until", [0.0, -0.1, 1.01])
def test_a_share_that_is_none_is_refused(until: float) -> None:
    with refuses(ConfigError, f"transfer.text_until={until}"):
        TransferMethod(freeze="joint", text_until=until)


def test_what_text_alone_trains_of_an_encoder_learns_and_a_pooler_that_none_reads_does_not(store: TokenStore) -> None:
    """The task reads the first layer, not the topmost; only next sentence prediction uses the pooler."""

    def learning(objective: str, layers: int) -> Callable[[str], bool]:
        text, _, _ = built(objective, store, "objective.max_length=16")
        method = TransferMethod(freeze="joint", pooling="mean", layers=layers)
        learner = JointLearner(method.learner(text.encoder, head=labels_head(2), seed=0), text, TextShare(1.0, 64, 1.0))
        learner.arrange(EXAMPLES.build(0, EXAMPLES.plan(0), [0]))
        named = {name: p.requires_grad for name, p in text.encoder.named_parameters()}
        return lambda part: all(is_trained_at for name, is_trained_at in named.items() if part in name)

    assert learning("mlm", 1)("layers.1.")
    assert not learning("mlm", 1)("pooler")
    assert learning("mlm_nsp", 1)("pooler")


def test_an_encoder_that_text_trains_in_parts_is_saved_whole(store: TokenStore) -> None:
    """As with ELECTRA: its table may be the generator's plus a difference, and the model file has the sum."""
    changed = "objective.losses.rtd.embedding_sharing=disentangled"

    def made(seed: int) -> JointLearner:
        text, _, _ = built("rtd", store, "objective.max_length=16", changed)
        torch.manual_seed(seed)
        for parameter in text.parameters():
            torch.nn.init.normal_(parameter)
        task = TransferMethod(freeze="joint", dropout=0.0, pooling="mean").learner(
            text.encoder, head=labels_head(2), seed=seed
        )
        return JointLearner(task, text, TextShare(1.0, 64, 1.0)).eval()

    batch = EXAMPLES.build(0, EXAMPLES.plan(0), range(9))
    learner, again = made(1), made(2)
    saved = {name: weights(part) for name, part in learner.parts().items()}
    assert not torch.equal(again.task.predict(batch), learner.task.predict(batch))
    for name, part in again.parts().items():
        load_weights(part, saved[name])
    assert torch.equal(again.task.predict(batch), learner.task.predict(batch))
    merge(again.task.encoder)
    load_weights(again.task, saved["model"])  # as at the end, when the checkpoint is chosen
    assert torch.equal(again.task.predict(batch), learner.task.predict(batch))
