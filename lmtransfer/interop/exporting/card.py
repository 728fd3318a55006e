"""The model card (README.md) of an exported model: front matter for the Hugging Face hub, and facts about the run.

The facts come from the run's files; facts without a value are left out. The text is in ``card.md.j2``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from huggingface_hub import ModelCard, ModelCardData

from lmtransfer import __version__
from lmtransfer.config.component import resolve
from lmtransfer.config.revisions import with_revision
from lmtransfer.errors import ConfigError
from lmtransfer.interop.exporting.adapter import BASE
from lmtransfer.interop.exporting.comparison import auto_class, pipeline_of
from lmtransfer.interop.exporting.run import OpenRun
from lmtransfer.objectives.base import Objective
from lmtransfer.reporting.runs.collect import Run, collect, read_run
from lmtransfer.reporting.runs.details import final_lines
from lmtransfer.reporting.runs.entries import Entry, make_entries
from lmtransfer.reporting.runs.lineage import lineage, run_at_revision
from lmtransfer.reporting.runs.scores import number
from lmtransfer.reporting.table import PLUS_MINUS, difference_text, markdown_table, plain_table, score_text
from lmtransfer.runs.labels import model_label, node_label, objective_label
from lmtransfer.system.printable import count, duration, format_metric, in_percent, printable

_TEMPLATE = Path(__file__).with_name("card.md.j2")

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
#: The pipelines whose code a card shows: those of transformers that answer with labels or words.
_PIPELINES = ("text-classification", "token-classification", "fill-mask", "text-generation")
_METHODS = {
    "frozen": "frozen encoder with a trained head",
    "full": "finetuned",
    "gradual": "finetuned layer by layer",
    "joint": "finetuned jointly on labels and on text",
    "lora": "fixed encoder with trained low-rank updates (LoRA) and a trained head",
    "bitfit": "fixed encoder with trained biases (BitFit) and a trained head",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSettings:
    """The user's settings for a model card.

    Attributes:
        load_arguments: location of the export, written as Python arguments for the loading example, such as
            ``"owner/name", revision="v1"``.
    """

    name: str | None
    license: str | None
    languages: Sequence[str]
    other_runs: Sequence[Run]  #: the card lists the scores of those that started from the exported run
    load_arguments: str
    on_hub: bool = False  #: whether the location is a repository on the hub, as opposed to a folder
    base: str | None = None  #: folder of an adapter's base; None if the export contains the base


def metadata(
    *,
    library: str,
    architecture: str = "",
    license: str | None = None,
    languages: Sequence[str] = (),
    base_model: str | None = None,
    tags: Sequence[str] = (),
) -> ModelCardData:
    """Build the front matter for the hub."""
    task = pipeline_of(architecture) if architecture else None
    return ModelCardData(
        license=license,
        language=list(languages) or None,
        library_name=library,
        pipeline_tag="sentence-similarity" if library == "sentence-transformers" else task,
        base_model=base_model,
        tags=list(tags) or None,
    )


def write_card(
    *,
    metadata: ModelCardData,
    name: str,
    about: Sequence[str],
    facts: Mapping[str, str],
    loading: Mapping[str, Any],
    limits: Sequence[str],
    scores: Sequence[Entry] = (),
    notes: Sequence[str] = (),
    versions: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Render README.md without control characters, which labels and file names may contain.

    Args:
        about: sentences that describe the model.
        facts: data, objective, budget and architecture, one line each, keyed by name.
        loading: values for the code that loads the model; see ``_loading``.
        limits: sentences on use and limits of the model.
        scores: scores of the model, or of runs that started from it, with their controls.
        notes: what the export left out or changed.
    """
    scored = [entry for entry in scores if entry.score is not None and entry.metric]
    page = ModelCard.from_template(
        metadata,
        template_path=str(_TEMPLATE),
        name=name,
        about=about,
        facts=facts,
        scores=_table_of_scores(scored) if scored else "",
        plus_minus=PLUS_MINUS,
        limits=limits,
        notes=notes,
        versions=versions,
        **loading,
    )
    return printable(f"{page}\n")


def _table_of_scores(entries: Sequence[Entry]) -> str:
    headings = ["task", "split", "labels", "transfer", "metric", "seeds", "score", "control", "difference"]
    headings += ["word counts", "difference from word counts"]
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
                "" if entry.baseline is None else f"{score_text(entry.baseline, metric)} ({entry.better_baseline})",
                difference_text(entry.baseline_difference, metric),
            )
        )
    return markdown_table(plain_table("Scores", headings, rows).without_empty()).rstrip()


