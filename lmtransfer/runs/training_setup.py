"""Builds from a configuration what training needs: the hardware, the loop settings, and the optimizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from lmtransfer.config.component import Node
from lmtransfer.config.settings import HardwareSettings, TrainSettings
from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.errors import ConfigError
from lmtransfer.models.execution import checkpoint_activations, compile_blocks, keep_residual
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.training.budget import Budget
from lmtransfer.training.hardware import Hardware, setup
from lmtransfer.training.loop import TrainerConfig
from lmtransfer.training.optim.optimizers import Optimizer
from lmtransfer.training.optim.schedules import Factor
from lmtransfer.training.precision import PrecisionName


def trainer_config(
    train: TrainSettings, hardware: Hardware, *, stream: PlannedStream, schedule: Factor, seed: int
) -> TrainerConfig:
    """Return the settings of the training loop."""
    return TrainerConfig(
        budget=Budget(
            steps=train.steps,
            tokens=train.tokens,
            epochs=train.epochs,
            min_steps=train.min_steps,
            seconds=train.seconds,
            steps_per_epoch=stream.steps_per_epoch if train.epochs else None,
        ),
        schedule=schedule,
        seed=seed,
        device=hardware.device,
        precision=hardware.precision,
        max_grad_norm=train.max_grad_norm,
        save_every=train.save_every,
        log_every=train.log_every,
    )


def build_optimizer(node: Node[Optimizer], learner: nn.Module) -> Optimizer:
    """Build the optimizer of a pretraining run; our classes take the learner, those of torch its parameters."""
    return node.build(learner=learner, params=[p for p in learner.parameters() if p.requires_grad])


def prepare_encoders(learner: nn.Module, hardware: Hardware, *, are_trained: bool = True) -> None:
    """Set the dtype of the residual streams in a learner's encoders; compile and recompute their blocks, as configured.

    Args:
        are_trained: whether the encoders are trained; blocks of a frozen encoder are neither compiled nor recomputed.
    """
    keep_residual(learner, hardware.residual, required=hardware.residual_set)
    if not are_trained:
        return
    if hardware.compile:
        compile_blocks(learner)
    if hardware.activation_checkpointing:
        checkpoint_activations(learner)


def eager_hardware(settings: HardwareSettings) -> Hardware:
    """Set up the hardware without compilation, which does not pay off for a single pass over the data."""
    chosen = settings.model_dump(include={"device", "precision", "threads", "wait_seconds"})
    return setup(**chosen, compile=False)


def training_hardware(
    settings: HardwareSettings, *, num_workers: int | None, run: Path, pretrains: bool
) -> tuple[Hardware, HardwareSettings]:
    """Set up the hardware of a training run; also return the settings with the chosen precision.

    Training depends on the precision, so ``config.yaml`` records it, and a resumed run keeps it on any machine.

    Args:
        pretrains: whether ``hardware.compile=auto`` may compile and ``hardware.residual=auto`` may be bfloat16. With
            few labels, compiling takes longer than the training, and small differences matter.
    """
    started_in = _precision_of(run) if settings.precision == "auto" else None
    precision = started_in or settings.precision
    changes: dict[str, Any] = {"precision": precision}
    if not pretrains:
        changes["compile"] = settings.compile is True
        changes["residual"] = "float32" if settings.residual == "auto" else settings.residual
    try:
        chosen = settings.model_copy(update=changes)
        hardware = setup(**chosen.model_dump(), num_workers=num_workers)
    except ConfigError as error:
        if started_in is None:
            raise
        raise ConfigError(f"{run} was started in {started_in} and must continue with it: {error}") from error
    if started_in is not None:
        hardware = replace(hardware, reason="as at the start of the run")
    return hardware, settings.model_copy(update={"precision": hardware.precision.name})


def _precision_of(run: Path) -> PrecisionName | None:
    directory = RunDirectory(run)
    if not directory.config_path.is_file():
        return None
    named = (directory.read_config().get("hardware") or {}).get("precision")
    return named if named in ("fp32", "bf16", "fp16") else None
