"""Which run began from which: the pretraining behind a finetuned run, and what it cost altogether."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from lmtransfer.reporting.runs.collect import RUN_FILES, Run, read_run
from lmtransfer.reporting.runs.labels import node_label
from lmtransfer.reporting.runs.scores import number

#: The commands whose runs are pretrained encoders.
PRETRAINED = ("pretrain", "import")


def starting_point(run: Run, runs: Sequence[Run]) -> Run | None:
    """The run that ``run`` took its weights from: the one named by ``init``, or by ``run`` for an evaluation.

    Found among ``runs`` by its path, else by the end of its path (the runs were moved together), else on disk.
    """
    path = run.config.get("run" if run.command == "evaluate" else "init")
    if not isinstance(path, str) or not path:
        return None
    wanted = PurePath(path)
    for other in runs:
        if other.path == Path(path) or str(other.path) == path:
            return other
    matches = [other for other in runs if other.key != run.key and _same_end(wanted, other)]
    if matches:
        return max(matches, key=lambda other: other.key.count("/"))
    if wanted.is_absolute() and any((Path(path) / file).is_file() for file in RUN_FILES):
        return read_run(Path(path), key="/".join(wanted.parts[-2:]))
    return None


def pretraining_run(run: Run, runs: Sequence[Run]) -> Run | None:
    """The nearest pretraining behind ``run``: itself, or what it (or what it evaluates) began from, or None.

    A published model that was imported counts as one.
    """
    return next((found for found in lineage(run, runs) if found.command in PRETRAINED), None)


def lineage(run: Run, runs: Sequence[Run]) -> list[Run]:
    """The run, what it began from, what that began from, and so on."""
    found: list[Run] = []
    current: Run | None = run
    while current is not None and current.path not in {known.path for known in found}:
        found.append(current)
        current = starting_point(current, runs)
    return found


def is_pretraining(run: Run) -> bool:
    """Whether the run trained on text without labels, or was imported, or measured one that did."""
    measures_text = run.command == "evaluate" and bool(run.result) and run.result.get("task") is None
    return run.command in PRETRAINED or measures_text


def pretraining_text(run: Run, runs: Sequence[Run]) -> str:
    """What a pretraining run and those that it went on from have read, the first first: ``published + imdb``."""
    texts = []
    for stage in reversed(lineage(run, runs)):
        if stage.command == "import":
            texts.append("published")
        elif stage.command == "pretrain":
            texts.append(node_label(stage.config.get("corpus")))
    return " + ".join(dict.fromkeys(text for text in texts if text))


def pretraining_budget(run: Run | None, runs: Sequence[Run]) -> tuple[float | None, float | None]:
    """Real tokens and seconds of a pretraining run and of the runs that it went on from; None where not known.

    Of a run with several seeds they are those of one, in the mean.
    """
    tokens: float | None = None
    seconds: float | None = None
    for stage in [] if run is None else lineage(run, runs):
        tokens, seconds = _add(tokens, _of_a_seed(stage, "tokens")), _add(seconds, _of_a_seed(stage, "seconds"))
    return tokens, seconds


def _of_a_seed(run: Run, name: str) -> float | None:
    """As ``total``, of one seed where a run was pretrained with several."""
    found, seeds = total(run, name), run.result.get("seeds")
    return found if found is None or not isinstance(seeds, list) or not seeds else found / len(seeds)


def total(run: Run, name: str) -> float | None:
    """``tokens`` or ``seconds`` of a run: from its result, else from its last logged step."""
    stated = number(run.result.get(name))
    if stated is not None:
        return stated
    return next((value for line in reversed(run.metrics) if (value := number(line.get(name))) is not None), None)


def _same_end(wanted: PurePath, other: Run) -> bool:
    """Whether the last parts of a path are the key of a run, such as ``pretrain/imdb``."""
    parts = tuple(other.key.split("/"))
    return len(parts) > 1 and wanted.parts[-len(parts) :] == parts


def _add(one: float | None, other: float | None) -> float | None:
    return one if other is None else (one or 0.0) + other
