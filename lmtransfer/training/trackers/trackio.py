"""Trackio, on this machine or in a Space of the hub (https://huggingface.co/docs/trackio)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmtransfer.errors import TrainingError
from lmtransfer.system.optional import optional
from lmtransfer.training.trackers.base import Outcome, Record, Service, TrackedRun


class Trackio(Service):
    """Keeps records in Trackio's own folder (``TRACKIO_DIR``), or in a Space.

    Args:
        project: name of the project.
        space: name of a Space on the hub; None for this machine only.
    """

    needs_packages = ("trackio",)

    def __init__(self, *, project: str = "lmtransfer", space: str | None = None) -> None:
        self.project, self.space = project, space

    def begin(self, run: TrackedRun, *, record: str | None, step: int) -> Record:
        """Begin a Trackio run, or resume the run of this name, which is the id of the record."""
        self.trackio: Any = optional("trackio", work="tracker=trackio", error=TrainingError)
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
        return Record(self.trackio_run.name, place, self._last_step())

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
        stored = self._last_step()
        if stored is not None and result and stored < step:
            raise TrainingError(f"of {step} steps, only those up to step {stored} are stored")

    def _free_name(self, name: str) -> str:
        """Return the name, with a number if a run in another folder has it; Trackio finds runs by name only."""
        taken = set(self._stored().get_runs(self.project)) if self.space is None else set()
        numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
        return next(free for free in (name, *numbered) if free not in taken)

    def _last_step(self) -> int | None:
        """Return the last step on this machine, because a kill loses the most recent steps; None in a Space."""
        if self.space is not None:
            return None
        step = self._stored().get_max_step_for_run(self.project, self.trackio_run.name, run_id=self.trackio_run.id)
        return -1 if step is None else int(step)

    def _stored(self) -> Any:
        """Trackio's storage on this machine."""
        return self.trackio.sqlite_storage.SQLiteStorage
