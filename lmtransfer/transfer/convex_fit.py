"""The optimal linear head for a frozen encoder: a convex problem, without learning rate, epochs or randomness.

The head minimizes ``C * sum of losses + ||W||^2 / 2`` over the weights W and the biases, which are not penalized:
logistic regression for labels, sets of labels and tags; ridge regression for scores. C has the same meaning as in
scikit-learn's multinomial logistic regression, and is chosen by cross-validation on the training examples.

The solver works in coordinates in which the curvature is nearly equal in all directions: the eigenvectors of the
inputs' covariance, each scaled by the square root of the curvature along it. L-BFGS then needs only tens of iterations.

Shape legend: R rows (sequences, or words for tagging), E width of the head's input, K logits, F eigenvectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lmtransfer.tasks.base import Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import Targets
from lmtransfer.tasks.source import TaskSource
from lmtransfer.transfer.heads import Head
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.scoring import Outputs, evaluation_mode, score_outputs

#: The values of C to choose from.
STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
FOLDS = 3
#: With more rows, the head is trained in batches: features may not fit in memory, and a penalty matters less.
MAX_ROWS = 20_000
#: Curvature of the loss per row, used to scale the coordinates; an upper bound for the cross-entropy of two labels.
_CURVATURE = 0.25
#: Eigenvalues smaller than this share of the largest are rounding errors.
_RANK = 1e-12
#: Tolerances far below the head's float32 rounding.
_EXACT_OPTIONS = {"maxiter": 5000, "maxfun": 10_000, "ftol": 1e-12, "gtol": 1e-8, "maxcor": 20}
#: Tolerances that are small enough to choose C and need a third of the time.
_ROUGH_OPTIONS = {"maxiter": 500, "maxfun": 1000, "ftol": 1e-7, "gtol": 1e-5, "maxcor": 20}
_BLOCK_SEQUENCES = 512


@dataclass(frozen=True, slots=True)
class Optimum:
    """The chosen C and its cross-validated score; ``tries`` has each value's score and loss, and ``collapsed``."""

    strength: float
    score: float
    tries: list[dict[str, Any]]


def fit_head(learner: TaskLearner, source: TaskSource, task: Task) -> Optimum:
    """Choose C by the task's main metric (ties: loss), then fit the learner's convex head on all examples.

    Values of C are tried in ascending order, until two in a row have a worse score and a worse loss than an earlier
    value. A value that makes all predictions identical is chosen only if every value does: such a head reveals nothing
    about the encoder.
    """
    head, encoded = learner.head, source.encoded
    head.train()
    inputs_RE, targets = head_inputs(learner, source), encoded.targets.map(torch.from_numpy)
    fold_R = np.repeat(assign_folds(encoded)[encoded.owners], np.diff(encoded.target_offsets))
    folds = []
    for fold in np.unique(fold_R):
        rest, held_out = np.flatnonzero(fold_R != fold), np.flatnonzero(fold_R == fold)
        if len(rest):
            problem = Problem(inputs_RE[rest], targets.map(lambda values, rest=rest: values[rest]), head)
            folds.append((problem, held_out))
    solutions: list[Tensor | None] = [None] * len(folds)
    tries: list[dict[str, Any]] = []
    for strength in STRENGTHS:
        logits_RK = torch.zeros(len(fold_R), head.num_logits, dtype=torch.float64)
        for index, (problem, held_out) in enumerate(folds):
            solution = problem.solve(strength, start=solutions[index], options=_ROUGH_OPTIONS)
            weight_KE, bias_K = problem.linear(solution)
            logits_RK[held_out] = inputs_RE[held_out] @ weight_KE.T + bias_K
            solutions[index] = solution
        with evaluation_mode(head):
            loss = float(head.row_loss(logits_RK, targets)) / max(1, len(fold_R))
        evaluation = score_outputs(task, encoded, Outputs(logits_RK.float().numpy(), loss))
        score = evaluation.metrics[task.main_metric]
        tries.append({"C": strength, "score": score, "loss": loss, "collapsed": evaluation.collapsed})
        if _gets_worse(tries):
            break
    best = max(tries, key=lambda attempt: (not attempt["collapsed"], attempt["score"], -attempt["loss"]))
    problem = Problem(inputs_RE, targets, head)
    weight_KE, bias_K = problem.linear(problem.solve(best["C"]))
    with torch.no_grad():
        head.output.weight.copy_(weight_KE)
        head.output.bias.copy_(bias_K)
    return Optimum(best["C"], best["score"], tries)


