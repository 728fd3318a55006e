"""Collect the content of the model card (data, objective, budget, scores) from the run's own files."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lmtransfer import __version__
from lmtransfer.config.revisions import with_revision
from lmtransfer.exporting.card.facts import corpus_label, facts_of, hub_name, pretrainings
from lmtransfer.exporting.card.loading import loading_example
from lmtransfer.exporting.card.page import Card, metadata
from lmtransfer.exporting.card.settings import CardSettings
from lmtransfer.exporting.run import OpenRun
from lmtransfer.reporting.runs.collect import Run, collect, read_run
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.lineage import at_revision, lineage
from lmtransfer.runs.labels import node_label, objective_label


def card_of(
    run: OpenRun,
    *,
    library: str,
    architecture: str,
    notes: Sequence[str],
    checked_with: str | None,
    settings: CardSettings,
) -> Card:
    """Collect the content of the model card.

    Args:
        run: the exported run.
        library: library that loads the export: "transformers", "sentence-transformers", "peft", "onnx" or "lmtransfer".
        architecture: class in transformers; empty if there is none.
        notes: notes of the export.
        checked_with: version of transformers that the export was compared with; None: it was not compared.
        settings: what the user says.
    """
    others, revision = settings.others, run.saved.revision
    named = read_run(run.named)
    stages = lineage(named if revision is None else at_revision(named, revision), others)
    source = _imported(stages)
    objectives = _objectives(stages)
    tags = ["lmtransfer", *dict.fromkeys(filter(None, [node_label(run.saved.config["model"]), *objectives]))]
    return Card(
        name=settings.name or with_revision(run.named.name, revision),
        metadata=metadata(
            library=library,
            architecture=architecture,
            license=settings.license,
            languages=settings.languages,
            base_model=hub_name(source),
            tags=tags,
        ),
        about=_about(run, stages, architecture, source),
        facts=facts_of(run, stages, architecture, source),
        loading=loading_example(run, library=library, architecture=architecture, settings=settings),
        limits=_limits(run, stages),
        scores=_scores(run, others),
        notes=notes,
        versions={
            "lmtransfer": __version__,
            "torch": torch.__version__,
            **({"transformers": checked_with} if checked_with else {}),
        },
    )


def _imported(lineage: Sequence[Run]) -> str | None:
    """Return the source that the first run of a lineage was imported from; None if it was not imported."""
    source = lineage[-1].config.get("source")
    return source if isinstance(source, str) and source else None


def _objectives(lineage: Sequence[Run]) -> list[str]:
    """Names of the losses of the last pretraining."""
    pretraining = pretrainings(lineage)
    return objective_label(pretraining[0].config["objective"]).split("+") if pretraining else []


def _about(run: OpenRun, lineage: Sequence[Run], architecture: str, source: str | None) -> list[str]:
    what = architecture or node_label(run.saved.config["model"])
    pretraining = pretrainings(lineage)
    sentences = []
    if run.kind in ("encoder", "pretraining"):
        if pretraining:
            sentences.append(f"{what}, pretrained with lmtransfer on {corpus_label(pretraining[0])}.")
        elif source:
            sentences.append(f"{what}, imported and written again by lmtransfer; its weights are unchanged.")
        else:
            sentences.append(f"{what}, written by lmtransfer.")
    else:
        task = node_label(run.saved.config["task"])
        sentences.append(f"{what}, trained on {task} with lmtransfer.")
        if pretraining:
            sentences.append(f"Its encoder was pretrained on {corpus_label(pretraining[0])}.")
        elif len(lineage) == 1 and not run.saved.config.get("init"):
            sentences.append("Its encoder started from random initialisation.")
    if source and pretraining:
        sentences.append("Its initial weights were imported.")
    return sentences


def _scores(run: OpenRun, others: Sequence[Run]) -> list[Entry]:
    """Return the scores of a task run itself, then the scores of the runs that started from the run."""
    own = collect(run.named) if run.kind not in ("encoder", "pretraining") else []
    from_run = [
        entry
        for entry in make_entries(others)
        if not entry.is_pretraining and not entry.is_control and _started_from(entry, run, others)
    ]
    seen = {entry.run.path for entry in from_run}
    return [entry for entry in make_entries(own) if entry.run.path not in seen] + from_run


def _started_from(entry: Entry, run: OpenRun, others: Sequence[Run]) -> bool:
    exported = (run.named.resolve(), run.saved.path.resolve())
    return any(
        stage.path.resolve() in exported and stage.revision == run.saved.revision
        for stage in lineage(entry.run, others)[1:]
    )


def _limits(run: OpenRun, lineage: Sequence[Run]) -> list[str]:
    """Two sentences that hold for every exported model of this kind."""
    pretraining = pretrainings(lineage)
    if run.kind in ("encoder", "pretraining"):
        seen = f", best on text like its pretraining text ({corpus_label(pretraining[0])})" if pretraining else ""
        return [
            f"It is meant to be finetuned on labelled data{seen}.",
            "Only the scores in this card were measured; bias was not measured. Its predictions may be wrong.",
        ]
    return [
        f"It was trained on the labelled data of {node_label(run.saved.config['task'])}; on other kinds of text its "
        "answers may be worse.",
        "Only the scores in this card were measured; bias was not measured.",
    ]
