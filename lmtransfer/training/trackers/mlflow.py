"""MLflow, on a server or in a file (https://mlflow.org/docs)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from lmtransfer.errors import TrainingError
from lmtransfer.system.optional import import_optional
from lmtransfer.system.printable import short_path
from lmtransfer.training.trackers.base import Outcome, Service, ServiceRecord, TrackedRun, leaves

#: Limits for a server that does not answer; values set by the user are kept.
_LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
_STATES: Mapping[Outcome, str] = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
#: Maximum number of parameters in a request, and maximum length of a parameter value.
_MAX_PARAMS, _MAX_LENGTH = 100, 500


class MLflow(Service):
    """Keeps records in an MLflow tracking store.

    Args:
        project: name of the MLflow experiment.
        uri: the tracking store: address of a server, or ``sqlite:///<file>``; None for the value of
            ``MLFLOW_TRACKING_URI``, or else the file ``mlflow.db`` in ``output_root``.
    """

    needs_packages = ("mlflow",)

    def __init__(self, *, project: str = "lmtransfer", uri: str | None = None) -> None:
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
        """Whether the store has this run."""
        try:
            self.client.get_run(record)
        except self.mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True

    def _last_step(self) -> int:
        """Return the last step of the run; every logged step has the number of tokens."""
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
