"""TensorBoard: event files in the run directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lmtransfer.errors import TrainingError
from lmtransfer.system.optional import import_optional
from lmtransfer.system.printable import short_path
from lmtransfer.training.trackers.base import Outcome, Service, ServiceRecord, TrackedRun


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
