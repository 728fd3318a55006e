"""The results of probing and finetuning, for a single training run and for all runs of a command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from lmtransfer.reporting.runs.details import edge_of_grid, joint_calibration, joint_layer_weights
from lmtransfer.runs.result import JointResult, RunResult, SeedResult, largest_values
from lmtransfer.tasks.answers import LabelAnswer
from lmtransfer.tasks.base import Example
from lmtransfer.tasks.metrics.scored_examples import mean_by_class
from lmtransfer.training.weights import num_parameters
from lmtransfer.transfer.convex_fit import FOLDS
from lmtransfer.transfer.experiment.data import Draw
from lmtransfer.transfer.experiment.settings import Part, Setting
from lmtransfer.transfer.experiment.training_run import Outcome
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.verdicts import conditions
from lmtransfer.verdicts.spread import spread
from lmtransfer.verdicts.verdict import compare_conditions


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """A baseline's result for each seed, and each example's contribution to the results (None if not saved)."""

    results: Sequence[SeedResult]
    examples: conditions.Examples | None


BothExamples = tuple[conditions.Examples | None, conditions.Examples | None]


def run_result(
    part: Part, outcome: Outcome, *, command: str, rule: str, learning_rates: Sequence[float] | None = None
) -> SeedResult:
    """Return the result of one training run; ``rule`` says how the checkpoint was chosen."""
    setting, evaluation, state = part.setting, outcome.evaluation, outcome.state
    task, data = setting.task, setting.data
    scored = data.whole[part.draw].scored
    if evaluation is None:
        raise ValueError("a run that only tries a learning rate has no result")
    return SeedResult(
        command=command,
        task=task.name,
        task_fingerprint=evaluation.task_fingerprint,
        split=data.split,
        metrics=evaluation.metrics,
        main_metric=task.main_metric,
        control=True if part.is_control else None,
        seconds=state.seconds,
        tokens=state.tokens,
        num_parameters=num_parameters(outcome.learner),
        seed=part.seed,
        pretraining_seed=part.pretraining_seed,
        learning_rate=part.learning_rate,
        collapsed=evaluation.collapsed,
        more={
            "labels": list(task.labels),
            **majority_entry(setting, part.draw),
            "num_held_out": outcome.num_held_out,
            "num_scored": len(data.evaluation.examples if scored is None else scored),
            "num_truncated": {"train": data.train.num_truncated}
            | ({data.split: data.evaluation.num_truncated} if scored is None else {}),
            "chosen_by": rule,
            "chosen_score": outcome.choosing_score,
            "chosen_step": state.best_step if setting.checkpoint == "best" else state.step,
            **({"learning_rates": list(learning_rates)} if learning_rates else {}),
            "deterministic": part.is_deterministic,
            **_training_entries(outcome),
            **evaluation.entries,
        },
    )


def final_result(part: Part, outcome: Outcome, *, command: str) -> RunResult:
    """Return the result of training the final model, which is not scored."""
    setting, state = part.setting, outcome.state
    return RunResult(
        command=command,
        task=setting.task.name,
        seconds=state.seconds,
        tokens=state.tokens,
        num_parameters=num_parameters(outcome.learner),
        more={
            "seed": part.seed,
            "pretraining_seed": part.pretraining_seed,
            "learning_rate": part.learning_rate,
            "labels": list(setting.task.labels),
            **majority_entry(setting, part.draw),
            "num_truncated": {"train": setting.data.train.num_truncated},
            **_training_entries(outcome),
        },
    )


def final_entry(result: RunResult) -> dict[str, Any]:
    """Return the entry ``final`` of a command's result, from the final model's result."""
    names = ("seed", "pretraining_seed", "num_train", "learning_rate", "steps", "epochs", "C")
    return {name: result.more[name] for name in names if name in result.more} | {"seconds": result.seconds}


def chosen_steps(results: Sequence[SeedResult]) -> list[int]:
    """Return the number of steps after which each scored model, of each seed and fold, was saved."""
    return [model["chosen_step"] for result in results for model in result.more.get("folds") or [result.more]]


def _training_entries(outcome: Outcome) -> dict[str, Any]:
    """Return the entries on the training itself."""
    optimum = outcome.optimum
    return {
        "num_train": outcome.num_train,
        "num_trained_parameters": outcome.num_trained,
        "peak_memory": outcome.peak_memory,
        "steps": outcome.state.step,
        "epochs": outcome.state.epoch,
        **({"losses": dict(outcome.losses)} if outcome.losses else {}),
        **({} if optimum is None else {"C": optimum.strength, "C_tries": optimum.tries}),
        **layer_weights(outcome.learner),
    }


def layer_weights(learner: TaskLearner) -> dict[str, Any]:
    """Return the ``layer_weights`` entry of a learner with a scalar mix (Peters et al. 2018); empty for others."""
    weights = learner.reading.learned_weights()
    return {} if weights is None else {"layer_weights": weights}


def joint_result(
    results: Sequence[SeedResult],
    controls: Sequence[SeedResult],
    majority: Mapping[str, float] | None,
    *,
    learning_rates: Sequence[float] | None = None,
    examples: BothExamples = (None, None),
    baselines: Mapping[str, BaselineResult] | None = None,
    **more: Any,
) -> JointResult:
    """Return a command's result over its seeds, with its control.

    ``majority`` has the metrics of the best predictions that ignore the input; ``examples`` has each example's
    contribution to the results, and to the controls.
    """

    def rate_of(condition: Sequence[SeedResult]) -> dict[str, Any]:
        rate = condition[0].learning_rate
        edge, grid = edge_of_grid(rate, learning_rates), list(learning_rates or [])
        return {"learning_rate": rate, "learning_rate_edge": edge, "learning_rates": grid}

    joint = {
        **results[0].values(),
        **summary(results),
        **more,
        **rate_of(results),
        "control": None,
        "majority": majority and dict(majority),
        "seconds": sum(result.seconds or 0.0 for result in results),
        "tokens": sum(result.tokens or 0 for result in results),
        **largest_values(results, "num_trained_parameters", "peak_memory"),
    }
    best = better_baseline(baselines or {})
    if baselines is not None:
        joint["baselines"] = {name: summary(baseline.results) for name, baseline in baselines.items()}
    if best is not None and baselines:
        joint["better_baseline"] = best
        best_condition = condition_of(baselines[best].results, examples=baselines[best].examples)
        joint["baseline_difference"] = compare(results, best_condition, majority, examples=examples[0])
    if controls:
        joint["control"] = {**summary(controls), **rate_of(controls)}
        baseline_mean = None if best is None else joint["baselines"][best]["mean"]
        control = condition_of(controls, examples=examples[1])
        joint["difference"] = compare(results, control, majority, examples=examples[0], baseline=baseline_mean)
    return JointResult.of(joint)


def summary(results: Sequence[SeedResult]) -> dict[str, Any]:
    """Compute statistics over seeds: mean, median and deviation of the main metric, and means of all other metrics."""
    scores = spread([result.score for result in results])
    have_weights, have_calibration, have_classes = (
        all(name in r.more for r in results) for name in ("layer_weights", "calibration", "classes")
    )
    return {
        "metrics": {name: spread([r.metrics[name] for r in results]).mean for name in results[0].metrics},
        "seeds": [
            {key: getattr(r, key) for key in ("seed", "pretraining_seed", "metrics", "collapsed")} for r in results
        ],
        "mean": scores.mean,
        "median": scores.median,
        "deviation": scores.deviation,
        "n": scores.n,
        "collapsed": sum(bool(r.collapsed) for r in results),
        **_undefined(results),
        "deterministic": all(r.more.get("deterministic", False) for r in results),
        **({"layer_weights": joint_layer_weights([r.more["layer_weights"] for r in results])} if have_weights else {}),
        **({"calibration": joint_calibration([r.more["calibration"] for r in results])} if have_calibration else {}),
        **({"classes": mean_by_class([r.more["classes"] for r in results])} if have_classes else {}),
    }


def _undefined(results: Sequence[SeedResult]) -> dict[str, list[str]]:
    """Return the entry ``undefined``, with a count of seeds for each sentence that does not apply to all."""
    counts = Counter(sentence for result in results for sentence in result.more.get("undefined", ()))
    sentences = [
        text if num == len(results) else f"{text} ({num} of {len(results)} seeds)" for text, num in counts.items()
    ]
    return {"undefined": sentences} if sentences else {}


def compare(
    results: Sequence[SeedResult],
    other: conditions.Condition,
    majority: Mapping[str, float] | None,
    *,
    examples: conditions.Examples | None = None,
    baseline: float | None = None,
) -> dict[str, Any]:
    """Return the difference in the main metric's means, its interval and the verdict; ``baseline`` is a mean score."""
    return compare_conditions(
        condition_of(results, pretraining="its weights", examples=examples),
        other,
        higher_is_better=results[0].higher_is_better,
        majority=None if majority is None else majority.get(results[0].main_metric),
        baseline=baseline,
    ).as_values()


