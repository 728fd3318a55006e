"""Linear heads fitted to frozen encoders: the objective, the choice of C, and scikit-learn as the reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression, Ridge

from lmtransfer.data.files import find_file, read_lines
from lmtransfer.launch.run_once import command_settings
from lmtransfer.models.word_embeddings import WordEmbeddings
from lmtransfer.tasks.heads import LabelSetTargets, LabelTargets, ScoreTargets, TagTargets, Targets
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tokenizers.trainers import SentencePieceTrainer
from lmtransfer.transfer.convex_fit import FOLDS, STRENGTHS, Problem, assign_folds, fit_head, head_inputs
from lmtransfer.transfer.experiment.data import read_task_data
from lmtransfer.transfer.features import compute_features
from lmtransfer.transfer.heads import ClassificationHead, Head, HeadLayers, MultiLabelHead, RegressionHead, TaggingHead
from lmtransfer.transfer.method import TransferMethod
from lmtransfer.transfer.scoring import Outputs, evaluate, score_outputs

Linear = tuple[np.ndarray, np.ndarray]


def _sklearn(inputs: np.ndarray, targets: Targets[Any], strength: float, *, num_logits: int, balanced: bool) -> Linear:
    """Return weight (K, E) and bias (K,) of scikit-learn's optimum."""
    exact = {"tol": 1e-12, "max_iter": 100_000, "class_weight": "balanced" if balanced else None}
    if isinstance(targets, ScoreTargets):
        ridge = Ridge(alpha=1 / (2 * strength)).fit(inputs, np.asarray(targets.scores, np.float64))
        return ridge.coef_[None], np.array([ridge.intercept_])
    if isinstance(targets, LabelSetTargets):
        each = [LogisticRegression(C=strength, **exact).fit(inputs, column) for column in np.asarray(targets.labels).T]
        return np.concatenate([one.coef_ for one in each]), np.concatenate([one.intercept_ for one in each])
    labels = np.asarray(targets.labels if isinstance(targets, LabelTargets) else targets.tags)
    present = np.unique(labels)
    weight, bias = np.zeros((num_logits, inputs.shape[1])), np.full(num_logits, -1e3)
    if len(present) == 2:  # one weight vector w in place of w / 2 and -w / 2, so half of its square counts as a quarter
        one = LogisticRegression(C=2 * strength, **exact).fit(inputs, labels)
        weight[present], bias[present] = np.concatenate([-one.coef_, one.coef_]) / 2, one.intercept_ * [-0.5, 0.5]
    else:
        one = LogisticRegression(C=strength, **exact).fit(inputs, labels)
        weight[present], bias[present] = one.coef_, one.intercept_
    return weight, bias


def _objective(inputs: np.ndarray, targets: Targets[Any], strength: float, linear: Linear, *, balanced: bool) -> float:
    weight, bias = linear
    logits = inputs @ weight.T + bias
    if isinstance(targets, ScoreTargets):
        losses = (logits[:, 0] - np.asarray(targets.scores, np.float64)) ** 2
    elif isinstance(targets, LabelSetTargets):
        losses = np.logaddexp(0, logits) - logits * np.asarray(targets.labels)
    else:
        labels = np.asarray(targets.labels if isinstance(targets, LabelTargets) else targets.tags)
        losses = -log_softmax(logits, axis=1)[np.arange(len(labels)), labels]
        if balanced:
            losses = losses * (len(labels) / (len(np.unique(labels)) * np.bincount(labels)[labels]))
    return float(strength * losses.sum() + (weight**2).sum() / 2)


def _targets(kind: str, signal: np.ndarray) -> Targets[torch.Tensor]:
    if kind == "scores":
        return ScoreTargets(torch.from_numpy(signal[:, 0]).float())
    if kind == "sets":
        return LabelSetTargets(torch.from_numpy((signal > 0.5).astype(np.int8)))
    labels = torch.from_numpy(signal.argmax(1))
    if kind == "tags":
        return TagTargets(torch.arange(len(labels)), torch.ones_like(labels), labels)
    return LabelTargets(labels)


HEADS: dict[str, tuple[str, Callable[[int], Head]]] = {
    "two labels": ("labels", lambda dim: ClassificationHead(HeadLayers(input_dim=dim), num_labels=2)),
    "three labels": ("labels", lambda dim: ClassificationHead(HeadLayers(input_dim=dim), num_labels=3)),
    "balanced": (
        "labels",
        lambda dim: ClassificationHead(HeadLayers(input_dim=dim), num_labels=3, class_weights="balanced"),
    ),
    "sets": ("sets", lambda dim: MultiLabelHead(HeadLayers(input_dim=dim), num_labels=3)),
    "scores": ("scores", lambda dim: RegressionHead(HeadLayers(input_dim=dim))),
    "tags": ("tags", lambda dim: TaggingHead(HeadLayers(input_dim=dim), num_labels=3)),
}


