"""Fit the linear head of a frozen encoder to its optimum: a convex problem, without learning rate, epochs or chance.

The head minimises ``C * sum of losses + ||W||^2 / 2`` over its weights W and its biases, which are not penalised:
logistic regression for labels, sets of labels and tags, ridge regression for numbers. C has the meaning that it has in
scikit-learn's multinomial logistic regression, and is chosen by cross-validation inside the training examples.

The problem is solved in coordinates in which its curvature is nearly the same in all directions: the eigenvectors of
the inputs' covariance, each scaled by the root of the curvature along it. There L-BFGS needs tens of iterations.

Shape legend: R rows (sequences, or words for tagging), E width of the head's input, K logits, F eigenvectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from lmtransfer.tasks.base import Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.targets import Targets
from lmtransfer.transfer.evaluation import Outputs, evaluation_mode, score_outputs
from lmtransfer.transfer.heads.base import Head
from lmtransfer.transfer.learner import TaskLearner

#: The values of C to choose from.
STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
FOLDS = 3
#: With more rows a head is trained in batches: features may be larger than the memory, and a penalty matters less.
MOST_ROWS = 20_000
#: Curvature of a loss per row, for the scale of the coordinates; the cross-entropy of two labels has at most this.
_CURVATURE = 0.25
#: Eigenvalues that are smaller than this share of the largest are rounding.
_RANK = 1e-12
_SEQUENCES_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Optimum:
    """The choice that a fit made.

    Attributes:
        strength: C.
        score: the main metric of this C over the examples, each answered by a fit on the other folds.
        tries: C, score and loss of every value.
    """

    strength: float
    score: float
    tries: list[dict[str, float]]


def fit_head(learner: TaskLearner, source: TaskSource, task: Task) -> Optimum:
    """Choose C by the task's main metric (ties: loss), then fit the head on all examples.

    Args:
        learner: a learner whose head is convex; the head gets the solution.
        source: the training examples with their features.
        task: the task, which scores the answers to held-out examples.
    """
    head, encoded = learner.head, source.encoded
    head.train()
    targets = encoded.targets.each(torch.from_numpy)
    problem = Problem(head_inputs(learner, source), targets, head)
    fold_R = np.repeat(folds_of(encoded)[encoded.owners], np.diff(encoded.target_offsets))
    everything = np.arange(len(fold_R))
    solutions: dict[int, Tensor] = {}
    tries = []
    for strength in STRENGTHS:
        logits_RK = torch.zeros(len(fold_R), head.num_logits, dtype=torch.float64)
        for fold in range(int(fold_R.max()) + 1):
            held_out = np.flatnonzero(fold_R == fold)
            rest = np.flatnonzero(fold_R != fold)
            solutions[fold] = problem.solve(rest, strength, start=solutions.get(fold))
            logits_RK[held_out] = problem.logits(solutions[fold], held_out)
        with evaluation_mode(head):
            loss = float(head.row_loss(logits_RK, targets)) / max(1, len(fold_R))
        metrics = score_outputs(task, encoded, Outputs(logits_RK.float().numpy(), loss)).metrics
        tries.append({"C": strength, "score": metrics[task.main_metric], "loss": loss})
    best = max(tries, key=lambda one: (one["score"], -one["loss"]))
    weight_KE, bias_K = problem.weights(problem.solve(everything, best["C"]))
    with torch.no_grad():
        head.output.weight.copy_(weight_KE)
        head.output.bias.copy_(bias_K)
    return Optimum(best["C"], best["score"], tries)


def head_inputs(learner: TaskLearner, source: TaskSource) -> Tensor:
    """The input of the linear layer for each row of the targets, float64, (R, E)."""
    parts = []
    with evaluation_mode(learner), torch.no_grad():
        for start in range(0, len(source.encoded), _SEQUENCES_AT_ONCE):
            stop = min(start + _SEQUENCES_AT_ONCE, len(source.encoded))
            batch = source.build(0, source.plan(0), range(start, stop))
            assert batch.features is not None, "a fit needs the features of a frozen encoder"
            features = batch.features if learner.standardising is None else learner.standardising.cpu()(batch.features)
            parts.append(learner.head.rows(features.double(), batch))
    return torch.cat(parts)


def folds_of(encoded: EncodedExamples) -> np.ndarray:
    """The fold of each example: groups of examples are dealt label by label, in the order of the file."""
    labels: dict[str, int] = {}
    units = [example.group or f"\0{place}" for place, example in enumerate(encoded.examples)]
    for unit, example in zip(units, encoded.examples, strict=True):
        labels.setdefault(unit, example.class_index)
    dealt = {unit: place % FOLDS for place, unit in enumerate(sorted(labels, key=lambda unit: labels[unit]))}
    return np.array([dealt[unit] for unit in units])


class Problem:
    """The convex problem of a head for some training rows.

    Args:
        inputs_RE: inputs of the linear layer, float64.
        targets: the targets, one for each row.
        head: gives the loss of logits.
    """

    def __init__(self, inputs_RE: Tensor, targets: Targets[Tensor], head: Head) -> None:
        self.targets, self.head = targets, head
        self.mean_E = inputs_RE.mean(0)
        centred_RE = inputs_RE - self.mean_E
        if len(inputs_RE) < inputs_RE.shape[1]:
            values_F, vectors_RF = torch.linalg.eigh(centred_RE @ centred_RE.T)
            real_F = values_F > _RANK * values_F[-1]
            self.values_F = values_F[real_F]
            self.vectors_EF = centred_RE.T @ vectors_RF[:, real_F] / self.values_F.sqrt()
        else:
            self.values_F, self.vectors_EF = torch.linalg.eigh(centred_RE.T @ centred_RE)
        coordinates_RF = centred_RE @ self.vectors_EF
        self.coordinates_RF1 = torch.cat([coordinates_RF, torch.ones_like(coordinates_RF[:, :1])], dim=1)

    def solve(self, rows: np.ndarray, strength: float, *, start: Tensor | None = None) -> Tensor:
        """The optimum for some rows, float64, (K, F + 1): the weights of the coordinates, and the bias.

        Args:
            rows: numbers of the rows.
            strength: C.
            start: a solution to begin from.
        """
        inputs = self.coordinates_RF1[rows]
        targets = self.targets.each(lambda values: values[rows])
        share, num = len(rows) / len(self.coordinates_RF1), len(rows)
        penalty_F1 = torch.cat([torch.ones_like(self.values_F), torch.zeros(1, dtype=torch.float64)]) / (strength * num)
        curvature_F1 = torch.cat([self.values_F.clamp(min=0) * share / num, torch.ones(1, dtype=torch.float64)])
        scale_F1 = (_CURVATURE * curvature_F1 + penalty_F1).rsqrt()
        shape = (self.head.num_logits, len(scale_F1))

        def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
            weights_KF1 = torch.from_numpy(point).view(shape) * scale_F1
            logits_RK = (inputs @ weights_KF1.T).requires_grad_()
            loss = self.head.row_loss(logits_RK, targets) / num
            loss.backward()
            assert logits_RK.grad is not None
            gradient = (logits_RK.grad.T @ inputs + penalty_F1 * weights_KF1) * scale_F1
            value = float(loss.detach()) + float((penalty_F1 * weights_KF1.square()).sum()) / 2
            return value, gradient.numpy().ravel()

        first = torch.zeros(shape, dtype=torch.float64) if start is None else start / scale_F1
        options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-13, "gtol": 1e-8, "maxcor": 20}
        found = minimize(objective, first.numpy().ravel(), jac=True, method="L-BFGS-B", options=options)
        self.last = found
        return torch.from_numpy(found.x).view(shape) * scale_F1

    def logits(self, solution: Tensor, rows: np.ndarray) -> Tensor:
        """Logits of rows, (R, K)."""
        return self.coordinates_RF1[rows] @ solution.T

    def weights(self, solution: Tensor) -> tuple[Tensor, Tensor]:
        """Weight (K, E) and bias (K,) of the linear layer."""
        weight_KE = solution[:, :-1] @ self.vectors_EF.T
        return weight_KE, solution[:, -1] - weight_KE @ self.mean_E