def better_baseline(baselines: Mapping[str, BaselineResult]) -> str | None:
    """Return the name of the baseline with the better mean; None if there is none."""

    def mean(name: str) -> float:
        return fmean(result.score for result in baselines[name].results)

    return max(baselines, key=mean, default=None)


def condition_of(
    results: Sequence[SeedResult], *, pretraining: str | None = None, examples: conditions.Examples | None = None
) -> conditions.Condition:
    """Convert the scores of all seeds to a condition; ``pretraining`` names the weights, None if random."""
    scores = tuple(
        conditions.Score(
            result.score,
            "unknown" if result.seed is None else result.seed,
            None if pretraining is None else f"{pretraining} {result.pretraining_seed}",
        )
        for result in results
    )
    return conditions.Condition(
        scores,
        examples,
        collapsed=sum(bool(result.collapsed) for result in results),
        constant=all(result.more.get("deterministic", False) for result in results)
        and len({score.pretraining for score in scores}) == 1,
    )


def majority_of(setting: Setting, seeds: Sequence[int]) -> dict[str, float] | None:
    """Compute the metrics of the best predictions that ignore the input, such as the most frequent training label.

    They are fitted to the training examples of each seed (and fold); the metrics are means over seeds.
    """
    task, examples = setting.task, setting.data.evaluation.examples
    metrics = []
    for seed in seeds:
        answers: list[Any] = list(examples)
        for draw in setting.draws(seed):
            part = setting.data.whole[draw]
            scored = range(len(examples)) if part.scored is None else part.scored.tolist()
            own = task.baseline(_training_examples(setting, draw), [examples[row] for row in scored])
            if own is None:
                return None
            for row, answer in zip(scored, own, strict=True):
                answers[row] = answer
        metrics.append(task.score(examples, answers))
    return {name: fmean(values[name] for values in metrics) for name in metrics[0]}


