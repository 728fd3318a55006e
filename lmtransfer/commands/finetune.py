"""Train a pretrained encoder and a new head on a task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lmtransfer.config.budget import check_budget
from lmtransfer.config.settings import TransferSettings
from lmtransfer.config.sweep_names import in_sweep, sweep_name
from lmtransfer.errors import ConfigError
from lmtransfer.launch.jobs import Place
from lmtransfer.reporting.what_now import Finding, Invocation, after_transfer, as_entry, transfer_findings
from lmtransfer.runs.create_or_resume import check_resumable
from lmtransfer.runs.result import JointResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.tracking import open_trackers
from lmtransfer.runs.training_setup import training_hardware
from lmtransfer.system.console import Console
from lmtransfer.system.printable import short_path
from lmtransfer.training import process_group
from lmtransfer.transfer.experiment.experiment import Experiment
from lmtransfer.transfer.experiment.facts import can_fold, transfer_facts
from lmtransfer.transfer.experiment.messages import print_result
from lmtransfer.transfer.experiment.part_run import write_run_files
from lmtransfer.transfer.experiment.settings import build_settings, open_start


def run(settings: TransferSettings) -> Path:
    """Train and write a run directory."""
    return transfer(settings, command="finetune")


def check_settings(settings: TransferSettings) -> None:
    """Check the settings of a run before any work starts."""
    problems = []
    if settings.hardware.shard:
        problems.append(
            "hardware.shard=true is for pretraining only; here each process holds the whole model, so set it to false"
        )
    if settings.init and settings.model is not None:
        problems.append("model= and init= are both set: the model comes from the run; leave model out")
    if settings.init and settings.tokenizer_from:
        problems.append(
            "tokenizer_from= and init= are both set: the tokenizer comes from the run; leave tokenizer_from out"
        )
    if not settings.init and (settings.model is None or not settings.tokenizer_from):
        problems.append(
            "init is missing: set the run directory of a pretrained encoder (init=runs/pretrain/<name>), or, to train "
            "only from random initialization, model=<model> tokenizer_from=<run directory>"
        )
    if not settings.init and settings.control:
        problems.append("control=true without init: the run itself starts from random weights; leave control out")
    if settings.checkpoint == "last" and settings.train.patience is not None:
        problems.append(
            "train.patience stops training when held-out scores stop improving, so it needs checkpoint=best"
        )
    if settings.learning_rates is not None and not settings.learning_rates:
        problems.append("learning_rates=[] contains no rate: use a list such as [1e-4,3e-4], or null")
    if "learning_rate" not in settings.optimizer.values:
        problems.append("optimizer.learning_rate: the optimizer has no such setting; choose another optimizer")
    if settings.final and (num_train := settings.task.get("num_train")) is not None:
        problems.append(
            f"final=true with task.num_train={num_train}: the final model is trained on all labeled examples; leave "
            "out one of the two"
        )
    problems += _fold_problems(settings)
    if problems:
        raise ConfigError(problems)
    method = settings.transfer.build()
    settings.schedule.build()  # raises if a setting is invalid
    factors = settings.optimizer.get("rates") or {}
    if method.freezing.is_frozen and any(factor != 1 for factor in factors.values()):
        raise ConfigError(
            [
                f"optimizer.rates.{part}={factor:g} with transfer.freeze=frozen: only the head is trained; set "
                "optimizer.learning_rate, and leave this factor at 1"
                for part, factor in factors.items()
                if factor != 1
            ]
        )
    groups = settings.chosen("corpus", "objective")
    if method.text is None and groups:
        raise ConfigError(
            [
                f"{group}= is set, but only transfer=joint uses text; choose transfer=joint, or leave {group} out"
                for group in groups
            ]
        )
    check_budget(settings.train)


def transfer(settings: TransferSettings, *, command: str) -> Path:
    """Train the run, its control and all seeds on a task."""
    check_settings(settings)
    place = Place.of(
        settings.jobs,
        settings.cluster,
        options=settings.options,
        cache_dir=settings.cache_dir,
        threads=settings.hardware.threads,
    )
    source, settings = open_start(settings)
    name, resume = sweep_name(settings.name), settings.resume or in_sweep()
    run = Path(settings.output_root) / command / name
    hardware, chosen = training_hardware(
        settings.hardware, num_workers=settings.train.num_workers, run=run, pretrains=False
    )
    settings = _with_parts_of(settings.model_copy(update={"hardware": chosen}), RunDirectory(run))
    with process_group.join(hardware.wait_seconds):
        console = Console(highlight=False, quiet=not process_group.is_main())
        starts, settings = build_settings(settings, source, hardware=hardware, console=console)
        if (part := settings.part) is not None:
            directory = RunDirectory.open(run)
            started = directory.read_config()
            of_command = ("output_root", "jobs", "cluster", "part", "resume")  # the words of the job set these
            own: dict[str, Any] = {key: started[key] for key in of_command if key in started}
            settings = settings.model_copy(update=own)
            Experiment(command, settings, starts, directory, console).train(part)
            return directory.path
        directory = RunDirectory.create(settings.output_root, command, name, resume=resume)
        if directory.config_path.is_file():
            origin = starts[0].origin
            same = origin is not None and (directory.read_versions().get("data") or {}).get("init") == origin
            started = directory.read_config()
            more_seeds = 1 < started.get("seeds", 1) < settings.seeds  # a single seed has no folder of its own
            allowed = [*(["init"] if same else []), *(["seeds"] if more_seeds else [])]
            check_resumable(started, settings.plain(), allowed=allowed)
        write_run_files(directory, settings, starts[0])
        experiment = Experiment(command, settings, starts, directory, console)
        invocation = Invocation(
            command=command,
            given=settings.given,
            name=name,
            output_root=Path(settings.output_root),
            options=place.options,
        )
        result = experiment.finished_result()
        was_finished = result is not None
        if was_finished:
            console.print(f"{short_path(directory.path)} is finished; nothing is left to do")
        elif not place.is_here:
            experiment.run_in_processes(place)
        result = result or experiment.result()
        findings: list[Finding] = []
        if isinstance(result, JointResult):  # a final model alone is not measured
            facts = transfer_facts(result, starts[0], source=source, seed=settings.seed, invocation=invocation)
            findings = transfer_findings(facts)
            counts = {"label_counts": facts.label_counts} if facts.label_counts else {}
            result = replace(result, more={**result.more, **counts, **as_entry(findings)})
        if not was_finished:
            directory.write_result(result)
            if not experiment.has_one_run:
                with open_trackers(settings.tracker, directory, quiet=True) as trackers:
                    trackers.finish(result)
        task = starts[0].task
        has_models = settings.final or (task.folds is None and experiment.keeps_weights)
        used = {"train", result.split, *(["dev"] if settings.final else [])}
        others = [split for split in task.splits if split not in used] if has_models else []
        print_result(
            console,
            result.values(),
            name=name,
            next_commands=after_transfer(invocation, result.values(), others, can_fold=can_fold(task)),
            findings=findings,
            metrics=task.metric_names,
        )
    return directory.path


def _with_parts_of(settings: TransferSettings, run: RunDirectory) -> TransferSettings:
    """Keep the control and the final model with which a run started."""
    started = run.read_config() if run.config_path.is_file() else {}
    kept = {key: getattr(settings, key) or bool(started.get(key)) for key in ("control", "final")}
    return settings.model_copy(update=kept)


def _fold_problems(settings: TransferSettings) -> list[str]:
    folds = settings.task.get("folds")
    if folds is None:
        return []
    problems = []
    if settings.learning_rates is not None:
        problems.append(
            f"learning_rates with task.folds={folds}: a rate chosen on all folds has seen the examples on which it is "
            "scored; set a single rate with optimizer.learning_rate"
        )
    if settings.split != "dev":
        problems.append(
            f"split={settings.split} with task.folds={folds}: cross-validation scores the folds; leave split out"
        )
    if settings.task.get("dev_from_train") is None and settings.checkpoint == "best":
        problems.append(
            f"task.dev_from_train=null with task.folds={folds}: no examples are left to choose a checkpoint; set a "
            "fraction, such as 0.1, or checkpoint=last"
        )
    return problems
