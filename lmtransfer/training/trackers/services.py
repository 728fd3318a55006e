"""The services that can record runs: MLflow, TensorBoard, Trackio and Weights & Biases."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from typing import Any, Literal

from lmtransfer.config.types import Address, HubName
from lmtransfer.errors import TrainingError
from lmtransfer.system.optional import import_optional
from lmtransfer.system.printable import short_path
from lmtransfer.training.trackers.base import Outcome, Service, ServiceRecord, TrackedRun, leaves

#: Limits for a server that does not answer; values set by the user are kept.
_LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
_STATES: Mapping[Outcome, str] = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
#: Maximum number of parameters in a request, and maximum length of a parameter value.
_MAX_PARAMS, _MAX_LENGTH = 100, 500
#: Settings of wandb, and its exit codes.
_TIMEOUT_SECONDS = 20.0
_FLUSH_SECONDS = 1.0  # a kill loses unflushed data of an offline file; the default is 15
_EXIT_CODES: Mapping[Outcome, int] = {"finished": 0, "interrupted": 75, "failed": 1}


class MLflow(Service):
    """Keeps records in an MLflow tracking store.

    Args:
        uri: the tracking store: address of a server, or ``sqlite:///<file>``; None for the value of
            ``MLFLOW_TRACKING_URI``, or else the file ``mlflow.db`` in ``output_root``.
        project: name of the MLflow experiment.
    """

    needs_packages = ("mlflow",)

    def __init__(self, *, project: str = "lmtransfer", uri: Address | None = None) -> None:
        self.project, self.uri = project, uri

    def begin(self, run: TrackedRun, *, record: str | None, step: int) -> ServiceRecord:
        """Begin an MLflow run, or continue the run with this id; begin a new one if the store does not have it."""
        for name, value in _LIMITS.items():
            os.environ.setdefault(name, value)
        self.mlflow: Any = import_optional("mlflow", work="tracker=mlflow", error=TrainingError)
        uri = (
            self.uri
            or os.environ.get("MLFLOW_TRACKING_URI")
            or f"sqlite:///{short_path(run.output_root / 'mlflow.db')}"
        )
        self.client: Any = self.mlflow.MlflowClient(tracking_uri=uri)
        place = uri if uri.startswith("http") else f"mlflow ui --backend-store-uri {uri}"
        if record is not None and self._has(record):
            self.run_id = record
            self.client.update_run(record, status="RUNNING")
            return ServiceRecord(record, place, self._last_step())
        self.run_id = self._new_run(run)
        return ServiceRecord(self.run_id, place, -1)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send the numbers in one request."""
        self._send(numbers, step)

    def finish(self, outcome: Outcome, result: Mapping[str, float], *, step: int) -> None:
        """Send the result, at the last step, and the run's final state."""
        self._send(result, step)
        self.client.set_terminated(self.run_id, status=_STATES[outcome])

    def _send(self, numbers: Mapping[str, float], step: int) -> None:
        now, metric = int(time.time() * 1000), self.mlflow.entities.Metric
        metrics = [metric(_clean(name), value, now, step) for name, value in numbers.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def _has(self, record: str) -> bool:
        try:
            self.client.get_run(record)
        except self.mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True

    def _last_step(self) -> int:
        """Return the last step of the run; every logged step has the metric ``tokens``."""
        return max((metric.step for metric in self.client.get_metric_history(self.run_id, "tokens")), default=-1)

    def _new_run(self, run: TrackedRun) -> str:
        """Create a run with the settings as parameters and return its id."""
        tags = {"group": run.group, "command": run.command}
        run_id = str(self.client.create_run(self._experiment_id(), tags=tags, run_name=run.name).info.run_id)
        settings = leaves(run.config, separator=".")
        params = [
            self.mlflow.entities.Param(_clean(name), str(value)[:_MAX_LENGTH]) for name, value in settings.items()
        ]
        for first in range(0, len(params), _MAX_PARAMS):
            self.client.log_batch(run_id, params=params[first : first + _MAX_PARAMS])
        return run_id

    def _experiment_id(self) -> str:
        experiment = self.client.get_experiment_by_name(self.project)
        if experiment is not None:
            return str(experiment.experiment_id)
        try:
            return str(self.client.create_experiment(self.project))
        except self.mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another run of the sweep has created it meanwhile
                raise
            return str(self.client.get_experiment_by_name(self.project).experiment_id)


def _clean(name: str) -> str:
    """Replace the characters that MLflow does not allow in a name."""
    return re.sub(r"[^\w\-./ ]", "_", name)


class TensorBoard(Service):
    """Writes event files to the folder ``tensorboard`` in the run directory."""

    needs_packages = ("tensorboard",)

    def begin(self, run: TrackedRun, *, record: str | None, step: int) -> ServiceRecord:
        """Open a new event file, which hides the steps after ``step`` in other event files."""
        import_optional("tensorboard", work="tracker=tensorboard", error=TrainingError)
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard"
        self.writer: Any = SummaryWriter(str(folder), purge_step=step + 1 if folder.exists() else None)
        if record is None:
            settings = json.dumps(run.config, indent=1, default=str)
            self.writer.add_text("config", "\n".join(f"    {line}" for line in settings.splitlines()))
        return ServiceRecord("tensorboard", f"tensorboard --logdir {short_path(run.output_root)}")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers to disk."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def finish(self, outcome: Outcome, result: Mapping[str, float], *, step: int) -> None:
        """Write the result at the last step."""
        for name, value in result.items():
            self.writer.add_scalar(name, value, step)
        self.writer.close()


class Trackio(Service):
    """Keeps records in Trackio's own folder (``TRACKIO_DIR``), or in a Space.

    Args:
        space: name of a Space on the hub; None for this machine only.
        project: name of the Trackio project.
    """

    needs_packages = ("trackio",)

    def __init__(self, *, project: str = "lmtransfer", space: HubName | None = None) -> None:
        self.project, self.space = project, space

    def begin(self, run: TrackedRun, *, record: str | None, step: int) -> ServiceRecord:
        """Begin a Trackio run, or resume the run whose name is the id of the record."""
        self.trackio: Any = import_optional("trackio", work="tracker=trackio", error=TrainingError)
        self.trackio_run = self.trackio.init(
            project=self.project,
            name=record or self._free_name(run.name),
            group=run.group,
            space_id=self.space,
            config=dict(run.config),
            resume="never" if record is None else "allow",
            embed=False,
        )
        place = f"trackio show --project {self.project}" if self.space is None else f"the Space {self.space}"
        return ServiceRecord(self.trackio_run.name, place, self._last_step())

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Hand the numbers to Trackio's own thread."""
        self.trackio_run.log(dict(numbers), step=step)

    def finish(self, outcome: Outcome, result: Mapping[str, float], *, step: int) -> None:
        """Log the result at the last step, and wait until everything is stored."""
        if result:
            self.trackio_run.log(dict(result), step=step)
        self.trackio_run.finish()
        last_step = self._last_step()
        if last_step is not None and result and last_step < step:
            raise TrainingError(f"only the records up to step {last_step} of {step} are stored")

    def _free_name(self, name: str) -> str:
        """Return the name, with a suffix if a run in another folder has it; Trackio finds runs by name only."""
        used = set(self._storage().get_runs(self.project)) if self.space is None else set()
        candidates = (name, *(f"{name}-{number}" for number in range(2, len(used) + 3)))
        return next(candidate for candidate in candidates if candidate not in used)

    def _last_step(self) -> int | None:
        """Return the last step on this machine, because a kill loses the most recent steps; None in a Space."""
        if self.space is not None:
            return None
        step = self._storage().get_max_step_for_run(self.project, self.trackio_run.name, run_id=self.trackio_run.id)
        return -1 if step is None else int(step)

    def _storage(self) -> Any:
        return self.trackio.sqlite_storage.SQLiteStorage


class Wandb(Service):
    """Keeps records at Weights & Biases, or offline in the folder ``trackers`` of the run directory.

    A resumed offline run has one more folder there, with the same id.

    Args:
        entity: user or team; None for the user's default.
        mode: "online" or "offline"; None for the value of ``WANDB_MODE``, or else "online".
        project: name of the project.
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
        """Begin a wandb run, or resume the run with this id."""
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
