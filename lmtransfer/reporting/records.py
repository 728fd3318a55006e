"""Collects all runs in one pandas table, with a row per seed, for plots and analyses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtransfer.reporting.result_tables import results_table, table_rows
from lmtransfer.reporting.runs.collect import Run, collect
from lmtransfer.reporting.runs.entries import Entry, make_entries
from lmtransfer.reporting.runs.scores import control_part, number
from lmtransfer.reporting.table import PLUS_MINUS
from lmtransfer.system.validation import leaves

if TYPE_CHECKING:
    import pandas as pd

#: The file of each format.
FILES: Mapping[str, str] = {"csv": "records.csv", "parquet": "records.parquet", "latex": "table.tex"}

#: Columns of whole numbers, which may be unknown.
_WHOLE = ("seed", "pretraining_seed", "num_train")
#: The entries of a result that state the cost of training; the columns have the same names.
_COST = ("seconds", "tokens", "tokens_per_second", "peak_memory", "num_parameters", "num_trained_parameters", "flops")


def load_records(*roots: str | Path) -> pd.DataFrame:
    """Read the runs in some folders (by default ``runs``) as one table; see ``records``."""
    return records(make_entries(collect(*map(Path, roots or ["runs"]))))


def records(entries: Sequence[Entry]) -> pd.DataFrame:
    """Tabulate the scores of all runs, with a row for each seed of a run, of its control and of its baselines.

    A run without a score has one row. Columns:

    - ``run``: the run's folder, relative to the folder that was read; ``command``: the command that produced the run;
      ``state``: "finished", "unfinished" or "torn";
    - ``side``: "run", "control", "majority", or the name of a baseline;
    - ``seed``, ``pretraining_seed``; ``metric``, ``score``: the main metric, in the units of ``result.json``;
      ``metrics.<name>``: every metric;
    - ``task``, ``split``, ``num_train``, ``transfer``; ``model``, ``objective``, ``corpus``, ``pretraining`` (the run
      that the weights come from), ``pretraining_tokens``, ``pretraining_seconds``;
    - ``seconds``, ``tokens``, ``tokens_per_second``, ``peak_memory`` (bytes), ``num_parameters``,
      ``num_trained_parameters``, ``flops``: the cost of training this seed, where known;
    - ``config.<key>``: every setting of the run. If the values in a column have several types, they are JSON.
    """
    import pandas as pd

    rows = [row for entry in entries for row in _rows(entry)]
    names = dict.fromkeys(name for row in rows for name in row)
    ordered = sorted(names, key=lambda name: name.startswith("metrics.") + 2 * name.startswith("config."))
    frame = pd.DataFrame(rows, columns=ordered)
    for name in frame.columns:
        kinds = {type(value) for value in frame[name] if not pd.isna(value)}
        if len(kinds) > 1 and not kinds <= {int, float}:
            frame[name] = [None if pd.isna(value) else json.dumps(value) for value in frame[name].astype(object)]
    return frame.astype(dict.fromkeys(_WHOLE, "Int64"))


def write_records(entries: Sequence[Entry], folder: Path, kind: str) -> None:
    """Write ``records`` as CSV or Parquet, or the report's table as LaTeX, which needs the package booktabs."""
    import pandas as pd

    path = folder / FILES[kind]
    if kind == "csv":
        records(entries).to_csv(path, index=False)
    elif kind == "parquet":
        records(entries).to_parquet(path, index=False)
    else:
        table = results_table(table_rows(entries)).without_empty()
        text = pd.DataFrame(table.rows, columns=table.headings).to_latex(index=False, escape=True)
        path.write_text(text.replace(PLUS_MINUS, r"$\pm$"), encoding="utf-8")


def _rows(entry: Entry) -> Iterator[dict[str, Any]]:
    result, metric, shared = entry.run.result, entry.metric or "", _shared(entry)
    settings = {f"config.{key}": value for key, value in leaves(dict(entry.run.config))}
    own = "control" if entry.is_control else "run"
    sides: list[tuple[str, Mapping[str, Any], Sequence[Run]]] = [
        (own, result, entry.seeds),
        ("control", control_part(result), entry.controls),
        *((name, node, ()) for name, node in (result.get("baselines") or {}).items()),
        ("majority", {"metrics": result.get("majority")}, ()),
    ]
    for side, node, runs in sides:
        scores = list(_scores(node, [run for run in runs if run.is_seed] or runs))
        if not scores and side == own:
            scores = [_cost(result)]
        for seed_score in scores:
            score = {"metric": metric or None, "score": seed_score.get(f"metrics.{metric}")}
            yield {**shared, "side": side, **score, **seed_score, **settings}


def _shared(entry: Entry) -> dict[str, Any]:
    return {
        "run": entry.run.key,
        "command": entry.run.command,
        "state": entry.run.state,
        "side": None,
        "seed": None,
        "pretraining_seed": None,
        "metric": None,
        "score": None,
        "task": entry.task or None,
        "split": entry.split or None,
        "num_train": entry.num_train,
        "transfer": entry.transfer or None,
        "model": entry.model or None,
        "objective": entry.objective or None,
        "corpus": entry.corpus or None,
        "pretraining": None if entry.source is None else entry.source.key,
        "pretraining_tokens": entry.pretraining_tokens,
        "pretraining_seconds": entry.pretraining_seconds,
        **dict.fromkeys(_COST),
    }


def _scores(node: Mapping[str, Any], runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Yield the metrics and the cost of each seed in a result, or in its entry for a control or a baseline."""
    seeds = node.get("seeds") or [node]
    for seed in seeds:
        scores = {f"metrics.{name}": number(value) for name, value in (seed.get("metrics") or {}).items()}
        if any(value is not None for value in scores.values()):
            names = {name: number(seed.get(name)) for name in ("seed", "pretraining_seed") if name in seed}
            yield {**names, **scores, **_cost(_result_of(seed, node, runs, alone=len(seeds) < 2))}


def _result_of(seed: Mapping[str, Any], node: Mapping[str, Any], runs: Sequence[Run], *, alone: bool) -> Mapping:
    """Return the result of a seed: from its own folder, or from the run if there is only one seed."""
    folders = [f"seed-{seed.get('seed')}", f"pretraining-{seed.get('pretraining_seed')}"]
    matches = [run for run in runs if run.name == folders[0]]
    matches = [run for run in matches if folders[1] in run.key.split("/")] or matches
    if len(matches) == 1:
        return matches[0].result
    return (runs[0].result if len(runs) == 1 else node) if alone else {}


def _cost(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: number(result.get(name)) for name in _COST}
