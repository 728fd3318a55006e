"""The trackers of a run, from its start to its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmtransfer.config.component import Node
from lmtransfer.errors import Interrupted
from lmtransfer.runs.result import RunResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.console import Console
from lmtransfer.training import process_group
from lmtransfer.training.trackers.base import Jsonl, Outcome, TrackedRun, Tracker, numbers_in
from lmtransfer.training.trackers.service_guard import ServiceGuard


class RunTrackers:
    """All trackers of one run: its ``metrics.jsonl`` and the services that the user has chosen."""

    def __init__(self, own: Jsonl, services: Sequence[ServiceGuard]) -> None:
        self.all: Sequence[Tracker] = (own, *services)
        self._services = services

    def finish(self, result: RunResult) -> None:
        """Pass the numbers in the result to the services, and wait until they have received everything."""
        values = result.values()
        del values["format"]
        metrics = numbers_in(values.pop("metrics"), prefix="result/")
        self._end("finished", numbers_in(values, prefix="result/") | metrics)

    def stop(self, error: BaseException | None) -> None:
        """Close the records of a run that ends without a result; do nothing after ``finish``."""
        interrupted = isinstance(error, Interrupted | KeyboardInterrupt)
        self._end("interrupted" if interrupted else "failed", {})

    def _end(self, outcome: Outcome, result: Mapping[str, float]) -> None:
        services, self._services = self._services, ()
        for service in services:
            service.finish(outcome, result)


@contextmanager
def open_trackers(
    nodes: Mapping[str, Node[Any]], directory: RunDirectory, *, quiet: bool = False
) -> Iterator[RunTrackers]:
    """Provide the trackers of a run on rank 0, and none on other ranks."""
    if not process_group.is_main():
        yield RunTrackers(Jsonl(folder=directory.path), ())
        return
    chosen = {name: node for name, node in nodes.items() if node.cls is not Jsonl}
    run = _describe(directory) if chosen else None
    services = [] if run is None else [ServiceGuard(node.build(), name=name, run=run) for name, node in chosen.items()]
    console = Console(stderr=True, highlight=False, quiet=quiet)
    for service in services:
        place = service.begin()
        if place is not None:
            console.print(f"tracker {service.name}: {place}", markup=False, soft_wrap=True)
    trackers = RunTrackers(Jsonl(folder=directory.path), services)
    try:
        yield trackers
    except BaseException as error:
        trackers.stop(error)
        raise


def _describe(directory: RunDirectory) -> TrackedRun:
    """Return a run's description to send to tracking services; a study's runs have the group ``study/<its name>``."""
    config = directory.read_config()
    root = Path(config["output_root"]).absolute()
    command, name, *_ = parts = directory.path.relative_to(root).parts
    group = f"study/{root.name}" if root.parent.name == "study" else f"{command}/{name}"
    return TrackedRun(
        name="/".join(parts),
        group=group,
        command=command,
        folder=directory.path,
        output_root=root,
        config=config,
    )
