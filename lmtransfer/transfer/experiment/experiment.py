"""The training runs (parts) of a probe or finetuning command: both conditions, all seeds and all learning rates.

Parts are trained one after the other in this process, or several at a time in separate processes (``launch.jobs``).
Each part writes its own folder, from which the result is read if the part has finished. With several learning rates,
each condition first chooses its own rate, by training runs of which only the scores are saved. With ``final=true``, one
more model is trained on all labeled examples, with what the scored runs have chosen. Finally all results are combined
into one, with those of the word-counting baselines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
from typing_extensions import TypedDict

from lmtransfer.config.settings import TransferSettings
from lmtransfer.config.types import Whole
from lmtransfer.errors import RunDirectoryError
from lmtransfer.launch.jobs import Job, Place, inherit_overrides, run_jobs
from lmtransfer.reporting.runs.scores import examples_of, read_answers, select_predictions
from lmtransfer.runs.create_or_resume import create_run_folder
from lmtransfer.runs.predictions import BASELINES, file_name, write_predictions
from lmtransfer.runs.result import FINAL, JointResult, RunResult, SeedResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.console import Console
from lmtransfer.system.durable import write_text
from lmtransfer.system.safe_files import read_json
from lmtransfer.tasks.counting_baselines import Baseline, counting_baselines
from lmtransfer.tasks.metrics.scored_examples import Predictions
from lmtransfer.training import process_group
from lmtransfer.training.progress import ProgressLine
from lmtransfer.transfer.experiment.part_run import PartRun
from lmtransfer.transfer.experiment.results import (
    BaselineResult,
    choice_data,
    choice_rule,
    chosen_steps,
    final_entry,
    final_rule,
    joint_result,
    majority_of,
)
from lmtransfer.transfer.experiment.settings import CONDITION_NAMES, Condition, Part, Setting
from lmtransfer.transfer.experiment.training_run import train_once
from lmtransfer.transfer.scoring import Evaluation, Outputs, score_outputs
from lmtransfer.verdicts.conditions import Examples


class RateTry(TypedDict, total=False):
    """The score of one run with one learning rate, as saved in its file."""

    arm: Literal["pretrained", "control"]
    seed: Whole
    learning_rate: float
    pretraining_seed: Whole
    score: float
    loss: float


def try_name(part: Part) -> str:
    """Return the name of a part that tries a learning rate: its file's path in the run directory, without suffix."""
    folders = part.folder.replace("/", "-").removeprefix("control-") or f"seed-{part.seed}"
    return f"tries/{part.condition}-{folders}-rate-{part.rate:g}"