@pytest.mark.parametrize(("dim", "strength"), [(7, 1e-3), (7, 100.0), (150, 1.0)])
@pytest.mark.parametrize("name", HEADS)
def test_it_is_the_optimum_of_scikit_learn(name: str, strength: float, dim: int) -> None:
    kind, make = HEADS[name]
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(90, dim)) * np.geomspace(1, 0.05, dim) + 1
    head = make(dim).train()
    noise = rng.normal(size=(90, head.num_logits))
    targets = _targets(kind, inputs @ rng.normal(size=(dim, head.num_logits)) / np.sqrt(dim) + noise)
    head.begin(targets.map(lambda values: values.numpy()))
    problem = Problem(torch.from_numpy(inputs), targets, head)
    weight, bias = problem.linear(problem.solve(strength))
    balanced = name == "balanced"
    best = _sklearn(inputs, targets, strength, num_logits=head.num_logits, balanced=balanced)
    ours, theirs = (
        _objective(inputs, targets, strength, linear, balanced=balanced)
        for linear in ((weight.numpy(), bias.numpy()), best)
    )
    assert ours <= theirs * (1 + 1e-6)
    logits = inputs @ weight.numpy().T + bias.numpy(), inputs @ best[0].T + best[1]
    np.testing.assert_allclose(logits[0], logits[1], atol=2e-3 * (1 + np.abs(logits[1]).max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sst2", "cola", "stsb", "rte", "wnut17"])
def test_on_real_data_objective_choice_and_score_are_those_of_scikit_learn(
    name: str, data_root: Path, tmp_path: Path
) -> None:
    path = find_file(data_root / "sst2" / "train.tsv")
    assert path is not None
    lines = [line for number, line in read_lines(path) if 1 < number < 3000]
    tokenizer = SentencePieceTrainer(kind="bpe", vocab_size=1024).train(iter(lines), tmp_path)
    settings: Any = command_settings(
        "probe", ["init=x", f"task={name}", "task.num_train=150", f"data_root={data_root}"]
    )
    task = settings.task.build(data_root=str(data_root), cache_dir=str(tmp_path))
    torch.manual_seed(0)
    encoder = WordEmbeddings(vocab_size=tokenizer.vocab_size, dim=12)
    data = read_task_data(task, tokenizer, encoder, seeds=[0], split="test" if name in ("stsb", "wnut17") else "dev")
    method = TransferMethod(freeze="frozen", pooling="mean", pairs="auto", dropout=0.0, standardise=True)
    encoded = data.train.select(data.whole[0, None].train)

    def fitted() -> tuple[Any, TaskSource, Any]:
        learner = method.learner(encoder, head=task.head, seed=0)
        table = compute_features(learner, TaskSource(encoded), folder=None)
        assert learner.standardising is not None
        learner.standardising.fit(table.parts())
        source = TaskSource(encoded, table)
        return learner, source, fit_head(learner, source, task)

    learner, source, optimum = fitted()
    again, _, _ = fitted()
    torch.testing.assert_close(again.head.output.weight, learner.head.output.weight, rtol=0, atol=0)
    inputs, targets = head_inputs(learner, source).numpy(), encoded.targets
    fold = np.repeat(assign_folds(encoded)[encoded.owners], np.diff(encoded.target_offsets))
    options = {"num_logits": learner.head.num_logits, "balanced": False}
    tries = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for strength in STRENGTHS:
            logits = np.zeros((len(fold), learner.head.num_logits))
            for number in range(FOLDS):
                rest, held_out = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
                part = targets.map(lambda values, rest=rest: values[rest])
                weight, bias = _sklearn(inputs[rest], part, strength, **options)
                logits[held_out] = inputs[held_out] @ weight.T + bias
            loss = _objective(
                logits, targets, 1.0, (np.eye(logits.shape[1]), np.zeros(logits.shape[1])), balanced=False
            )
            found = score_outputs(task, encoded, Outputs(logits.astype(np.float32), loss / len(fold)))
            tries.append((not found.collapsed, found.metrics[task.main_metric], -loss, strength))
        tried = [one[1] for one in tries[: len(optimum.tries)]]
        assert [one["score"] for one in optimum.tries] == pytest.approx(tried, abs=5e-3)
        assert optimum.strength == max(tries)[-1]
        best = _sklearn(inputs, targets, optimum.strength, **options)
    ours = (learner.head.output.weight.detach().double().numpy(), learner.head.output.bias.detach().double().numpy())
    values = [_objective(inputs, targets, optimum.strength, linear, balanced=False) for linear in (ours, best)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    scores = [evaluate(learner, task, TaskSource(data.evaluation)).metrics[task.main_metric]]
    with torch.no_grad():
        for parameter, value in zip((learner.head.output.weight, learner.head.output.bias), best, strict=True):
            parameter.copy_(torch.from_numpy(value))
    scores.append(evaluate(learner, task, TaskSource(data.evaluation)).metrics[task.main_metric])
    assert scores[0] == pytest.approx(scores[1], abs=2e-3)
