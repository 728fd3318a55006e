"""The training runs (parts) of a probe or finetuning command: both conditions, all seeds and all learning rates.

Parts are trained one after the other in this process, or several at a time in separate processes (``launch.jobs``).
Each part writes its own folder, from which it is read if it has finished. All parts are then combined into one result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtransfer.errors import RunDirectoryError
from lmtransfer.launch.jobs import Job, Place, inherit_overrides, run_jobs
from lmtransfer.reporting.runs.scores import examples_of, read_answers, select_predictions
from lmtransfer.runs.create_and_lock import create_run_folder
from lmtransfer.runs.result import JointResult, SeedResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.console import Console
from lmtransfer.transfer.experiment.baselines import baseline_results
from lmtransfer.transfer.experiment.learning_rate_search import LearningRateSearch, try_name
from lmtransfer.transfer.experiment.part_run import PartRun
from lmtransfer.transfer.experiment.results import choice_rule, joint_result, majority_of
from lmtransfer.transfer.experiment.settings import CONDITION_NAMES, Condition, Part, Setting
from lmtransfer.verdicts.conditions import Examples


@dataclass(frozen=True, slots=True)
class Experiment:
    """The parts of one command.

    Attributes:
        command: "probe" or "finetune".
        config: the config as plain values.
        settings: the shared settings of the parts, one per pretraining seed.
        directory: the command's directory; if there are several runs, each has a folder in it.
        console: prints a line for each run.
    """

    command: str
    config: dict[str, Any]
    settings: Sequence[Setting]
    directory: RunDirectory
    console: Console

    @property
    def setting(self) -> Setting:
        """The shared settings, with the weights of the first pretraining seed."""
        return self.settings[0]

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds for probing or finetuning."""
        return range(self.config["seed"], self.config["seed"] + self.config["seeds"])

    @property
    def conditions(self) -> Sequence[Condition]:
        """The pretrained condition, and the control if ``control=true``."""
        return ("pretrained", "control") if self.config["control"] else ("pretrained",)

    @property
    def has_one_run(self) -> bool:
        """Whether the result comes from a single training run."""
        return len(self.seeds) * len(self.settings) * len(self.conditions) == 1

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights of finished runs are kept, which is always so for a single seed."""
        return self.config["keep_weights"] or len(self.seeds) * len(self.settings) == 1

    @property
    def rates(self) -> Sequence[float]:
        """The learning rates to try; a single rate is used without a search."""
        return [float(rate) for rate in self.config["learning_rates"] or [self.config["optimizer"]["learning_rate"]]]

    @property
    def searches_rate(self) -> bool:
        """Whether each condition chooses among several learning rates."""
        return not self.setting.solves and len(self.rates) > 1

    @property
    def is_finished(self) -> bool:
        """Whether the run directory has the result of all these runs; an earlier result may be of fewer seeds."""
        if not self.directory.is_finished:
            return False
        result = self.directory.read_result(JointResult)
        has_control = bool(result.control) or not self.config["control"]
        has_baselines = not self.config["baseline"] or "baselines" in result.more
        return has_control and has_baselines and result.n >= len(self.seeds) * len(self.settings)

    def parts(self, condition: Condition, learning_rate: float | None) -> list[Part]:
        """Return the runs of a condition; the control has random weights and therefore no pretraining seeds."""
        has_pretraining_seeds = condition == "pretrained" and len(self.settings) > 1
        parts = []
        for setting in self.settings if condition == "pretrained" else self.settings[:1]:
            for seed in self.seeds:
                folders = ["control"] if condition == "control" else []
                folders += [f"pretraining-{setting.pretraining_seed}"] if has_pretraining_seeds else []
                folders += [f"seed-{seed}"] if has_pretraining_seeds or len(self.seeds) > 1 else []
                pretraining = f", pretraining seed {setting.pretraining_seed}" if has_pretraining_seeds else ""
                title = f"{CONDITION_NAMES[condition]}{pretraining}, seed {seed}"
                parts.append(Part(setting, condition, seed, learning_rate, folder="/".join(folders), title=title))
        return parts

    def run_in_processes(self, place: Place) -> None:
        """Train the parts in separate processes, several at a time; ``result`` reads their results.

        Raises:
            Interrupted: SIGTERM or Ctrl-C; the running parts are saved.
        """
        tries = [part for condition in self.conditions for part in self._tries(condition)]
        self._run_jobs([self._job(try_name(part), part, ".json") for part in tries], place)
        parts = [part for condition in self.conditions for part in self.parts(condition, None) if part.folder]
        self._run_jobs([self._job(part.folder, part, "/result.json") for part in parts], place)

    def train(self, name: str) -> None:
        """Train one part, in a process that ``run_in_processes`` started.

        Args:
            name: the folder of a run, or the name of a try (see ``learning_rate_search.try_name``).

        Raises:
            RunDirectoryError: the experiment has no such part.
        """
        for condition in self.conditions:
            for part in self._tries(condition):
                if try_name(part) == name:
                    self._search.score(part)
                    return
            for part in self.parts(condition, None):
                if part.folder == name:
                    if problem := create_run_folder(self.directory.path / name, resume=True):
                        raise RunDirectoryError(problem)
                    (part,) = (p for p in self.parts(condition, self._learning_rate(condition)) if p.folder == name)
                    self._run(part)
                    return
        raise RunDirectoryError(f"part={name}: {self.directory.path} has no part with this name")

    def result(self) -> JointResult:
        """Train the unfinished parts, and combine all results."""
        rates = {condition: self._learning_rate(condition) for condition in self.conditions}
        trained = {
            condition: [self._run(part) for part in self.parts(condition, rates[condition])]
            for condition in self.conditions
        }
        tries = list(
            self._search.read_finished(part for condition in self.conditions for part in self._tries(condition))
        )
        controls = trained.get("control", [])
        baselines = None
        if self.config["baseline"]:
            with self.console.status("counting words, for the baselines"):
                baselines = baseline_results(self.setting, self.seeds, self.directory, command=self.command)
        return joint_result(
            trained["pretrained"],
            controls,
            majority_of(self.setting),
            learning_rates=self.config["learning_rates"],
            init=self.config.get("init"),
            examples=(self._examples(trained["pretrained"]), self._examples(controls, is_control=True)),
            baselines=baselines,
            **({"learning_rate_tries": tries} if tries else {}),
        )

    def _run(self, part: Part) -> SeedResult:
        """Train one run, or read its result if it has finished."""
        run = PartRun(
            part=part,
            directory=RunDirectory(self.directory.path / part.folder),
            command=self.command,
            config=self.config,
            rule=choice_rule(self.setting, searches_rate=self.searches_rate),
            say=self._say,
            is_only=self.has_one_run,
            keep_weights=self.keeps_weights,
        )
        return run.result()

    def _job(self, name: str, part: Part, suffix: str) -> Job:
        """Return the job for a part: the same command, restricted to this part."""
        run, root = self.directory.path, Path(self.config["output_root"]).absolute()
        rate = "" if part.learning_rate is None else f", learning rate {part.learning_rate:g}"
        return Job(
            f"{part.title}{rate}",
            self.command,
            inherit_overrides(root, str(run.relative_to(root / self.command)), f"part={name}"),
            run / f"{name}{suffix}",
            run / "logs" / f"{name.replace('/', '-')}.log",
        )

    def _run_jobs(self, jobs: Sequence[Job], place: Place) -> None:
        """Run jobs; a failed part is later repeated in this process, which then raises the error."""
        run_jobs([job for job in jobs if not job.is_finished], place, self.console)

    @property
    def _search(self) -> LearningRateSearch:
        return LearningRateSearch(self.directory, has_pretraining_seeds=len(self.settings) > 1, say=self._say)

    def _tries(self, condition: Condition) -> list[Part]:
        """Return the unsaved runs that try each learning rate; empty if there is no search."""
        return [part for rate in self.rates for part in self.parts(condition, rate)] if self.searches_rate else []

    def _learning_rate(self, condition: Condition) -> float | None:
        """Return the learning rate of a condition's runs; None if heads are fitted instead."""
        if self.setting.solves:
            return None
        if not self.searches_rate:
            return self.rates[0]
        return self._search.choose({rate: self.parts(condition, rate) for rate in self.rates})

    def _examples(self, results: Sequence[SeedResult], *, is_control: bool = False) -> Examples | None:
        """Return each example's contribution to a condition's scores; None if it was not kept."""
        split, metric = self.setting.data.split, self.setting.task.main_metric
        predictions = select_predictions(read_answers(self.directory.path), results, split=split, is_control=is_control)
        return None if predictions is None else examples_of(predictions, metric)

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)