@dataclass(frozen=True, slots=True)
class Experiment:
    """The parts of one command; ``starts`` has one entry per pretraining seed."""

    command: str
    settings: TransferSettings
    starts: Sequence[Setting]
    directory: RunDirectory
    console: Console

    @property
    def setting(self) -> Setting:
        """The shared settings, with the weights of the first pretraining seed."""
        return self.starts[0]

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds for probing or finetuning."""
        return range(self.settings.seed, self.settings.seed + self.settings.seeds)

    @property
    def conditions(self) -> Sequence[Condition]:
        """The pretrained condition, and the control if ``control=true``."""
        return ("pretrained", "control") if self.settings.control else ("pretrained",)

    @property
    def has_one_run(self) -> bool:
        """Whether the result comes from a single training run."""
        return len(self.seeds) * len(self.starts) * len(self.conditions) == 1

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights of finished runs are kept, as those of a single seed always are."""
        return self.settings.keep_weights or len(self.seeds) * len(self.starts) == 1

    @property
    def rates(self) -> Sequence[float]:
        """The learning rates to try; a single rate is used without a search."""
        return self.settings.learning_rates or [float(self.settings.optimizer.get("learning_rate"))]

    @property
    def searches_rate(self) -> bool:
        """Whether each condition chooses among several learning rates."""
        return not self.setting.solves and len(self.rates) > 1

    def finished_result(self) -> RunResult | None:
        """Return the result of all these runs, if the run directory has it; an earlier result may cover fewer seeds."""
        if not self.directory.is_finished:
            return None
        if not self.setting.data.is_scored:
            return self.directory.read_result()
        result = self.directory.read_result(JointResult)
        has_control = bool(result.control) or not self.settings.control
        has_baselines = not self.settings.baseline or "baselines" in result.more
        has_final = not self.settings.final or "final" in result.more
        has_seeds = result.n >= len(self.seeds) * len(self.starts)
        return result if has_control and has_baselines and has_final and has_seeds else None

    def parts(self, condition: Condition, learning_rate: float | None) -> list[Part]:
        """Return the runs of a condition; the control has random weights and therefore no pretraining seeds."""
        has_pretraining_seeds = condition == "pretrained" and len(self.starts) > 1
        parts = []
        for setting in self.starts if condition == "pretrained" else self.starts[:1]:
            for seed in self.seeds:
                folders = ["control"] if condition == "control" else []
                folders += [f"pretraining-{setting.pretraining_seed}"] if has_pretraining_seeds else []
                folders += [f"seed-{seed}"] if has_pretraining_seeds or len(self.seeds) > 1 else []
                pretraining = f", pretraining seed {setting.pretraining_seed}" if has_pretraining_seeds else ""
                title = f"{CONDITION_NAMES[condition]}{pretraining}, seed {seed}"
                parts.append(Part(setting, condition, seed, learning_rate, folder="/".join(folders), title=title))
        return parts

    def run_in_processes(self, place: Place) -> None:
        """Train the parts in separate processes, several at a time; ``result`` reads their results."""
        tries = [part for condition in self.conditions for part in self._tries(condition)]
        self._run_jobs([self._job(try_name(part), part, ".json") for part in tries], place)
        parts = [part for condition in self.conditions for part in self.parts(condition, None)]
        jobs = [self._job(part.folder, part, "/result.json") for part in parts if part.folder]
        self._run_jobs(jobs, place)
        if self.settings.final and len(jobs) == len(parts) and all(job.is_finished for job in jobs):
            self._run_jobs([self._job(FINAL, self._final_part(None, None), "/result.json")], place)

    def train(self, name: str) -> None:
        """Train the part with this name (the folder of a run, or a try) in a process of ``run_in_processes``."""
        for condition in self.conditions:
            for part in self._tries(condition):
                if try_name(part) == name:
                    self._try(part)
                    return
            for part in self.parts(condition, None):
                if part.folder == name:
                    self._lock(name)
                    (part,) = (p for p in self.parts(condition, self._learning_rate(condition)) if p.folder == name)
                    self._run(part).result()
                    return
        if name == FINAL:
            self._lock(name)
            rate = self._learning_rate("pretrained")
            self._train_final(rate, [self._run(part).result() for part in self.parts("pretrained", rate)])
            return
        raise RunDirectoryError(f"part={name}: {self.directory.path} has no part with this name")

    def _lock(self, name: str) -> None:
        """Take the lock of a part's folder."""
        if problem := create_run_folder(self.directory.path / name, resume=True):
            raise RunDirectoryError(problem)

    def result(self) -> RunResult:
        """Train the unfinished parts, then the final model, and combine all results."""
        rates = {condition: self._learning_rate(condition) for condition in self.conditions}
        if not self.setting.data.is_scored:
            final = self._train_final(rates["pretrained"], [])
            return RunResult(command=self.command, task=self.setting.task.name, more=final)
        trained = {
            condition: [self._run(part).result() for part in self.parts(condition, rates[condition])]
            for condition in self.conditions
        }
        final = self._train_final(rates["pretrained"], trained["pretrained"]) if self.settings.final else {}
        paths = [self._try_path(part) for condition in self.conditions for part in self._tries(condition)]
        tries = [read_json(path, RateTry, error=RunDirectoryError) for path in paths if path.exists()]
        controls = trained.get("control", [])
        baselines = None
        if self.settings.baseline:
            with self.console.status("counting words, for the baselines"):
                baselines = baseline_results(
                    self.setting, self.seeds, self.directory, command=self.command, say=self._say
                )
        return joint_result(
            trained["pretrained"],
            controls,
            majority_of(self.setting, self.seeds),
            learning_rates=None if self.settings.is_solved else self.settings.learning_rates,
            init=self.settings.init,
            examples=(self._examples(trained["pretrained"]), self._examples(controls, is_control=True)),
            baselines=baselines,
            **({"learning_rate_tries": tries} if tries else {}),
            **final,
        )

    def _final_part(self, learning_rate: float | None, steps: int | None) -> Part:
        """Return the final model's run; ``steps`` replaces the budget unless it is None."""
        setting, seed = self.setting, self.settings.seed
        assert setting.labeled is not None
        train = setting.train
        if steps is not None:
            others = dict.fromkeys(("tokens", "epochs", "seconds", "min_steps", "patience"))
            train = train.model_copy(update={"steps": steps, **others})
        final = replace(setting, data=setting.labeled, train=train, checkpoint="last", features={})
        return Part(final, "pretrained", seed, learning_rate, folder=FINAL, title=f"final model, seed {seed}")

    def _train_final(self, learning_rate: float | None, results: Sequence[SeedResult]) -> dict[str, Any]:
        """Train the final model as the scored models were trained, and return the entry ``final``."""
        steps = [] if self.setting.solves else chosen_steps(results)
        part = self._final_part(learning_rate, math.ceil(median(steps)) if steps else None)
        rule = final_rule(self.setting, steps, searches_rate=self.searches_rate)
        return {"final": {**final_entry(self._run(part).final_result()), "chosen_by": rule}}

    def _run(self, part: Part) -> PartRun:
        return PartRun(
            part=part,
            directory=RunDirectory(self.directory.path / part.folder),
            command=self.command,
            settings=self.settings,
            rule=choice_rule(self.setting, searches_rate=self.searches_rate),
            say=self._say,
            is_only=self.has_one_run,
            keep_weights=self.keeps_weights,
        )

    def _job(self, name: str, part: Part, suffix: str) -> Job:
        """Return the job for a part: the same command, restricted to this part."""
        run, root = self.directory.path, Path(self.settings.output_root).absolute()
        rate = "" if part.learning_rate is None else f", learning rate {part.learning_rate:g}"
        return Job(
            f"{part.title}{rate}",
            self.command,
            inherit_overrides(self.settings.words, root, str(run.relative_to(root / self.command)), f"part={name}"),
            run / f"{name}{suffix}",
            run / "logs" / f"{name.replace('/', '-')}.log",
        )

    def _run_jobs(self, jobs: Sequence[Job], place: Place) -> None:
        """Run jobs; ``result`` later repeats a failed part in this process, which then raises the error."""
        run_jobs([job for job in jobs if not job.is_finished], place, self.console)

    def _tries(self, condition: Condition) -> list[Part]:
        """Return the unsaved runs that try each learning rate; empty if there is no search."""
        return [part for rate in self.rates for part in self.parts(condition, rate)] if self.searches_rate else []

    def _learning_rate(self, condition: Condition) -> float | None:
        """Return the learning rate of a condition's runs; None if heads are fitted to their optimum.

        A search chooses the rate with the best mean score or, among equals, with the lowest mean loss; a non-finite
        loss counts as the highest.
        """
        if self.setting.solves:
            return None
        if not self.searches_rate:
            return self.rates[0]
        means = {}
        for rate in dict.fromkeys(self.rates):
            tries = [self._try(part) for part in self.parts(condition, rate)]
            score = fmean(attempt["score"] for attempt in tries)
            means[rate] = (score, -fmean(attempt.get("loss", math.inf) for attempt in tries))
            scored = f"{self.setting.score_text(score)} on {choice_data(self.setting)}"
            self._say(f"{CONDITION_NAMES[condition]}, learning rate {rate:g}: {scored}")
        return max(means, key=lambda rate: means[rate])

    def _try(self, part: Part) -> RateTry:
        path = self._try_path(part)
        if path.exists():
            return read_json(path, RateTry, error=RunDirectoryError)
        outcome = train_once(part, run=None, progress=ProgressLine(quiet=True))
        assert outcome.choosing_score is not None
        attempt: RateTry = {"arm": part.condition, "seed": part.seed, "learning_rate": part.rate}
        if part.condition == "pretrained" and len(self.starts) > 1 and part.pretraining_seed is not None:
            attempt["pretraining_seed"] = part.pretraining_seed
        attempt["score"] = outcome.choosing_score
        if outcome.choosing_loss is not None and math.isfinite(outcome.choosing_loss):
            attempt["loss"] = outcome.choosing_loss
        if process_group.is_main():
            path.parent.mkdir(exist_ok=True)
            write_text(path, json.dumps(attempt, indent=1) + "\n")
        process_group.barrier()
        return attempt

    def _try_path(self, part: Part) -> Path:
        return self.directory.path / f"{try_name(part)}.json"

    def _examples(self, results: Sequence[SeedResult], *, is_control: bool = False) -> Examples | None:
        split, metric = self.setting.data.split, self.setting.task.main_metric
        predictions = select_predictions(read_answers(self.directory.path), results, split=split, is_control=is_control)
        return None if predictions is None else examples_of(predictions, metric)

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)


