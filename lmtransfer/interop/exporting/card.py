"""The model card of an exported model, README.md: front matter for the Hugging Face hub, and what the run's files say.

Keys and lines without a known value are left out. The text of the page is the template ``card.md.j2``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, ModelCardData

from lmtransfer import __version__
from lmtransfer.config.component import resolve
from lmtransfer.config.revisions import with_revision
from lmtransfer.errors import ConfigError
from lmtransfer.interop.exporting.adapter import BASE
from lmtransfer.interop.exporting.run import OpenRun
from lmtransfer.interop.exporting.seen_by_transformers import auto_class, pipeline_of
from lmtransfer.objectives.base import Objective
from lmtransfer.reporting.render.cells import difference_text, score_text
from lmtransfer.reporting.render.markdown import markdown_table
from lmtransfer.reporting.runs.collect import Run, collect, read_run
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.lineage import at_revision, lineage
from lmtransfer.reporting.runs.scores import number
from lmtransfer.reporting.table import PLUS_MINUS, plain_table
from lmtransfer.runs.labels import model_label, node_label, objective_label
from lmtransfer.system.printable import printable
from lmtransfer.system.units import count, duration, format_metric, in_percent

_TEMPLATE = Path(__file__).with_name("card.md.j2")

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_METHODS = {
    "frozen": "frozen encoder with a trained head",
    "full": "finetuned",
    "gradual": "finetuned layer by layer",
    "joint": "finetuned on labels and on text together",
    "lora": "fixed encoder with trained low-rank updates (LoRA) and a trained head",
    "bitfit": "fixed encoder with trained biases (BitFit) and a trained head",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSettings:
    """The user's settings for a model card.

    Attributes:
        name: name of the model; None for the name of the run.
        license: the license as the user gives it.
        languages: the languages as the user gives them.
        others: further runs; those that started from this run are listed with their scores.
        loaded_from: where the loading example finds the export, as Python arguments: ``"owner/name", revision="v1"``.
        on_hub: whether that is a repository of the hub, else a folder.
        base: folder of an adapter's base; None if the export contains it.
    """

    name: str | None
    license: str | None
    languages: Sequence[str]
    others: Sequence[Run]
    loaded_from: str
    on_hub: bool = False
    base: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The content of a model card.

    Attributes:
        name: name of the model.
        metadata: front matter for the hub; see ``metadata``.
        about: sentences that describe the model.
        facts: data, objective, budget and architecture, one line each, by the name of the fact.
        loading: values of the code that loads the model; see ``_loading``.
        limits: sentences about its use and its limits.
        scores: scores of the model, or of runs that started from it, with their controls.
        notes: notes on what the export left out or changed.
        versions: versions of the software, by name.
    """

    name: str
    metadata: ModelCardData
    about: Sequence[str]
    facts: Mapping[str, str]
    loading: Mapping[str, Any]
    limits: Sequence[str]
    scores: Sequence[Entry] = ()
    notes: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


def metadata(
    *,
    library: str,
    architecture: str = "",
    license: str | None = None,
    languages: Sequence[str] = (),
    base_model: str | None = None,
    tags: Sequence[str] = (),
) -> ModelCardData:
    """Build the front matter for the hub.

    Args:
        library: library that loads the model: "transformers", "sentence-transformers", "peft", "onnx" or "lmtransfer".
        architecture: its class in Hugging Face transformers; empty if there is none.
        license: an identifier such as ``apache-2.0``; None if not stated.
        languages: codes such as ``en``; empty if not stated.
        base_model: hub name of the model that this one started from; None if there is none on the hub.
    """
    task = pipeline_of(architecture) if architecture else None
    return ModelCardData(
        license=license,
        language=list(languages) or None,
        library_name=library,
        pipeline_tag="sentence-similarity" if library == "sentence-transformers" else task,
        base_model=base_model,
        tags=list(tags) or None,
    )


def write_card(card: Card) -> str:
    """Render README.md, without control characters, which labels and file names may contain."""
    scored = [entry for entry in card.scores if entry.score is not None and entry.metric]
    page = ModelCard.from_template(
        card.metadata,
        template_path=str(_TEMPLATE),
        name=card.name,
        about=card.about,
        facts=card.facts,
        scores=_table_of_scores(scored) if scored else "",
        plus_minus=PLUS_MINUS,
        limits=card.limits,
        notes=card.notes,
        versions=card.versions,
        **card.loading,
    )
    return printable(f"{page}\n")


