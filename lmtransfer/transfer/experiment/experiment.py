"""Probing and finetuning (only their defaults differ): seeds, controls, tries of learning rates, one result."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.sweep import in_sweep, sweep_name
from lmtransfer.kept_predictions.file import file_name, write_predictions
from lmtransfer.kept_predictions.scored import Kept
from lmtransfer.reporting.runs.kept_answers import examples_of, kept_answers, kept_of
from lmtransfer.reporting.units import shown
from lmtransfer.runs.result import JointResult, SeedResult
from lmtransfer.runs.resume import check_resumable, use_saved_config
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.tracking import tracked
from lmtransfer.runs.training import training_hardware
from lmtransfer.runs.trust import mark_as_own
from lmtransfer.runs.versions import versions
from lmtransfer.system.console import Console
from lmtransfer.system.machine import naming
from lmtransfer.system.printable import short_path
from lmtransfer.training import distributed
from lmtransfer.training.progress import Progress
from lmtransfer.training.trackers.base import Tracker
from lmtransfer.transfer.evaluation import Evaluation
from lmtransfer.transfer.experiment.checks import check_transfer
from lmtransfer.transfer.experiment.choose_settings import choose_settings, open_start
from lmtransfer.transfer.experiment.cross_validation import CrossValidation
from lmtransfer.transfer.experiment.learning_rates import LearningRates
from lmtransfer.transfer.experiment.messages import next_commands, print_result
from lmtransfer.transfer.experiment.results import joint_result, majority_of, run_result
from lmtransfer.transfer.experiment.setting import Condition, Member, Setting
from lmtransfer.transfer.experiment.training_run import train_once
from lmtransfer.verdicts.conditions import Examples


def run_transfer(cfg: DictConfig, *, command: str) -> Path:
    """Run ``probe`` or ``finetune``.

    Args:
        cfg: the config.
        command: name of the command.

    Returns:
        The run directory.
    """
    check_transfer(cfg, command)
    source = open_start(cfg)
    name, resume = sweep_name(cfg.name), bool(cfg.resume) or in_sweep()
    run = Path(cfg.output_root) / command / name
    use_saved_config(cfg, RunDirectory(run))
    hardware = training_hardware(cfg, run=run, compile_by_itself=False)  # compiling takes longer than the training
    with distributed.process_group():
        console = Console(highlight=False, quiet=not distributed.is_main())
        settings = choose_settings(cfg, source, command=command, hardware=hardware, console=console)
        directory = RunDirectory.create(cfg.output_root, command, name, resume=resume)
        plain = cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True))
        if directory.config_path.is_file():
            origin = settings[0].origin
            same = origin is not None and (directory.read_versions().get("data") or {}).get("init") == origin
            started = directory.read_config()
            more_seeds = 1 < started.get("seeds", 1) < plain["seeds"]  # a single seed has no folder of its own
            allowed = [*(["init"] if same else []), *(["seeds"] if more_seeds else [])]
            check_resumable(started, plain, allowed=allowed)
            plain["control"] = plain["control"] or bool(started.get("control"))  # a control is not given up
        _write_files(directory, plain, settings[0])
        experiment = Experiment(command, plain, settings, directory, console)
        if experiment.is_finished:
            console.print(f"{short_path(directory.path)} is finished; nothing is left to do")
            result = directory.read_result(JointResult)
        else:
            result = experiment.result()
            directory.write_result(result)
            if not experiment.has_one_run:
                with tracked(settings[0].training.trackers, directory, quiet=True) as trackers:
                    trackers.finish(result)
        task = settings[0].task
        has_models = task.folds is None and experiment.keeps_weights
        others = [split for split in task.splits if split not in ("train", result.split)] if has_models else []
        commands = next_commands(directory.path, result, others, root=Path(cfg.output_root), init=bool(cfg.get("init")))
        print_result(console, result.values(), name=name, next_commands=commands)
    return directory.path


def _write_files(directory: RunDirectory, plain: dict[str, Any], setting: Setting) -> None:
    if distributed.is_main() and not directory.config_path.is_file():  # an existing run has its tokenizer
        with naming(directory.tokenizer):
            setting.tokenizer.save(directory.tokenizer)
    origin = {"init": setting.origin} if setting.origin else {}
    directory.write_versions(versions(data={"tokenizer": setting.tokenizer.fingerprint, **origin}))
    directory.write_config(plain)  # last: a folder with a config is a run
    mark_as_own(directory)


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
        return has_control and result.n >= len(self.seeds) * len(self.settings)

    def members(self, condition: Condition, learning_rate: float) -> list[Member]:
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
        tries, controls = self.learning_rates.tries(), trained.get("control", [])
        return joint_result(
            trained["pretrained"],
            controls,
            majority_of(self.setting),
            learning_rates=self.config["learning_rates"],
            init=self.config.get("init"),
            examples=(self._examples(trained["pretrained"]), self._examples(controls, is_control=True)),
            **({"learning_rate_tries": tries} if tries else {}),
        )

    def _learning_rate(self, condition: Condition) -> float:
        """The learning rate that the condition chooses."""
        who, where = _WHO[condition], self._chosen_on
        return self.learning_rates.choose(
            lambda rate: self.members(condition, rate),
            lambda rate, mean: self._say(f"{who}, learning rate {rate:g}: {self._shown(mean)} on {where}"),
        )

    def _run(self, member: Member) -> SeedResult:
        """Train one run, or read its result if it has finished."""
        nested = not member.is_control and len(self.settings) > 1
        parts = ["control"] if member.is_control else []
        parts += [f"pretraining-{member.pretraining_seed}"] if nested else []
        parts += [f"seed-{member.seed}"] if nested or len(self.seeds) > 1 else []
        directory = RunDirectory(self.directory.path.joinpath(*parts))
        if parts:
            self._drop_other_rate(directory, member)
        if parts and directory.is_finished:
            self._finish(directory)
            return directory.read_result(SeedResult)
        if parts:
            self._begin(directory, member)
        which = (
            f"{_WHO[member.condition]}, pretraining seed {member.pretraining_seed}"
            if nested
            else _WHO[member.condition]
        )
        which += f", seed {member.seed}"
        with tracked(member.setting.training.trackers, directory, quiet=not self.has_one_run) as trackers:
            if self.setting.task.folds is None:
                result, evaluation, longer = self._train(member, directory, trackers.all)
            else:
                (result, evaluation), longer = self._cross_validate(member, directory, which), ""
            self._keep(directory, member, evaluation)
            if parts:
                directory.write_result(result)
            trackers.finish(result)
        if parts:
            self._finish(directory)
        scored = f"{self._shown(result.score)} on {self.setting.data.split}"
        rate = f"learning rate {member.learning_rate:g}"
        self._say(f"{which}, {rate}: {scored} after {result.seconds:.0f} s{longer}")
        return result

    def _drop_other_rate(self, directory: RunDirectory, member: Member) -> None:
        """Delete a run with another learning rate: with more seeds, another rate may be chosen for all of them."""
        if not directory.config_path.is_file():
            return
        rate = (directory.read_config().get("optimizer") or {}).get("learning_rate", member.learning_rate)
        distributed.barrier()  # all ranks have read it
        if rate != member.learning_rate and distributed.is_main():
            shutil.rmtree(directory.path)
        distributed.barrier()

    def _train(
        self, member: Member, directory: RunDirectory, trackers: Sequence[Tracker]
    ) -> tuple[SeedResult, Evaluation, str]:
        """Train one run; returns its result, its answers, and a note if it was longer than its epochs."""
        progress = Progress(quiet=not self.has_one_run)
        outcome = train_once(member, run=directory, trackers=trackers, progress=progress)
        assert outcome.evaluation is not None
        searched = self.config["learning_rates"]
        result = run_result(member, outcome, command=self.command, rule=self._rule, learning_rates=searched)
        steps, passes = result.more["steps"], result.more["epochs"]
        longer = f", {steps:,} steps in {passes:.1f} epochs for train.min_steps" if outcome.was_lengthened else ""
        return result, outcome.evaluation, longer

    def _cross_validate(self, member: Member, directory: RunDirectory, which: str) -> tuple[SeedResult, Evaluation]:
        """Train one run for each fold; returns the result and the answers of all folds together."""

        def say(fold: int, result: SeedResult) -> None:
            self._say(f"{which}, fold {fold} of {self.setting.task.folds}: {self._shown(result.score)}")

        def begin(fold: RunDirectory) -> None:
            self._begin(fold, member)

        return CrossValidation(member, directory, self.command, self._rule, begin, say).result()

    def _begin(self, directory: RunDirectory, member: Member) -> None:
        """Make the run directory of a single run."""
        if distributed.is_main():
            directory.path.mkdir(parents=True, exist_ok=True)
        distributed.barrier()
        _write_files(directory, self._own_config(member), member.setting)

    def _finish(self, directory: RunDirectory) -> None:
        """Delete the weights of a single run that has its result, if they are not to be kept."""
        if not self.keeps_weights:
            directory.delete_weights()

    def _own_config(self, member: Member) -> dict[str, Any]:
        """The config of a command that would train only this run."""
        return {
            **self.config,
            "init": member.setting.init,
            "seed": member.seed,
            "seeds": 1,
            "control": False,
            "learning_rates": None,
            "optimizer": {**self.config["optimizer"], "learning_rate": member.learning_rate},
            **({"init": None, "tokenizer_from": self.config["init"]} if member.is_control else {}),
        }

    def _keep(self, directory: RunDirectory, member: Member, evaluation: Evaluation) -> None:
        """Write the answer to each example."""
        if evaluation.answers is None:
            self._say("predictions are not kept: they cannot be scored one by one, or there are too many examples")
            return
        kept = Kept(
            task=self.setting.task.name,
            split=self.setting.data.split,
            main_metric=self.setting.task.main_metric,
            seed=member.seed,
            pretraining_seed=member.pretraining_seed,
            is_control=member.is_control,
            examples=evaluation.answers,
        )
        if distributed.is_main():
            write_predictions(directory.path, {file_name(kept, alone=True): kept})
        distributed.barrier()

    def _examples(self, results: Sequence[SeedResult], *, is_control: bool = False) -> Examples | None:
        """The contribution of each example to the scores of a condition; None if it was not saved."""
        seeds = [(result.seed, result.pretraining_seed) for result in results]
        split, metric = self.setting.data.split, self.setting.task.main_metric
        kept = kept_of(kept_answers(self.directory.path), seeds, split=split, is_control=is_control)
        return None if kept is None else examples_of(kept, metric)

    @property
    def _chosen_on(self) -> str:
        if self.setting.data.choosing is not None:
            return "dev"
        return "held-out training examples"

    @property
    def _rule(self) -> str:
        """How checkpoint and learning rate were chosen."""
        folds = self.setting.task.folds
        return self._choice if folds is None else f"{self._choice}; each of {folds} folds scored by a run on the others"

    @property
    def _choice(self) -> str:
        best = self.setting.checkpoint == "best"
        rate = self.learning_rates.are_searched
        chosen = [*(["checkpoint"] if best else []), *(["learning rate"] if rate else [])]
        if not chosen:
            return "nothing was chosen: the weights at the end of training"
        also = ", which is also the scored split" if self._chosen_on == self.setting.data.split else ""
        end = "" if best else "; the weights at the end of training"
        metric = f"{self.setting.task.main_metric} (ties: loss)"
        return f"{' and '.join(chosen)} chosen by {metric} on {self._chosen_on}{also}{end}"

    def _shown(self, value: float) -> str:
        return f"{self.setting.task.main_metric} {shown(value, self.setting.task.main_metric)}"

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)


#: Names of the conditions in messages.
_WHO: dict[Condition, str] = {"pretrained": "run", "control": "control"}
