"""One training run of a command, with its files: begun or continued, scored, and finished."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.kept_predictions.file import file_name, write_predictions
from lmtransfer.kept_predictions.scored import Kept
from lmtransfer.runs.result import SeedResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.tracking import tracked
from lmtransfer.runs.trust import mark_as_own
from lmtransfer.runs.versions import versions
from lmtransfer.system.machine import naming
from lmtransfer.training import distributed
from lmtransfer.training.progress import Progress
from lmtransfer.training.trackers.base import Tracker
from lmtransfer.transfer.evaluation import Evaluation
from lmtransfer.transfer.experiment.cross_validation import CrossValidation
from lmtransfer.transfer.experiment.results import run_result
from lmtransfer.transfer.experiment.setting import Member, Setting
from lmtransfer.transfer.experiment.training_run import train_once


@dataclass(frozen=True, slots=True)
class SingleRun:
    """The run of one member.

    Attributes:
        member: condition, seed and learning rate.
        directory: its directory.
        has_own_folder: whether this is a folder in the directory of the command, with the files of a run; otherwise it
            is the directory of the command, which writes them.
        command: "probe" or "finetune".
        config: the config of the command as plain values.
        rule: how checkpoint and learning rate are chosen, in words.
        who: its name in messages.
        say: prints a line.
        is_only: whether the command has no other run; then progress is shown.
        keep_weights: whether its weights stay when it is finished.
    """

    member: Member
    directory: RunDirectory
    has_own_folder: bool
    command: str
    config: Mapping[str, Any]
    rule: str
    who: str
    say: Callable[[str], None]
    is_only: bool
    keep_weights: bool

    def result(self) -> SeedResult:
        """Train it, or read its result if it has finished."""
        member, directory = self.member, self.directory
        if self.has_own_folder:
            self._drop_other_rate()
            if directory.is_finished:
                self._finish()
                return directory.read_result(SeedResult)
            self._begin(directory)
        with tracked(member.setting.training.trackers, directory, quiet=not self.is_only) as trackers:
            if member.setting.task.folds is None:
                result, evaluation, longer = self._train(trackers.all)
            else:
                (result, evaluation), longer = self._cross_validate(), ""
            self._keep(evaluation)
            if self.has_own_folder:
                directory.write_result(result)
            trackers.finish(result)
        if self.has_own_folder:
            self._finish()
        scored = f"{member.setting.shown(result.score)} on {member.setting.data.split}"
        rate, strength = member.learning_rate, result.more.get("C")  # folds choose a C each
        chosen = f", learning rate {rate:g}" if rate is not None else "" if strength is None else f", C {strength:g}"
        self.say(f"{self.who}{chosen}: {scored} after {result.seconds:.0f} s{longer}")
        return result

    def _drop_other_rate(self) -> None:
        """Delete a run with another learning rate: with more seeds, another rate may be chosen for all of them."""
        if not self.directory.config_path.is_file():
            return
        rate = (self.directory.read_config().get("optimizer") or {}).get("learning_rate", self.member.learning_rate)
        distributed.barrier()  # all ranks have read it
        if rate != self.member.learning_rate and distributed.is_main():
            shutil.rmtree(self.directory.path)
        distributed.barrier()

    def _begin(self, directory: RunDirectory) -> None:
        """Make the directory of this run, or of a fold of it."""
        if distributed.is_main():
            directory.path.mkdir(parents=True, exist_ok=True)
        distributed.barrier()
        write_run_files(directory, self._own_config(), self.member.setting)

    def _own_config(self) -> dict[str, Any]:
        """The config of a command that would train only this run."""
        member, rate = self.member, self.member.learning_rate
        return {
            **self.config,
            "init": member.setting.init,
            "seed": member.seed,
            "seeds": 1,
            "control": False,
            "learning_rates": None,
            **({} if rate is None else {"optimizer": {**self.config["optimizer"], "learning_rate": rate}}),
            **({"init": None, "tokenizer_from": self.config["init"]} if member.is_control else {}),
        }

    def _train(self, trackers: Sequence[Tracker]) -> tuple[SeedResult, Evaluation, str]:
        """Train; returns the result, the answers, and a note if the run was longer than its epochs."""
        progress = Progress(quiet=not self.is_only)
        outcome = train_once(self.member, run=self.directory, trackers=trackers, progress=progress)
        assert outcome.evaluation is not None
        searched = self.config["learning_rates"]
        result = run_result(self.member, outcome, command=self.command, rule=self.rule, learning_rates=searched)
        steps, passes = result.more["steps"], result.more["epochs"]
        longer = f", {steps:,} steps in {passes:.1f} epochs for train.min_steps" if outcome.was_lengthened else ""
        return result, outcome.evaluation, longer

    def _cross_validate(self) -> tuple[SeedResult, Evaluation]:
        """Train one run for each fold; returns the result and the answers of all folds together."""
        folds = self.member.setting.task.folds

        def say(fold: int, result: SeedResult) -> None:
            self.say(f"{self.who}, fold {fold} of {folds}: {self.member.setting.shown(result.score)}")

        return CrossValidation(self.member, self.directory, self.command, self.rule, self._begin, say).result()

    def _keep(self, evaluation: Evaluation) -> None:
        """Write the answer to each example."""
        if evaluation.answers is None:
            self.say("predictions are not kept: they cannot be scored one by one, or there are too many examples")
            return
        member, setting = self.member, self.member.setting
        kept = Kept(
            task=setting.task.name,
            split=setting.data.split,
            main_metric=setting.task.main_metric,
            seed=member.seed,
            pretraining_seed=member.pretraining_seed,
            is_control=member.is_control,
            examples=evaluation.answers,
        )
        if distributed.is_main():
            write_predictions(self.directory.path, {file_name(kept, alone=True): kept})
        distributed.barrier()

    def _finish(self) -> None:
        if not self.keep_weights:
            self.directory.delete_weights()


def write_run_files(directory: RunDirectory, config: dict[str, Any], setting: Setting) -> None:
    """Write the files that make a folder a run, the config last; a tokenizer that is there stays."""
    if distributed.is_main() and not directory.config_path.is_file():
        with naming(directory.tokenizer):
            setting.tokenizer.save(directory.tokenizer)
    origin = {"init": setting.origin} if setting.origin else {}
    directory.write_versions(versions(data={"tokenizer": setting.tokenizer.fingerprint, **origin}))
    directory.write_config(config)
    mark_as_own(directory)
