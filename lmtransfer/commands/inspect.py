"""Show what the model sees of a corpus or a task, and what training would cost."""

from __future__ import annotations

from lmtransfer.config.settings import InspectSettings
from lmtransfer.inference.inspection.pretraining import inspect_pretraining
from lmtransfer.inference.inspection.task import inspect_task
from lmtransfer.pretraining.checks import check_pretraining
from lmtransfer.system.console import Console


def run(settings: InspectSettings) -> None:
    """Print the full report; nothing is written to disk except the corpus cache."""
    console = Console(highlight=False)
    if settings.task is not None:
        inspect_task(settings, settings.task, console)
    else:
        inspect_pretraining(check_pretraining(settings), console)