def _table_of_scores(entries: Sequence[Entry]) -> str:
    headings = ("task", "split", "labels", "transfer", "metric", "seeds", "score", "control", "difference")
    rows = []
    for entry in entries:
        metric, score = entry.metric or "", entry.score
        rows.append(
            (
                entry.task or "own validation",
                entry.split,
                f"{entry.num_train:,}" if entry.num_train else "",
                entry.transfer,
                f"{metric}, %" if in_percent(metric) else metric,
                "" if score is None else str(score.n),
                score_text(score, metric),
                score_text(entry.control, metric),
                difference_text(entry.difference, metric),
            )
        )
    return markdown_table(plain_table("Scores", headings, rows)).rstrip()


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
        library: library that loads the export: "transformers", "sentence-transformers", "peft", "onnx" or "lmtransfer".
        architecture: class in transformers; empty if there is none.
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
            base_model=_hub_name(source),
            tags=tags,
        ),
        about=_about(run, stages, architecture, source),
        facts=_facts(run, stages, architecture, source),
        loading=_loading(run, library=library, architecture=architecture, settings=settings),
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
    pretraining = _pretrainings(lineage)
    return objective_label(pretraining[0].config["objective"]).split("+") if pretraining else []


def _about(run: OpenRun, lineage: Sequence[Run], architecture: str, source: str | None) -> list[str]:
    what = architecture or node_label(run.saved.config["model"])
    pretraining = _pretrainings(lineage)
    sentences = []
    if run.kind in ("encoder", "pretraining"):
        if pretraining:
            sentences.append(f"{what}, pretrained with lmtransfer on {_corpus_label(pretraining[0])}.")
        elif source:
            sentences.append(f"{what}, imported and written again by lmtransfer; its weights are unchanged.")
        else:
            sentences.append(f"{what}, written by lmtransfer.")
    else:
        task = node_label(run.saved.config["task"])
        sentences.append(f"{what}, trained on {task} with lmtransfer.")
        if pretraining:
            sentences.append(f"Its encoder was pretrained on {_corpus_label(pretraining[0])}.")
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
    pretraining = _pretrainings(lineage)
    if run.kind in ("encoder", "pretraining"):
        seen = f", best on text like its pretraining text ({_corpus_label(pretraining[0])})" if pretraining else ""
        return [
            f"It is meant to be finetuned on labelled data{seen}.",
            "Only the scores in this card were measured; bias was not measured. Its predictions may be wrong.",
        ]
    return [
        f"It was trained on the labelled data of {node_label(run.saved.config['task'])}; on other kinds of text its "
        "answers may be worse.",
        "Only the scores in this card were measured; bias was not measured.",
    ]


def _loading(run: OpenRun, *, library: str, architecture: str, settings: CardSettings) -> dict[str, Any]:
    """The values of the code that loads the export: the library, its class, and where it finds the files."""
    place = settings.loaded_from
    return {
        "library": library,
        "auto_class": auto_class(architecture) if architecture else "",
        "place": place,
        "base": _base(settings),
        "num_labels": len(run.head["output.bias"]) if library == "peft" else None,
        "is_span": run.kind == "span",
        "on_hub": settings.on_hub,
        "folder": f"snapshot_download({place})" if settings.on_hub else place,
    }


def _base(settings: CardSettings) -> str:
    """Where the loading example finds the base of an adapter, as Python arguments."""
    if settings.base is not None:
        return f'"{settings.base}"'
    if settings.on_hub:
        return f'{settings.loaded_from}, subfolder="{BASE}"'
    return f'{settings.loaded_from[:-1]}/{BASE}"'


def _facts(run: OpenRun, lineage: Sequence[Run], architecture: str, source: str | None) -> dict[str, str]:
    """Collect the facts, one line each, by the name of the fact; a fact that the files do not give is left out.

    Args:
        lineage: the run, then the runs that it started from.
        architecture: class in transformers; empty if there is none.
        source: where the first run of the lineage was imported from; None if it was not imported.
    """
    parameters = sum(parameter.numel() for parameter in run.learner.parameters())
    tokenizer = run.saved.tokenizer
    facts = {
        "architecture": f"{architecture + ', ' if architecture else ''}{model_label(run.saved.config['model'])}, "
        f"{count(parameters)} parameters",
        "vocabulary": f"{tokenizer.num_pieces:,} pieces",
        **({"imported from": name} if (name := _hub_name(source)) else {}),
    }
    stages = _pretrainings(lineage)
    for number_of_stage, stage in enumerate(reversed(stages), start=1):
        prefix = "" if len(stages) == 1 else f"pretraining {number_of_stage}: "
        facts |= {f"{prefix}{key}": text for key, text in _of_pretraining(stage).items()}
    if run.kind not in ("encoder", "pretraining"):
        facts |= _of_task(run, lineage[0])
    return facts