def majority_entry(setting: Setting, draw: Draw) -> dict[str, Any]:
    """Return the entry that explains ``majority``: ``baseline`` if the baseline is named, else ``majority_label``."""
    if setting.task.baseline_name is not None:
        return {"baseline": setting.task.baseline_name}
    train = _training_examples(setting, draw)
    answers = setting.task.baseline(train, train[:1]) or []
    return {"majority_label": answers[0].name} if answers and isinstance(answers[0], LabelAnswer) else {}


def _training_examples(setting: Setting, draw: Draw) -> list[Example]:
    data = setting.data
    return [data.train.examples[row] for row in data.whole[draw].train]


def choice_data(setting: Setting) -> str:
    """Return the name of the examples on which the choice is based."""
    return "held-out training examples" if setting.data.choosing is None else "dev"


def choice_rule(setting: Setting, *, searches_rate: bool) -> str:
    """Describe how a run's checkpoint and learning rate are chosen, for ``chosen_by`` in a result."""
    folds = setting.task.folds
    rule = _choices(setting, searches_rate=searches_rate)
    return rule if folds is None else f"{rule}; each of {folds} folds scored by a run on the others"


def final_rule(setting: Setting, steps: Sequence[int], *, searches_rate: bool) -> str:
    """Describe how the final model's training is chosen; ``steps`` are those of the scored models."""
    if setting.solves or not steps:
        return _choices(replace(setting, checkpoint="last"), searches_rate=searches_rate)
    kind = "best step" if setting.checkpoint == "best" else "number of steps"
    if len(steps) == 1:
        return f"the {kind} of the scored model, and its learning rate"
    return f"the median {kind} of the {len(steps)} scored models, and their learning rate"


def _choices(setting: Setting, *, searches_rate: bool) -> str:
    best = setting.checkpoint == "best"
    if setting.solves:
        return (
            f"L2 penalty (C) chosen by {setting.task.main_metric} (ties: loss) in {FOLDS}-fold cross-validation "
            "on the training examples; the head is at its optimum"
        )
    choices = [*(["checkpoint"] if best else []), *(["learning rate"] if searches_rate else [])]
    if not choices:
        return "nothing was chosen: the weights at the end of training"
    data = choice_data(setting)
    scored_note = ", which is also the scored split" if data == setting.data.split else ""
    end = "" if best else "; the weights at the end of training"
    metric = f"{setting.task.main_metric} (ties: loss)"
    return f"{' and '.join(choices)} chosen by {metric} on {data}{scored_note}{end}"
