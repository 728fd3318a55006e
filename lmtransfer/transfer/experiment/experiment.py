"""Probing and finetuning, which differ in their defaults only: seeds, controls, tries of learning rates, one result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf, open_dict

from lmtransfer.config.budget import effective_train
from lmtransfer.config.build import build
from lmtransfer.config.check import check
from lmtransfer.config.sweep import in_sweep, sweep_name
from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.importing.opening import open_saved
from lmtransfer.kept_predictions.file import file_name, write_predictions
from lmtransfer.kept_predictions.scored import Kept
from lmtransfer.reporting.runs.kept import examples_of, kept_answers, kept_of
from lmtransfer.reporting.units import shown
from lmtransfer.runs.result import JointResult, SeedResult
from lmtransfer.runs.resume import as_it_began, check_resumable
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.saved import SavedRun, hold_encoder, new_encoder, pretraining_seed, pretraining_seeds
from lmtransfer.runs.training import training_hardware
from lmtransfer.runs.trust import seal
from lmtransfer.runs.versions import versions
from lmtransfer.system.cache_dir import default_cache_dir
from lmtransfer.system.console import Console
from lmtransfer.system.durable import write_text
from lmtransfer.system.machine import naming
from lmtransfer.system.printable import short_path
from lmtransfer.tasks.base import Task
from lmtransfer.training import distributed
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.progress import Progress
from lmtransfer.transfer.experiment.data import noted, read_task_data
from lmtransfer.transfer.experiment.one_run import Arm, Outcome, Setting, new_learner, train_once
from lmtransfer.transfer.experiment.results import (
    joint_result,
    majority_of,
    run_result,
)
from lmtransfer.transfer.experiment.start_token import with_trained_start
from lmtransfer.transfer.experiment.table import print_result
from lmtransfer.transfer.method import TransferMethod
from lmtransfer.untrusted.documents import read_json
from lmtransfer.untrusted.schema import Fields, Items, Real, Text, Whole
from lmtransfer.verdicts.arms import Examples

#: What ``learning_rate_tries.json`` holds.
_TRIES = Items(
    Fields({"arm": Text(("pretrained", "control")), "seed": Whole(), "learning_rate": Real(), "score": Real()})
)


def run_transfer(cfg: DictConfig, *, command: str) -> Path:
    """Run ``probe`` or ``finetune``.

    Args:
        cfg: the configuration.
        command: its name.

    Returns:
        The run directory.
    """
    check_transfer(cfg, command)
    source = open_saved(cfg.get("init") or cfg.tokenizer_from, key="init" if cfg.get("init") else "tokenizer_from")
    with open_dict(cfg):
        if cfg.get("init"):
            cfg.init = str(source.path)
            cfg.model = source.model_node
        else:
            cfg.tokenizer_from = str(source.path)
    name, resume = sweep_name(cfg.name), bool(cfg.resume) or in_sweep()
    run = Path(cfg.output_root) / command / name
    as_it_began(cfg, RunDirectory(run))
    hardware = training_hardware(cfg, run=run, compile_by_itself=False)  # few labels take less time than compiling
    with distributed.process_group():
        console = Console(highlight=False, quiet=not distributed.is_main())
        sources = pretraining_seeds(source) if cfg.get("init") else [source]
        settings = _settings(cfg, command, sources, hardware, console)
        setting = settings[0]
        directory = RunDirectory.create(cfg.output_root, command, name, resume=resume)
        plain = cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True))
        if directory.config_path.is_file():
            check_resumable(directory.read_config(), plain)
        _write_files(directory, plain, setting)
        if directory.is_finished and (directory.read_result().control or not cfg.control):
            console.print(f"{short_path(directory.path)} is finished; nothing is left to do")
            result = directory.read_result(JointResult)
        else:
            result = _Runs(cfg, plain, command, settings, directory, console).result()
            directory.write_result(result)
        others = [split for split in setting.task.splits if split not in ("train", result.split)]
        print_result(console, result.values(), name=name, next_commands=_next_commands(cfg, directory, result, others))
    return directory.path


def check_transfer(cfg: DictConfig, command: str) -> None:
    """Check all that can be told from the configuration alone.

    Raises:
        ConfigError: every problem.
    """
    nodes = {
        "task": {"data_root", "cache_dir"},
        "transfer": set[str](),
        "optimizer": {"learner", "lr_scales"},
        "schedule": set[str](),
        "tracker": {"folder"},
        **({"model": {"vocab_size"}} if cfg.get("model") is not None else {}),
    }
    check(cfg, primary=command, nodes=nodes)
    problems = []
    if cfg.get("init") and cfg.get("model") is not None:
        problems.append("model= and init= are both given: the model is that of the run; leave model= out")
    if cfg.get("init") and cfg.get("tokenizer_from"):
        problems.append(
            "tokenizer_from= and init= are both given: the tokenizer is that of the run; leave tokenizer_from= out"
        )
    if not cfg.get("init") and (cfg.get("model") is None or not cfg.get("tokenizer_from")):
        problems.append(
            "init: give the run directory of a pretrained encoder (init=runs/pretrain/<name>); to train from random "
            "initialisation alone, give model=<model> tokenizer_from=<run directory>"
        )
    if not cfg.get("init") and cfg.control:
        problems.append("control=true without init: the run itself starts from random initialisation already")
    if cfg.checkpoint not in ("best", "last"):
        problems.append(f"checkpoint={cfg.checkpoint}: must be best or last")
    if cfg.checkpoint == "last" and cfg.train.patience is not None:
        problems.append("train.patience stops training by the examples to choose by: it needs checkpoint=best")
    rates = cfg.learning_rates
    if rates is not None and not (OmegaConf.is_list(rates) and len(rates) and all(map(_is_rate, rates))):
        problems.append(f"learning_rates={rates}: give a list of positive numbers, such as [1e-4,3e-4], or null")
    if "learning_rate" not in cfg.optimizer:
        problems.append("optimizer.learning_rate: the optimiser has no such setting; choose another optimizer=")
    if problems:
        raise ConfigError(problems)
    for group in ("transfer", "schedule"):
        build(cfg[group])  # they need nothing but their settings, and say what is wrong with them


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _settings(
    cfg: DictConfig, command: str, sources: Sequence[SavedRun], hardware: Hardware, console: Console
) -> list[Setting]:
    """Read all that the runs have in common; a probe's or task's mistakes come out here, before any training.

    Returns:
        One for each pretraining seed, which differ in their weights; a single one without ``init``.
    """
    source = sources[0]
    train = effective_train(cfg, primary=command)
    cache_dir = default_cache_dir() if cfg.cache_dir is None else Path(cfg.cache_dir).expanduser().absolute()
    task: Task = build(cfg.task, data_root=cfg.data_root, cache_dir=str(cache_dir))
    if task.zero_shot:
        _ = task.head  # says that there is nothing to train
    if cfg.task.get("labels", "") is None:
        cfg.task.labels = list(task.labels)  # as found in the training file: they travel with the run by name
    method: TransferMethod = build(cfg.transfer)
    # Held against their configurations before an encoder of that size is made.
    held = [(one, hold_encoder(one)) for one in sources] if cfg.get("init") else []
    encoder = new_encoder(cfg.model, source.tokenizer, seed=0)
    begun = []
    for one, weights in held:
        console.print(f"encoder: {short_path(one.checkpoint())}, on {hardware}", soft_wrap=True)
        begun.append((one, with_trained_start(weights, encoder, one.tokenizer, one.config)))
    if "pieces" in cfg.transfer:
        cfg.transfer.pieces = method.resolved_pieces(encoder)  # what the run reads, and will be read with
    seeds = range(cfg.seed, cfg.seed + cfg.seeds)
    with console.status(f"reading {task.name}"):
        data = read_task_data(task, source.tokenizer, encoder, seeds=seeds, split=cfg.split)
    for line in noted(task):
        console.print(f"note: {line}", markup=False, soft_wrap=True)
    setting = Setting(
        task=task,
        tokenizer=source.tokenizer,
        model_node=cfg.model,
        weights=None,
        method=method,
        data=data,
        optimizer=cfg.optimizer,
        schedule=cfg.schedule,
        tracker=cfg.tracker,
        train=train,
        hardware=hardware,
        checkpoint=cfg.checkpoint,
        cache_dir=cache_dir,
    )
    settings = [
        replace(setting, weights=weights, init=str(one.path), pretraining_seed=pretraining_seed(one), features={})
        for one, weights in begun
    ] or [setting]
    for begun_from in settings:
        new_learner(begun_from, arm="pretrained", seed=cfg.seed)  # whether method and weights fit the encoder
    return settings


def _write_files(directory: RunDirectory, plain: dict[str, Any], setting: Setting) -> None:
    if distributed.is_main() and not directory.config_path.is_file():  # a run that is there has its tokenizer
        with naming(directory.tokenizer):
            setting.tokenizer.save(directory.tokenizer)
    directory.write_versions(versions(data={"tokenizer": setting.tokenizer.fingerprint}))
    directory.write_config(plain)  # last: with it the folder is a run
    seal(directory)


@dataclass(frozen=True, slots=True)
class _Runs:
    """The training runs of one command."""

    cfg: DictConfig
    plain: dict[str, Any]
    command: str
    settings: Sequence[Setting]
    directory: RunDirectory
    console: Console

    @property
    def setting(self) -> Setting:
        return self.settings[0]

    @property
    def seeds(self) -> Sequence[int]:
        return range(self.cfg.seed, self.cfg.seed + self.cfg.seeds)

    @property
    def arms(self) -> Sequence[Arm]:
        return ("pretrained", "control") if self.cfg.control else ("pretrained",)

    def result(self) -> JointResult:
        """Train whatever is not there yet, and put it together."""
        rates = {arm: self._learning_rate(arm) for arm in self.arms}
        trained = {
            arm: [self._run(arm, setting, seed, rates[arm]) for setting in self._of(arm) for seed in self.seeds]
            for arm in self.arms
        }
        tries, controls = self._tries(), trained.get("control", [])
        return joint_result(
            trained["pretrained"],
            controls,
            majority_of(self.setting),
            learning_rates=self.plain["learning_rates"],
            init=self.cfg.get("init"),
            examples=(self._examples(trained["pretrained"]), self._examples(controls, is_control=True)),
            **({"learning_rate_tries": tries} if tries else {}),
        )

    def _of(self, arm: Arm) -> Sequence[Setting]:
        """One setting for each pretraining seed; random weights are of none."""
        return self.settings if arm == "pretrained" else self.settings[:1]

    def _learning_rate(self, arm: Arm) -> float:
        """The arm's own choice: the rate whose main metric is best in the mean over seeds, on held-out examples."""
        rates = self.cfg.learning_rates
        if rates is None:
            return float(self.cfg.optimizer.learning_rate)
        if len(rates) == 1:
            return float(rates[0])
        means = {}
        for rate in rates:
            scores = [self._try(arm, setting, seed, float(rate)) for setting in self._of(arm) for seed in self.seeds]
            means[float(rate)] = sum(scores) / len(scores)
            self._say(f"{_who(arm)}, learning rate {rate:g}: {self._shown(means[float(rate)])} on {self._chosen_on}")
        return max(means, key=lambda rate: means[rate])

    def _try(self, arm: Arm, setting: Setting, seed: int, rate: float) -> float:
        """The main metric on held-out examples of a run that is not kept, remembered for ``resume``."""
        tries = self._tries()
        which: dict[str, Any] = {"arm": arm, "seed": seed, "learning_rate": rate}
        if len(self._of(arm)) > 1:
            which["pretraining_seed"] = setting.pretraining_seed
        for tried in tries:
            if all(tried.get(key) == value for key, value in which.items()):
                return float(tried["score"])
        outcome = train_once(setting, arm=arm, seed=seed, learning_rate=rate, run=None, progress=Progress(quiet=True))
        assert outcome.choosing_score is not None
        tries.append({**which, "score": outcome.choosing_score})
        if distributed.is_main():
            write_text(self._tries_path, json.dumps(tries, indent=1) + "\n")
        distributed.barrier()
        return outcome.choosing_score

    @property
    def _tries_path(self) -> Path:
        return self.directory.path / "learning_rate_tries.json"

    def _tries(self) -> list[dict[str, Any]]:
        if not self._tries_path.exists():
            return []
        return cast("list[dict[str, Any]]", read_json(self._tries_path, _TRIES, error=RunDirectoryError))

    def _run(self, arm: Arm, setting: Setting, seed: int, rate: float) -> SeedResult:
        """Train one run, or read its result if it has finished."""
        parts = ["control"] if arm == "control" else []
        nested = len(self._of(arm)) > 1
        parts += [f"pretraining-{setting.pretraining_seed}"] if nested else []
        parts += [f"seed-{seed}"] if nested or len(self.seeds) > 1 else []
        directory = RunDirectory(self.directory.path.joinpath(*parts))
        if parts and directory.is_finished:
            return directory.read_result(SeedResult)
        if parts:
            if distributed.is_main():
                directory.path.mkdir(parents=True, exist_ok=True)
            distributed.barrier()
            _write_files(directory, self._own_config(arm, setting, seed, rate), setting)
        alone = len(self.seeds) * len(self.settings) * len(self.arms) == 1
        outcome = train_once(
            setting, arm=arm, seed=seed, learning_rate=rate, run=directory, progress=Progress(quiet=not alone)
        )
        self._keep(directory, setting, outcome, arm, seed)
        result = run_result(
            setting, outcome, command=self.command, arm=arm, seed=seed, learning_rate=rate, rule=self._rule
        )
        if parts:
            directory.write_result(result)
        scored = f"{self._shown(result.score)} on {self.setting.data.split}"
        which = f"{_who(arm)}, pretraining seed {setting.pretraining_seed}" if nested else _who(arm)
        self._say(f"{which}, seed {seed}, learning rate {rate:g}: {scored} after {result.seconds:.0f} s")
        return result

    def _keep(self, directory: RunDirectory, setting: Setting, outcome: Outcome, arm: Arm, seed: int) -> None:
        """Write what was answered to each example."""
        assert outcome.evaluation is not None
        if outcome.evaluation.answers is None:
            self._say("predictions are not kept: the task cannot tell them one by one, or they are too many")
            return
        kept = Kept(
            task=setting.task.name,
            split=setting.data.split,
            main_metric=setting.task.main_metric,
            seed=seed,
            pretraining_seed=setting.pretraining_seed if arm == "pretrained" else None,
            is_control=arm == "control",
            examples=outcome.evaluation.answers,
        )
        if distributed.is_main():
            write_predictions(directory.path, {file_name(kept, alone=True): kept})
        distributed.barrier()

    def _examples(self, results: Sequence[SeedResult], *, is_control: bool = False) -> Examples | None:
        """What each example contributed to the scores of an arm; None where that was not kept."""
        seeds = [(result.seed, result.pretraining_seed) for result in results]
        split, metric = self.setting.data.split, self.setting.task.main_metric
        kept = kept_of(kept_answers(self.directory.path), seeds, split=split, is_control=is_control)
        return None if kept is None else examples_of(kept, metric)

    def _own_config(self, arm: Arm, setting: Setting, seed: int, rate: float) -> dict[str, Any]:
        """The configuration that would make this one run alone."""
        return {
            **self.plain,
            "init": setting.init,
            "seed": seed,
            "seeds": 1,
            "control": False,
            "learning_rates": None,
            "optimizer": {**self.plain["optimizer"], "learning_rate": rate},
            **({"init": None, "tokenizer_from": self.plain["init"]} if arm == "control" else {}),
        }

    @property
    def _chosen_on(self) -> str:
        if self.setting.data.choosing is not None:
            return "dev"
        return "held-out training examples"

    @property
    def _rule(self) -> str:
        """How checkpoint and learning rate were chosen."""
        rate = self.cfg.learning_rates is not None and len(self.cfg.learning_rates) > 1
        chosen = [*(["checkpoint"] if self.cfg.checkpoint == "best" else []), *(["learning rate"] if rate else [])]
        if not chosen:
            return "nothing was chosen: the end of training"
        also = ", which is also what is reported" if self._chosen_on == self.setting.data.split else ""
        end = "" if self.cfg.checkpoint == "best" else "; the end of training"
        metric = f"{self.setting.task.main_metric} (ties: loss)"
        return f"{' and '.join(chosen)} chosen by {metric} on {self._chosen_on}{also}{end}"

    def _shown(self, value: float) -> str:
        return f"{self.setting.task.main_metric} {shown(value, self.setting.task.main_metric)}"

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True)


def _who(arm: Arm) -> str:
    return "control" if arm == "control" else "run"


def _next_commands(cfg: DictConfig, directory: RunDirectory, result: JointResult, others: Sequence[str]) -> list[str]:
    """What the user might do next; ``others`` are the splits that were not scored."""
    path = short_path(directory.path)
    commands = []
    if cfg.get("init") and not result.control:
        commands.append("the same with control=true resume=true: what does it score without pretraining?")
    if others:
        commands.append(f"lmtransfer evaluate run={path} split={'test' if 'test' in others else others[0]}")
    commands.append(f"lmtransfer report {short_path(Path(cfg.output_root).absolute())}")
    return commands
