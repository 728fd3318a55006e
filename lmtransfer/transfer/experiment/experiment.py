"""The training runs of one command: both conditions, all seeds, tries of learning rates, and one result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.reporting.runs.kept_answers import examples_of, kept_answers, kept_of
from lmtransfer.runs.result import JointResult, SeedResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.console import Console
from lmtransfer.transfer.experiment.baselines import baseline_results
from lmtransfer.transfer.experiment.learning_rates import LearningRates
from lmtransfer.transfer.experiment.results import choice_rule, chosen_on, joint_result, majority_of
from lmtransfer.transfer.experiment.setting import Condition, Member, Setting
from lmtransfer.transfer.experiment.single_run import SingleRun
from lmtransfer.verdicts.conditions import Examples


@dataclass(frozen=True, slots=True)
class Experiment:
    """The training runs of one command.

    Attributes:
        command: "probe" or "finetune".
        config: the config as plain values.
        settings: the shared settings of the runs, one for each pretraining seed.
        directory: directory of the command; if there are several runs, each has a folder in it.
        console: prints a line for each run.
    """

    command: str
    config: dict[str, Any]
    settings: Sequence[Setting]
    directory: RunDirectory
    console: Console

    @property
    def setting(self) -> Setting:
        """The shared settings; the weights are those of the first pretraining seed."""
        return self.settings[0]

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds of probing or finetuning."""
        return range(self.config["seed"], self.config["seed"] + self.config["seeds"])

    @property
    def conditions(self) -> Sequence[Condition]:
        """The pretrained condition, and the control if ``control=true``."""
        return ("pretrained", "control") if self.config["control"] else ("pretrained",)

    @property
    def has_one_run(self) -> bool:
        """Whether a single training run makes the result."""
        return len(self.seeds) * len(self.settings) * len(self.conditions) == 1

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights of finished runs stay; those of a single seed always do."""
        return self.config["keep_weights"] or len(self.seeds) * len(self.settings) == 1

    @property
    def learning_rates(self) -> LearningRates:
        """The rates to try, or the optimiser's own rate."""
        rates = self.config["learning_rates"] or [self.config["optimizer"]["learning_rate"]]
        return LearningRates([float(rate) for rate in rates], self.directory.path / "learning_rate_tries.json")

    @property
    def is_finished(self) -> bool:
        """Whether the run directory has the result of all these runs; it may be that of fewer seeds."""
        if not self.directory.is_finished:
            return False
        result = self.directory.read_result(JointResult)
        has_control = bool(result.control) or not self.config["control"]
        has_baselines = not self.config["baseline"] or "baselines" in result.more
        return has_control and has_baselines and result.n >= len(self.seeds) * len(self.settings)

    def members(self, condition: Condition, learning_rate: float | None) -> list[Member]:
        """The runs of a condition; the control has random weights and therefore no pretraining seeds."""
        settings = self.settings if condition == "pretrained" else self.settings[:1]
        return [Member(setting, condition, seed, learning_rate) for setting in settings for seed in self.seeds]

    def result(self) -> JointResult:
        """Train the runs that are not finished, and combine all results."""
        rates = {condition: self._learning_rate(condition) for condition in self.conditions}
        trained = {
            condition: [self._run(member) for member in self.members(condition, rates[condition])]
            for condition in self.conditions
        }
        tries = [] if self.setting.solves else self.learning_rates.tries()
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

    def _learning_rate(self, condition: Condition) -> float | None:
        """The learning rate that the condition chooses; None if heads are fitted to their optimum."""
        if self.setting.solves:
            return None
        who, where = _WHO[condition], chosen_on(self.setting)
        return self.learning_rates.choose(
            lambda rate: self.members(condition, rate),
            lambda rate, mean: self._say(f"{who}, learning rate {rate:g}: {self.setting.shown(mean)} on {where}"),
        )

    def _run(self, member: Member) -> SeedResult:
        """Train one run, or read its result if it has finished."""
        nested = not member.is_control and len(self.settings) > 1
        parts = ["control"] if member.is_control else []
        parts += [f"pretraining-{member.pretraining_seed}"] if nested else []
        parts += [f"seed-{member.seed}"] if nested or len(self.seeds) > 1 else []
        of_pretraining = f", pretraining seed {member.pretraining_seed}" if nested else ""
        run = SingleRun(
            member=member,
            directory=RunDirectory(self.directory.path.joinpath(*parts)),
            has_own_folder=bool(parts),
            command=self.command,
            config=self.config,
            rule=choice_rule(self.setting, searches_rate=not self.setting.solves and self.learning_rates.are_searched),
            who=f"{_WHO[member.condition]}{of_pretraining}, seed {member.seed}",
            say=self._say,
            is_only=self.has_one_run,
            keep_weights=self.keeps_weights,
        )
        return run.result()

    def _examples(self, results: Sequence[SeedResult], *, is_control: bool = False) -> Examples | None:
        """The contribution of each example to the scores of a condition; None if it was not saved."""
        seeds = [(result.seed, result.pretraining_seed) for result in results]
        split, metric = self.setting.data.split, self.setting.task.main_metric
        kept = kept_of(kept_answers(self.directory.path), seeds, split=split, is_control=is_control)
        return None if kept is None else examples_of(kept, metric)

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)


#: Names of the conditions in messages.
_WHO: dict[Condition, str] = {"pretrained": "run", "control": "control"}