def card_of(
    run: OpenRun,
    *,
    library: str,
    architecture: str,
    notes: Sequence[str],
    transformers_version: str | None,
    settings: CardSettings,
) -> str:
    """Collect the facts on a run, and render its model card."""
    others, revision = settings.other_runs, run.saved.revision
    named = read_run(run.run_path)
    stages = lineage(named if revision is None else run_at_revision(named, revision), others)
    source = stages[-1].config.get("source")
    source = source if isinstance(source, str) and source else None
    pretraining = _pretrainings(stages)
    objectives = objective_label(pretraining[0].config["objective"]).split("+") if pretraining else []
    tags = ["lmtransfer", *dict.fromkeys(filter(None, [node_label(run.saved.config["model"]), *objectives]))]
    return write_card(
        name=settings.name or with_revision(run.run_path.name, revision),
        metadata=metadata(
            library=library,
            architecture=architecture,
            license=settings.license,
            languages=settings.languages,
            base_model=_hub_name(source),
            tags=tags,
        ),
        about=_about(run, stages, architecture, source),
        facts=_facts(run, stages, architecture, source, settings.languages),
        loading=_loading(run, library=library, architecture=architecture, settings=settings),
        limits=_limits(run, stages),
        scores=_scores(run, others),
        notes=notes,
        versions={
            "lmtransfer": __version__,
            "torch": torch.__version__,
            **({"transformers": transformers_version} if transformers_version else {}),
        },
    )


def _about(run: OpenRun, lineage: Sequence[Run], architecture: str, source: str | None) -> list[str]:
    what = architecture or node_label(run.saved.config["model"])
    pretraining = _pretrainings(lineage)
    sentences = []
    if run.kind in ("encoder", "pretraining"):
        if pretraining:
            sentences.append(f"{what}, pretrained with lmtransfer on {_corpus_label(pretraining[0])}.")
        elif source:
            sentences.append(f"{what}, imported and exported again by lmtransfer; its weights are unchanged.")
        else:
            sentences.append(f"{what}, exported by lmtransfer.")
    else:
        task = node_label(run.saved.config["task"])
        sentences.append(f"{what}, trained on {task} with lmtransfer.")
        if pretraining:
            sentences.append(f"Its encoder was pretrained on {_corpus_label(pretraining[0])}.")
        elif len(lineage) == 1 and not run.saved.config.get("init"):
            sentences.append("Its encoder was randomly initialized.")
    if source and pretraining:
        sentences.append("Its initial weights were imported.")
    return sentences


def _scores(run: OpenRun, others: Sequence[Run]) -> list[Entry]:
    """Return the scores of the run itself if it is a task run, then those of the runs that started from it."""
    own_runs = collect(run.run_path) if run.kind not in ("encoder", "pretraining") else []
    from_run = [
        entry
        for entry in make_entries(others)
        if not entry.is_pretraining and not entry.is_control and _started_from(entry, run, others)
    ]
    paths = {entry.run.path for entry in from_run}
    return [entry for entry in make_entries(own_runs) if entry.run.path not in paths] + from_run


def _started_from(entry: Entry, run: OpenRun, others: Sequence[Run]) -> bool:
    exported = (run.run_path.resolve(), run.saved.path.resolve())
    return any(
        stage.path.resolve() in exported and stage.revision == run.saved.revision
        for stage in lineage(entry.run, others)[1:]
    )


def _limits(run: OpenRun, lineage: Sequence[Run]) -> list[str]:
    pretraining = _pretrainings(lineage)
    if run.kind in ("encoder", "pretraining"):
        text = _corpus_label(pretraining[0]) if pretraining else ""
        domain = f", preferably on text similar to the pretraining text ({text})" if text else ""
        return [
            f"The model is meant to be finetuned on labeled data{domain}.",
            "Only the scores in this card were measured; bias was not measured. The model's predictions may be wrong.",
        ]
    return [
        f"The model was trained on the labeled data of {node_label(run.saved.config['task'])}; on other kinds of text "
        "its predictions may be worse.",
        "Only the scores in this card were measured; bias was not measured.",
        *(f"{line[0].upper()}{line[1:]}." for line in final_lines(lineage[0].result)),
    ]


def _loading(run: OpenRun, *, library: str, architecture: str, settings: CardSettings) -> dict[str, Any]:
    """Return the values for the code that loads the export: the library, its class, and the location of the files."""
    place = settings.load_arguments
    pipeline = pipeline_of(architecture) if architecture else ""
    return {
        "library": library,
        "auto_class": auto_class(architecture) if architecture else "",
        "pipeline": pipeline if library == "transformers" and pipeline in _PIPELINES else "",
        "place": place,
        "base": _base(settings),
        "num_labels": len(run.head["output.bias"]) if library == "peft" else None,
        "is_span": run.kind == "span",
        "on_hub": settings.on_hub,
        "folder": f"snapshot_download({place})" if settings.on_hub else place,
    }


def _base(settings: CardSettings) -> str:
    """Return the location of an adapter's base as Python arguments for the loading example."""
    if settings.base is not None:
        return f'"{settings.base}"'
    if settings.on_hub:
        return f'{settings.load_arguments}, subfolder="{BASE}"'
    return f'{settings.load_arguments[:-1]}/{BASE}"'


