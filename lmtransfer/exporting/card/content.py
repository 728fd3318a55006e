"""Collect the content of the model card (data, objective, budget, scores) from the run's own files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lmtransfer import __version__
from lmtransfer.config.revisions import with_revision
from lmtransfer.exporting.adapter_folder import BASE
from lmtransfer.exporting.card.facts import corpus_label, facts_of, hub_name, pretrainings
from lmtransfer.exporting.card.page import Card, metadata
from lmtransfer.exporting.run import OpenRun
from lmtransfer.exporting.seen_by_transformers import auto_class
from lmtransfer.reporting.runs.collect import Run, collect, read_run
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.lineage import at_revision, lineage
from lmtransfer.runs.labels import node_label, objective_label


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSettings:
    """What the user says in a model card.

    Attributes:
        name: name of the model; None: the name of the run.
        license: the license as the user gives it.
        languages: the languages as the user gives them.
        others: further runs; those that started from this run are listed with their scores.
        loaded_from: where the loading example finds the export, as Python arguments: ``"owner/name", revision="v1"``.
        on_hub: whether that is a repository of the hub, else a folder.
        base: folder of an adapter's base; None: it is in the export.
    """

    name: str | None
    license: str | None
    languages: Sequence[str]
    others: Sequence[Run]
    loaded_from: str
    on_hub: bool = False
    base: str | None = None


def loading_example(run: OpenRun, *, library: str, architecture: str, settings: CardSettings) -> str:
    """Write the code that loads the export.

    Args:
        run: the exported run.
        library: library that loads the export; see ``card_of``.
        architecture: class in transformers; empty if there is none.
        settings: where the export is.
    """
    place = settings.loaded_from
    if library == "sentence-transformers":
        return (
            "from sentence_transformers import SentenceTransformer\n\n"
            f"model = SentenceTransformer({place})\n"
            'vectors = model.encode(["One text.", "Another, longer text."])'
        )
    if architecture:
        auto = auto_class(architecture)
        model, peft = f"{auto}.from_pretrained({place}).eval()", ""
        if library == "peft":
            on_base = f"{auto}.from_pretrained({_base(settings)}, num_labels={len(run.head['output.bias'])})"
            model = f"{on_base}\nmodel = PeftModel.from_pretrained(model, {place}).eval()"
            peft = "from peft import PeftModel\n"
        two = (
            '["Who wrote it?"], ["A poet wrote it."]'
            if run.kind == "span"
            else '["One text.", "Another, longer text."]'
        )
        return (
            f"{peft}from transformers import {auto}, AutoTokenizer\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({place})\n"
            f"model = {model}\n"
            f'output = model(**tokenizer({two}, padding=True, return_tensors="pt"))'
        )
    imports, folder = "", place
    if settings.on_hub:
        imports, folder = "from huggingface_hub import snapshot_download\n", f"snapshot_download({place})"
    if library == "onnx":
        return (
            f"import onnxruntime\n{imports}from transformers import AutoTokenizer\n\n"
            f"folder = {folder}\n"
            "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
            'session = onnxruntime.InferenceSession(f"{folder}/model.onnx")\n'
            'fed = tokenizer(["One text.", "Another, longer text."], padding=True, return_tensors="np")\n'
            "output = session.run(None, {wanted.name: fed[wanted.name] for wanted in session.get_inputs()})"
        )
    vocabulary = "load_tokenizer(folder / 'tokenizer').vocab_size"
    return (
        "from pathlib import Path\n\n"
        "import yaml\n"
        f"{imports}from safetensors.torch import load_file\n\n"
        "from lmtransfer.config.component import build\n"
        "from lmtransfer.tokenizers.load import load_tokenizer\n"
        "from lmtransfer.training.weights import load_weights\n\n"
        f"folder = Path({folder})\n"
        "model = yaml.safe_load((folder / 'model.yaml').read_text())['model']\n"
        f"encoder = build(model, vocab_size={vocabulary})\n"
        "tensors = load_file(folder / 'model.safetensors')\n"
        "own = {name.removeprefix('encoder.'): t for name, t in tensors.items() if name.startswith('encoder.')}\n"
        "load_weights(encoder, own)"
    )


def _base(settings: CardSettings) -> str:
    """Where the loading example finds the base of an adapter, as Python arguments."""
    if settings.base is not None:
        return f'"{settings.base}"'
    if settings.on_hub:
        return f'{settings.loaded_from}, subfolder="{BASE}"'
    return f'{settings.loaded_from[:-1]}/{BASE}"'


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
