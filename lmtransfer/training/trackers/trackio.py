"""Trackio, on this machine or in a Space of the hub (https://huggingface.co/docs/trackio)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmtransfer.errors import TrainingError
from lmtransfer.system.optional import import_optional
from lmtransfer.training.trackers.base import Outcome, Service, ServiceRecord, TrackedRun


class Trackio(Service):
    """Keeps records in Trackio's own folder (``TRACKIO_DIR``), or in a Space.

    Args:
        project: name of the project.
        space: name of a Space on the hub; None for this machine only.
    """

    needs_packages = ("trackio",)

    def __init__(self, *, project: str = "lmtransfer", space: str | None = None) -> None:
        self.project, self.space = project, space

    def begin(self, run: TrackedRun, *, record: str | None, step: int) -> ServiceRecord:
        """Begin a Trackio run, or resume the run of this name, which is the id of the record."""
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
        """Log the result at the last step, and wait until everything is stored.

        Raises:
            TrainingError: some records are not stored, for which Trackio itself raises no error.
        """
        if result:
            self.trackio_run.log(dict(result), step=step)
        self.trackio_run.finish()
        last_step = self._last_step()
        if last_step is not None and result and last_step < step:
            raise TrainingError(f"only the records up to step {last_step} of {step} are stored")

    def _free_name(self, name: str) -> str:
        """Return the name, with a number if a run in another folder has it; Trackio finds runs by name only."""
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
        """Return Trackio's storage on this machine."""
        return self.trackio.sqlite_storage.SQLiteStorage