def _facts(
    run: OpenRun, lineage: Sequence[Run], architecture: str, source: str | None, languages: Sequence[str]
) -> dict[str, str]:
    """Collect the facts, one line each, keyed by name; facts that the run's files do not contain are left out."""
    parameters = sum(parameter.numel() for parameter in run.learner.parameters())
    tokenizer = run.saved.tokenizer
    facts = {
        "architecture": f"{architecture + ', ' if architecture else ''}{model_label(run.saved.config['model'])}, "
        f"{count(parameters)} parameters",
        "vocabulary": f"{tokenizer.num_pieces:,} pieces",
        **({"language": ", ".join(languages)} if languages else {}),
        **({"imported from": name} if (name := _hub_name(source)) else {}),
    }
    stages = _pretrainings(lineage)
    for stage_number, stage in enumerate(reversed(stages), start=1):
        prefix = "" if len(stages) == 1 else f"pretraining {stage_number}: "
        facts |= {f"{prefix}{key}": text for key, text in _pretraining_facts(stage).items()}
    if run.kind not in ("encoder", "pretraining"):
        facts |= _task_facts(run, lineage[0])
    return facts


def _pretraining_facts(stage: Run) -> dict[str, str]:
    objective: Mapping[str, Any] = stage.config["objective"]
    losses = [_with_title(name, node) for name, node in (objective.get("losses") or {}).items()]
    settings = {
        "mask_prob": "mask_prob={}",
        "causal_share": "a fraction of {} of the rows read left to right",
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
    """Describe the phases of a run and their shares of the budget; the last phase has the run's own objective."""
    phases, own = stage.config.get("phases"), stage.config["objective"]
    if not isinstance(phases, Mapping):
        return ""
    return ", then ".join(
        f"{name} ({objective_label(node.get('objective') or own)}, {100 * share:.3g} % of the budget)"
        for name, node in phases.items()
        if isinstance(node, Mapping) and (share := number(node.get("share"))) is not None
    )


def _weights(result: Mapping[str, Any]) -> str:
    """Describe the average of weights that was exported; empty if the weights are not an average."""
    weights = result.get("weights")
    return weights if isinstance(weights, str) else ""


def _with_title(name: str, node: Any) -> str:
    try:
        objective = resolve(node["_target_"])
    except (ConfigError, KeyError, TypeError):
        return name
    title = objective.title if issubclass(objective, Objective) else ""
    return f"{title} ({name})" if title else name


def _task_facts(run: OpenRun, origin: Run) -> dict[str, str]:
    config = run.saved.config
    task, transfer = config["task"], config["transfer"]
    own = read_run(run.saved.path).result  # of the exported seed or final model
    num_train = number(own.get("num_train", origin.result.get("num_train")))
    seed = number(config.get("seed"))
    counts = origin.result.get("label_counts") or {}
    facts = {
        "task": node_label(task) + (f", {num_train:,.0f} labeled examples" if num_train else ""),
        "labels": ", ".join(_with_count(label, counts) for label in run.labels)
        if len(run.labels) <= 50
        else f"{len(run.labels)}",
        "transfer": _METHODS.get(str(transfer.get("freeze")), str(transfer.get("freeze"))),
        "seed": "" if seed is None else f"{seed:.0f}",
        "task budget": _budget(own),
        "task hardware": _hardware(origin.versions),
    }
    return {key: text for key, text in facts.items() if text}


def _with_count(label: str, counts: Mapping[str, int]) -> str:
    """Return a label with its number of training examples, if known."""
    return f"{label} ({counts[label]:,})" if label in counts else label


def _budget(result: Mapping[str, Any]) -> str:
    """Describe the steps, tokens and time of a run; if the run has several seeds, those of one seed on average."""
    steps, tokens, seconds = (number(result.get(key)) for key in ("steps", "tokens", "seconds"))
    seeds = result.get("seeds")
    if isinstance(seeds, list) and seeds:  # the result of several seeds holds sums over the seeds
        tokens, seconds = (None if value is None else value / len(seeds) for value in (tokens, seconds))
    texts = [
        None if steps is None else f"{steps:,.0f} steps",
        None if tokens is None else f"{count(tokens)} tokens",
        None if seconds is None else duration(seconds),
    ]
    return ", ".join(text for text in texts if text)


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
    values = {key: number(value) for key, value in metrics.items()} if isinstance(metrics, Mapping) else {}
    texts = [
        f"{key} {format_metric(value, key)}{' %' if in_percent(key) else ''}"
        for key, value in values.items()
        if value is not None
    ]
    return ", ".join(texts)


def _hub_name(source: str | None) -> str | None:
    """Return the source if it is a name on the hub; None for a local folder, which other machines do not have."""
    name = (source or "").removeprefix("hf:")
    return name if _HUB_NAME.fullmatch(name) and not Path(name).exists() else None


def _pretrainings(lineage: Sequence[Run]) -> list[Run]:
    """Return the pretraining runs, the last one first."""
    return [run for run in lineage if "objective" in run.config and "corpus" in run.config and "task" not in run.config]


def _corpus_label(run: Run) -> str:
    """Return the name of a run's corpus, with the names of its parts if the corpus is a mixture."""
    node = run.config["corpus"]
    parts = node.get("parts") if isinstance(node, Mapping) else None
    name = node_label(node)
    return f"{name} ({', '.join(map(str, parts))})" if isinstance(parts, Mapping) and parts else name
