"""Train a pretrained encoder and a new head on a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.check import check
from lmtransfer.config.component import build
from lmtransfer.config.effective import effective_train
from lmtransfer.config.settings import ClusterSettings, HardwareSettings
from lmtransfer.config.sweep_names import in_sweep, sweep_name
from lmtransfer.errors import ConfigError
from lmtransfer.launch.jobs import Place
from lmtransfer.runs.create_or_resume import check_resumable
from lmtransfer.runs.result import JointResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.tracking import open_trackers, tracker_nodes, trackers_of
from lmtransfer.runs.training_setup import training_hardware
from lmtransfer.system.console import Console
from lmtransfer.system.printable import short_path
from lmtransfer.training import process_group
from lmtransfer.transfer.experiment.experiment import Experiment
from lmtransfer.transfer.experiment.messages import next_commands, print_result
from lmtransfer.transfer.experiment.part_run import write_run_files
from lmtransfer.transfer.experiment.settings import build_settings, open_start
from lmtransfer.transfer.joint import user_nodes
from lmtransfer.transfer.method import TransferMethod


def run(cfg: DictConfig) -> Path:
    """Train and write a run directory."""
    return transfer(cfg, command="finetune")


def check_settings(cfg: DictConfig) -> None:
    """Check the settings of a run before any work starts."""
    check_settings_of(cfg, command="finetune")


def check_settings_of(cfg: DictConfig, *, command: str) -> None:
    """Check the settings of ``probe`` or ``finetune``; see ``check_settings``."""
    check_transfer(cfg, command)
    effective_train(cfg, primary=command)


def transfer(cfg: DictConfig, *, command: str) -> Path:
    """Train the run, its control and all seeds on a task."""
    check_transfer(cfg, command)
    place = Place.of(cfg.jobs, ClusterSettings.of(cfg), command=command)
    source = open_start(cfg)
    name, resume = sweep_name(cfg.name), bool(cfg.resume) or in_sweep()
    run = Path(cfg.output_root) / command / name
    hardware, chosen = training_hardware(
        HardwareSettings.from_config(cfg.hardware), num_workers=cfg.train.num_workers, run=run, pretrains=False
    )
    cfg.hardware.precision = chosen.precision
    with process_group.join():
        console = Console(highlight=False, quiet=not process_group.is_main())
        settings = build_settings(cfg, source, command=command, hardware=hardware, console=console)
        if cfg.part is not None:
            directory = RunDirectory.open(run)
            Experiment(command, directory.read_config(), settings, directory, console).train(cfg.part)
            return directory.path
        directory = RunDirectory.create(cfg.output_root, command, name, resume=resume)
        config = cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True))
        if directory.config_path.is_file():
            origin = settings[0].origin
            same = origin is not None and (directory.read_versions().get("data") or {}).get("init") == origin
            started = directory.read_config()
            more_seeds = 1 < started.get("seeds", 1) < config["seeds"]  # a single seed has no folder of its own
            allowed = [*(["init"] if same else []), *(["seeds"] if more_seeds else [])]
            check_resumable(started, config, allowed=allowed)
            config["control"] = config["control"] or bool(started.get("control"))  # keep an existing control
        write_run_files(directory, config, settings[0])
        experiment = Experiment(command, config, settings, directory, console)
        if experiment.is_finished:
            console.print(f"{short_path(directory.path)} is finished; nothing is left to do")
            result = directory.read_result(JointResult)
        else:
            if not place.is_here:
                experiment.run_in_processes(place)
            result = experiment.result()
            directory.write_result(result)
            if not experiment.has_one_run:
                with open_trackers(trackers_of(config), directory, quiet=True) as trackers:
                    trackers.finish(result)
        task = settings[0].task
        has_models = task.folds is None and experiment.keeps_weights
        others = [split for split in task.splits if split not in ("train", result.split)] if has_models else []
        commands = next_commands(directory.path, result, others, root=Path(cfg.output_root), init=bool(cfg.get("init")))
        print_result(console, result.values(), name=name, next_commands=commands, metrics=task.metric_names)
    return directory.path


def check_transfer(cfg: DictConfig, command: str) -> None:
    """Check everything that depends only on the config."""
    nodes = {
        "task": {"data_root", "cache_dir"},
        "transfer": set[str](),
        "optimizer": {"learner", "lr_scales"},
        "schedule": set[str](),
        **tracker_nodes(cfg),
        **({"model": {"vocab_size"}} if cfg.get("model") is not None else {}),
        **user_nodes(cfg),
    }
    check(cfg, primary=command, nodes=nodes)
    problems = []
    if cfg.hardware.shard:
        problems.append(
            "hardware.shard=true is for pretraining only; here each process holds the whole model, so set it to false"
        )
    if cfg.get("init") and cfg.get("model") is not None:
        problems.append("model= and init= are both set: the model comes from the run; leave model out")
    if cfg.get("init") and cfg.get("tokenizer_from"):
        problems.append(
            "tokenizer_from= and init= are both set: the tokenizer comes from the run; leave tokenizer_from out"
        )
    if not cfg.get("init") and (cfg.get("model") is None or not cfg.get("tokenizer_from")):
        problems.append(
            "init is missing: set the run directory of a pretrained encoder (init=runs/pretrain/<name>), or, to train "
            "only from random initialization, model=<model> tokenizer_from=<run directory>"
        )
    if not cfg.get("init") and cfg.control:
        problems.append("control=true without init: the run itself starts from random weights; leave control out")
    if cfg.checkpoint == "last" and cfg.train.patience is not None:
        problems.append(
            "train.patience stops training when held-out scores stop improving, so it needs checkpoint=best"
        )
    if cfg.learning_rates is not None and not cfg.learning_rates:
        problems.append("learning_rates=[] contains no rate: use a list such as [1e-4,3e-4], or null")
    if "learning_rate" not in cfg.optimizer:
        problems.append("optimizer.learning_rate: the optimizer has no such setting; choose another optimizer")
    problems += _fold_problems(cfg)
    if problems:
        raise ConfigError(problems)
    method: TransferMethod = build(cfg.transfer)
    build(cfg.schedule)  # raises if a setting is invalid
    factors = cfg.optimizer.get("rates") or {}
    if method.freezing.is_frozen and any(factor != 1 for factor in factors.values()):
        raise ConfigError(
            [
                f"optimizer.rates.{part}={factor:g} with transfer.freeze=frozen: only the head is trained; set "
                "optimizer.learning_rate, and leave this factor at 1"
                for part, factor in factors.items()
                if factor != 1
            ]
        )
    groups = [group for group in ("corpus", "objective") if cfg.get(group) is not None]
    if method.text is None and groups:
        raise ConfigError(
            [
                f"{group}= is set, but only transfer=joint uses text; choose transfer=joint, or leave {group} out"
                for group in groups
            ]
        )


def _fold_problems(cfg: DictConfig) -> list[str]:
    folds = cfg.task.get("folds")
    if folds is None:
        return []
    problems = []
    if cfg.learning_rates is not None:
        problems.append(
            f"learning_rates with task.folds={folds}: a rate chosen on all folds has seen the examples on which it is "
            "scored; set a single rate with optimizer.learning_rate"
        )
    if cfg.split != "dev":
        problems.append(
            f"split={cfg.split} with task.folds={folds}: cross-validation scores the folds; leave split out"
        )
    if cfg.task.get("dev_from_train") is None and cfg.checkpoint == "best":
        problems.append(
            f"task.dev_from_train=null with task.folds={folds}: no examples are left to choose a checkpoint; set a "
            "fraction, such as 0.1, or checkpoint=last"
        )
    return problems