def baseline_results(
    setting: Setting, seeds: Sequence[int], directory: RunDirectory, *, command: str, say: Callable[[str], None]
) -> dict[str, BaselineResult]:
    """Train and score a task's baselines, and write their predictions; return the results by baseline name.

    With a fixed training set, every seed has the same predictions, which are computed once.

    Args:
        say: receives the reason if the baselines are left out.
    """
    baselines: dict[str, BaselineResult] = process_group.broadcast(
        _compute_baselines(setting, seeds, directory, command, say) if process_group.is_main() else None
    )
    return baselines


def _compute_baselines(
    setting: Setting, seeds: Sequence[int], directory: RunDirectory, command: str, say: Callable[[str], None]
) -> dict[str, BaselineResult]:
    task, data = setting.task, setting.data
    baselines: dict[str, BaselineResult] = {}
    files: dict[str, Predictions] = {}
    is_random = task.num_train is not None or task.folds is not None
    for name, baseline in counting_baselines(task, data.train, data.evaluation, say=say).items():
        scores: dict[bytes, Evaluation] = {}
        keys = [b"".join(data.whole[draw].train.tobytes() for draw in setting.draws(seed)) for seed in seeds]
        for seed, key in zip(seeds, keys, strict=True):
            if key not in scores:
                scores[key] = _evaluation(setting, baseline, seed)
        evaluations = [scores[key] for key in keys]
        are_alike = len(seeds) > 1 and len({result.metrics[task.main_metric] for result in evaluations}) == 1
        results, predictions = [], []
        for seed, evaluation in zip(seeds, evaluations, strict=True):
            metrics = {metric: value for metric, value in evaluation.metrics.items() if metric != "loss"}
            results.append(
                SeedResult(
                    command=command,
                    metrics=metrics,
                    main_metric=task.main_metric,
                    seed=seed,
                    collapsed=evaluation.collapsed,
                    more={"deterministic": are_alike or not is_random},
                )
            )
            if evaluation.answers is not None:
                seed_predictions = Predictions(
                    task=task.name,
                    split=data.split,
                    main_metric=task.main_metric,
                    seed=seed,
                    pretraining_seed=None,
                    is_control=False,
                    examples=evaluation.answers,
                    baseline=name,
                )
                predictions.append(seed_predictions)
                files[file_name(seed_predictions, alone=False)] = seed_predictions
        examples = examples_of(predictions, task.main_metric) if len(predictions) == len(results) else None
        baselines[name] = BaselineResult(results, examples)
    if files:
        write_predictions(directory.path / BASELINES, files)
    return baselines


def _evaluation(setting: Setting, baseline: Baseline, seed: int) -> Evaluation:
    """Return a baseline's scores and predictions on the examples that a run with this seed is scored on."""
    data, every = setting.data, np.arange(len(setting.data.evaluation.examples))
    outputs = {}
    for draw in setting.draws(seed):
        part = data.whole[draw]
        outputs[draw] = baseline(part.train, every if part.scored is None else part.scored)
    return score_outputs(setting.task, data.evaluation, Outputs(data.join_outputs(outputs), None), keep=True)
