"""Weights & Biases, online or offline (https://docs.wandb.ai)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from lmtransfer.errors import TrainingError
from lmtransfer.system.optional import import_optional
from lmtransfer.system.printable import short_path
from lmtransfer.training.trackers.base import Outcome, Service, ServiceRecord, TrackedRun

_TIMEOUT_SECONDS = 20.0
_FLUSH_SECONDS = 1.0  # a kill loses unflushed data of an offline file; the default is 15
_EXIT_CODES: Mapping[Outcome, int] = {"finished": 0, "interrupted": 75, "failed": 1}


class Wandb(Service):
    """Keeps records at Weights & Biases, or offline in the folder ``trackers`` of the run directory.

    A resumed offline run has one more folder there, with the same id.

    Args:
        project: name of the project.
        entity: user or team; None for the user's default.
        mode: "online" or "offline"; None for the value of ``WANDB_MODE``, or else "online".
    """

    needs_packages = ("wandb",)

    def __init__(
        self,
        *,
        project: str = "lmtransfer",
        entity: str | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        self.project, self.entity, self.mode = project, entity, mode

    def begin(self, run: TrackedRun, *, record: str | None, step: int) -> ServiceRecord:
        """Begin a wandb run, or resume the run with this id.

        Raises:
            TrainingError: no API key is available.
        """
        wandb: Any = import_optional("wandb", work="tracker=wandb", error=TrainingError)
        mode = self.mode or os.environ.get("WANDB_MODE", "online")
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            raise TrainingError(
                "there is no API key: run `wandb login`, set WANDB_API_KEY, or set tracker.wandb.mode=offline"
            )
        self.wandb_run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=mode,
            dir=str(run.service_files),
            id=record,
            resume=None if record is None else "allow",
            name=run.name,
            group=run.group,
            job_type=run.command,
            config=dict(run.config),
            allow_val_change=True,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=_TIMEOUT_SECONDS,
                finish_timeout=_TIMEOUT_SECONDS,
                finish_timeout_raises=True,
                x_transaction_log_flush_interval=_FLUSH_SECONDS,
            ),
        )
        if mode == "online":
            return ServiceRecord(self.wandb_run.id, self.wandb_run.url, self.wandb_run.starting_step - 1)
        files = short_path(run.service_files)
        return ServiceRecord(self.wandb_run.id, f"offline; upload with: wandb sync {files}/wandb/offline-run-*")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Hand the numbers to wandb's own process."""
        self.wandb_run.log(dict(numbers), step=step, commit=True)

    def finish(self, outcome: Outcome, result: Mapping[str, float], *, step: int) -> None:
        """Write the result into the summary, and wait until everything is uploaded or on disk."""
        self.wandb_run.summary.update(dict(result))
        self.wandb_run.finish(exit_code=_EXIT_CODES[outcome])
