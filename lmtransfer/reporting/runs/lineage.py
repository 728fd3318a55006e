"""The lineage of runs: the pretraining of a finetuned run, and its total cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from lmtransfer.config.revisions import split_revision, with_revision
from lmtransfer.reporting.runs.collect import RUN_FILES, Run, read_run
from lmtransfer.reporting.runs.scores import number
from lmtransfer.runs.labels import node_label

#: The commands that produce pretrained encoders.
PRETRAINED = ("pretrain", "import")


def starting_point(run: Run, runs: Sequence[Run]) -> Run | None:
    """Find the run that ``run`` took its weights from: named by ``init``, or by ``run`` for an evaluation.

    Search ``runs`` for the path, then for the end of the path (in case the runs were moved together), then the disk.
    For a revision, the result is the run as it was then.
    """
    named = run.config.get("run" if run.command == "evaluate" else "init")
    if not isinstance(named, str) or not named:
        return None
    path, revision = split_revision(named)
    start = _run_at(path, run, runs)
    return start if start is None or revision is None else at_revision(start, revision)


def _run_at(path: str, run: Run, runs: Sequence[Run]) -> Run | None:
    """The run at the path that ``run`` names."""
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


def at_revision(run: Run, tokens: int) -> Run:
    """Return a pretraining run as of ``tokens`` tokens, with a proportional share of its seconds and FLOP."""
    end = _of_a_seed(run, "tokens")
    entries = {key: run.result[key] for key in ("command", "num_parameters", "seeds") if key in run.result}
    spent = {
        name: tokens * whole / end
        for name in ("tokens", "seconds", "flops")
        if end and (whole := total(run, name)) is not None
    }
    lines = tuple(line for line in run.metrics if (seen := number(line.get("tokens"))) is not None and seen <= tokens)
    key = with_revision(run.key, tokens)
    return replace(run, key=key, result={**entries, **spent}, metrics=lines, revision=tokens)


def pretraining_run(run: Run, runs: Sequence[Run]) -> Run | None:
    """The nearest pretraining run of ``run``, if any: itself, or the run that it (or the evaluated run) started from.

    An imported published model also counts.
    """
    return next((ancestor for ancestor in lineage(run, runs) if ancestor.command in PRETRAINED), None)


def lineage(run: Run, runs: Sequence[Run]) -> list[Run]:
    """The run, its starting point, the starting point's own starting point, and so on."""
    ancestors: list[Run] = []
    current: Run | None = run
    while current is not None and current.weights not in {known.weights for known in ancestors}:
        ancestors.append(current)
        current = starting_point(current, runs)
    return ancestors


def is_pretraining(run: Run) -> bool:
    """Whether the run trained on unlabelled text, was imported, or evaluated such a run."""
    measures_text = run.command == "evaluate" and bool(run.result) and run.result.get("task") is None
    return run.command in PRETRAINED or measures_text


def pretraining_text(run: Run, runs: Sequence[Run]) -> str:
    """The texts of a pretraining run and of the runs that it continued, earliest first: ``published + imdb``."""
    texts = []
    for stage in reversed(lineage(run, runs)):
        if stage.command == "import":
            texts.append("published")
        elif stage.command == "pretrain":
            texts.append(node_label(stage.config.get("corpus")))
    return " + ".join(dict.fromkeys(text for text in texts if text))


def pretraining_budget(run: Run | None, runs: Sequence[Run]) -> tuple[float | None, float | None]:
    """Real tokens and seconds of a pretraining run and of the runs that it continued; None if unknown.

    The numbers of a run with several seeds are means over the seeds.
    """
    tokens: float | None = None
    seconds: float | None = None
    for stage in [] if run is None else lineage(run, runs):
        tokens, seconds = _add(tokens, _of_a_seed(stage, "tokens")), _add(seconds, _of_a_seed(stage, "seconds"))
    return tokens, seconds


def _of_a_seed(run: Run, name: str) -> float | None:
    """The same as ``total``, but the mean per seed for a run with several seeds."""
    cost, seeds = total(run, name), run.result.get("seeds")
    return cost if cost is None or not isinstance(seeds, list) or not seeds else cost / len(seeds)


def total(run: Run, name: str) -> float | None:
    """``tokens`` or ``seconds`` of a run: from its result, else from its last logged step."""
    reported = number(run.result.get(name))
    if reported is not None:
        return reported
    return next((value for line in reversed(run.metrics) if (value := number(line.get(name))) is not None), None)


def _same_end(wanted: PurePath, other: Run) -> bool:
    """Whether the end of a path is the key of a run, such as ``pretrain/imdb``."""
    parts = tuple(other.key.split("/"))
    return len(parts) > 1 and wanted.parts[-len(parts) :] == parts


def _add(one: float | None, other: float | None) -> float | None:
    return one if other is None else (one or 0.0) + other