def _of_pretraining(stage: Run) -> dict[str, str]:
    objective: Mapping[str, Any] = stage.config["objective"]
    losses = [_with_title(name, node) for name, node in (objective.get("losses") or {}).items()]
    settings = {
        "mask_prob": "mask_prob {}",
        "causal_share": "{} of the rows read left to right",
        "max_length": "rows of up to {} tokens",
    }
    details = [text.format(objective[key]) for key, text in settings.items() if number(objective.get(key)) is not None]
    facts = {
        "pretraining text": _corpus_label(stage),
        "objective": ", ".join([" and ".join(losses), *details]),
        "phases": _phases(stage),
        "budget": _budget(stage.result),
        "weights": _weights(stage.result),
        "hardware": _hardware(stage.versions),
        "validation": _validation(stage.result),
    }
    return {key: text for key, text in facts.items() if text}


def _phases(stage: Run) -> str:
    """The phases of a run with their shares of the budget; the last one has the run's own objective."""
    phases, own = stage.config.get("phases"), stage.config["objective"]
    if not isinstance(phases, Mapping):
        return ""
    return ", then ".join(
        f"{name} ({objective_label(node.get('objective') or own)}, {100 * share:.3g} % of the budget)"
        for name, node in phases.items()
        if isinstance(node, Mapping) and (share := number(node.get("share"))) is not None
    )


def _weights(result: Mapping[str, Any]) -> str:
    """Describe which average of the weights was exported; empty if the weights are not an average."""
    weights = result.get("weights")
    return weights if isinstance(weights, str) else ""


def _with_title(name: str, node: Any) -> str:
    """Return title and name of an objective; only the name if it has no title or its class cannot be imported."""
    try:
        objective = resolve(node["_target_"])
    except (ConfigError, KeyError, TypeError):
        return name
    title = objective.title if issubclass(objective, Objective) else ""
    return f"{title} ({name})" if title else name


def _of_task(run: OpenRun, named: Run) -> dict[str, str]:
    config = run.saved.config
    task, transfer = config["task"], config["transfer"]
    num_train = number(named.result.get("num_train"))
    seed = number(config.get("seed"))
    facts = {
        "task": node_label(task) + (f", {num_train:,.0f} labelled examples" if num_train else ""),
        "labels": ", ".join(run.labels) if len(run.labels) <= 50 else f"{len(run.labels)}",
        "transfer": _METHODS.get(str(transfer.get("freeze")), str(transfer.get("freeze"))),
        "seed": "" if seed is None else f"{seed:.0f}",
        "task budget": _budget(read_run(run.saved.path).result),  # of the exported seed
        "task hardware": _hardware(named.versions),
    }
    return {key: text for key, text in facts.items() if text}


def _budget(result: Mapping[str, Any]) -> str:
    """Steps, tokens and time; of several seeds those of one, as one is exported."""
    steps, tokens, seconds = (number(result.get(key)) for key in ("steps", "tokens", "seconds"))
    seeds = result.get("seeds")
    if isinstance(seeds, list) and seeds:  # a joint result has their sums
        tokens, seconds = (None if value is None else value / len(seeds) for value in (tokens, seconds))
    known = [
        None if steps is None else f"{steps:,.0f} steps",
        None if tokens is None else f"{count(tokens)} tokens",
        None if seconds is None else duration(seconds),
    ]
    return ", ".join(text for text in known if text)


def _hardware(versions: Mapping[str, Any]) -> str:
    devices, threads = number(versions.get("world_size")), number(versions.get("threads"))
    name = versions.get("gpu") or versions.get("processor")
    if not isinstance(name, str) or not name:
        return ""
    many = f"{devices:.0f} x " if devices and devices > 1 else ""
    if not threads or versions.get("gpu"):
        return f"{many}{name}"
    return f"{many}{name}, {threads:.0f} thread{'s' if threads > 1 else ''}"


def _validation(result: Mapping[str, Any]) -> str:
    metrics = result.get("metrics")
    known = {key: number(value) for key, value in metrics.items()} if isinstance(metrics, Mapping) else {}
    texts = [
        f"{key} {format_metric(value, key)}{' %' if in_percent(key) else ''}"
        for key, value in known.items()
        if value is not None
    ]
    return ", ".join(texts)


def _hub_name(source: str | None) -> str | None:
    """Return the hub name that a run was imported from; None for a local folder, which is private to one machine."""
    name = (source or "").removeprefix("hf:")
    return name if _HUB_NAME.fullmatch(name) and not Path(name).exists() else None


def _pretrainings(lineage: Sequence[Run]) -> list[Run]:
    """The runs that trained on text, the last one first."""
    return [run for run in lineage if "objective" in run.config and "corpus" in run.config and "task" not in run.config]


def _corpus_label(run: Run) -> str:
    """Return the name of a run's corpus, with its parts if it is a mixture."""
    node = run.config["corpus"]
    parts = node.get("parts") if isinstance(node, Mapping) else None
    name = node_label(node)
    return f"{name} ({', '.join(map(str, parts))})" if isinstance(parts, Mapping) and parts else name
