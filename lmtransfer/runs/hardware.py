"""Where a command computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, open_dict

from lmtransfer.config.schema import HardwareSettings
from lmtransfer.errors import ConfigError
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.training.hardware import Hardware, setup
from lmtransfer.training.precision import PrecisionName


def eager_hardware(cfg: DictConfig) -> Hardware:
    """The configured hardware, for commands that read each batch once, so that compiling would not pay."""
    settings = HardwareSettings.from_config(cfg.hardware)
    return setup(device=settings.device, precision=settings.precision, threads=settings.threads, compile=False)


def training_hardware(cfg: DictConfig, *, run: Path, compile_by_itself: bool) -> Hardware:
    """The hardware of a training run; the number format that was chosen becomes part of the configuration.

    What is learnt depends on the format, so ``config.yaml`` names it, and a resumed run keeps it on any machine.

    Args:
        cfg: the command's; ``hardware.precision`` is set to what was chosen.
        run: the run directory, which may exist.
        compile_by_itself: whether ``hardware.compile=auto`` may compile.

    Raises:
        ConfigError: see ``setup``; or the run that is gone on with was begun in a format that this device lacks.
    """
    settings = HardwareSettings.from_config(cfg.hardware)
    begun_in = _format_of(run) if settings.precision == "auto" else None
    precision = begun_in or settings.precision
    compiled = settings.compile if compile_by_itself else settings.compile is True
    try:
        hardware = setup(device=settings.device, precision=precision, threads=settings.threads, compile=compiled)
    except ConfigError as error:
        if begun_in is None:
            raise
        raise ConfigError(f"{run} was begun in {begun_in}, and goes on in it: {error}") from error
    if begun_in is not None:
        hardware = replace(hardware, reason="as the run was begun")
    with open_dict(cfg):
        cfg.hardware.precision = hardware.precision.name
    return hardware


def _format_of(run: Path) -> PrecisionName | None:
    """The number format that a run was begun in, where its configuration names one."""
    directory = RunDirectory(run)
    if not directory.config_path.is_file():
        return None
    named = (directory.read_config().get("hardware") or {}).get("precision")
    return named if named in ("fp32", "bf16", "fp16") else None