def _gets_worse(tries: list[dict[str, Any]]) -> bool:
    """Whether the last two values of C both have a worse score and a worse loss than an earlier value."""
    return any(
        all(later["score"] < earlier["score"] and later["loss"] > earlier["loss"] for later in tries[-2:])
        for earlier in tries[:-2]
    )


def head_inputs(learner: TaskLearner, source: TaskSource) -> Tensor:
    """Return the linear layer's input for each target row, float64, (R, E)."""
    scale, parts = learner.standardising, []
    with torch.no_grad():
        for start in range(0, len(source.encoded), _BLOCK_SEQUENCES):
            stop = min(start + _BLOCK_SEQUENCES, len(source.encoded))
            batch = source.build(0, source.plan(0), range(start, stop))
            assert batch.features is not None, "fitting needs the features of a frozen encoder"
            features = batch.features if scale is None else scale(batch.features.to(scale.mean.device)).cpu()
            parts.append(learner.head.rows(features.double(), batch))
    return torch.cat(parts)


def assign_folds(encoded: EncodedExamples) -> np.ndarray:
    """Distribute the examples, or their groups, over the folds, label by label and in file order."""
    labels: dict[str, int] = {}
    units = [example.group or f"\0{place}" for place, example in enumerate(encoded.examples)]
    for unit, example in zip(units, encoded.examples, strict=True):
        labels.setdefault(unit, example.class_index)
    folds = {unit: place % FOLDS for place, unit in enumerate(sorted(labels, key=lambda unit: labels[unit]))}
    return np.array([folds[unit] for unit in units])


class Problem:
    """The convex problem of fitting a head to some training rows; the inputs are float64."""

    def __init__(self, inputs_RE: Tensor, targets: Targets[Tensor], head: Head) -> None:
        self.targets, self.head = targets, head
        self.mean_E = inputs_RE.mean(0)
        centred_RE = inputs_RE - self.mean_E
        if len(inputs_RE) < inputs_RE.shape[1]:
            values_F, vectors_RF = torch.linalg.eigh(centred_RE @ centred_RE.T)
            real_F = values_F > _RANK * values_F[-1].clamp(min=1e-300)
            self.values_F = values_F[real_F]
            self.vectors_EF = centred_RE.T @ vectors_RF[:, real_F] / self.values_F.sqrt()
        else:
            values_F, self.vectors_EF = torch.linalg.eigh(centred_RE.T @ centred_RE)
            self.values_F = values_F.clamp(min=0)
        self.coordinates_RF1 = functional.pad(centred_RE @ self.vectors_EF, (0, 1), value=1.0)  # the bias comes last

    def solve(
        self, strength: float, *, start: Tensor | None = None, options: dict[str, Any] = _EXACT_OPTIONS
    ) -> Tensor:
        """Return the optimum for C = ``strength``, float64, (K, F + 1): the coordinates' weights and the bias."""
        from scipy.optimize import minimize  # 0.2 s, which only probes need

        num = len(self.coordinates_RF1)
        penalty_F1 = functional.pad(torch.ones_like(self.values_F), (0, 1)) / (strength * num)
        curvature_F1 = functional.pad(self.values_F / num, (0, 1), value=1.0)
        scale_F1 = (_CURVATURE * curvature_F1 + penalty_F1).rsqrt()
        shape = (self.head.num_logits, len(scale_F1))

        def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
            """Return the mean loss plus the penalty, divided by C and R, and its gradient."""
            weight_KF1 = torch.from_numpy(point).view(shape) * scale_F1
            logits_RK = (self.coordinates_RF1 @ weight_KF1.T).requires_grad_()
            loss = self.head.row_loss(logits_RK, self.targets) / num
            (of_logits_RK,) = torch.autograd.grad(loss, logits_RK)
            gradient_KF1 = (of_logits_RK.T @ self.coordinates_RF1 + penalty_F1 * weight_KF1) * scale_F1
            value = float(loss.detach()) + float((penalty_F1 * weight_KF1.square()).sum()) / 2
            return value, gradient_KF1.numpy().ravel()

        first_KF1 = torch.zeros(shape, dtype=torch.float64) if start is None else start / scale_F1
        point = minimize(objective, first_KF1.numpy().ravel(), jac=True, method="L-BFGS-B", options=options).x
        return torch.from_numpy(point).view(shape) * scale_F1

    def linear(self, solution_KF1: Tensor) -> tuple[Tensor, Tensor]:
        """Convert a solution to the linear layer's weight (K, E) and bias (K,)."""
        weight_KE = solution_KF1[:, :-1] @ self.vectors_EF.T
        return weight_KE, solution_KF1[:, -1] - weight_KE @ self.mean_E
