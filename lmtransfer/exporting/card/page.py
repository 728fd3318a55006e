"""The model card of an exported model: README.md with the front matter that the Hugging Face hub reads.

Keys and lines without a known value are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from huggingface_hub import ModelCardData

from lmtransfer.exporting.seen_by_transformers import pipeline_of
from lmtransfer.reporting.render.cells import difference_text, score_text
from lmtransfer.reporting.render.markdown import markdown_table
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.table import PLUS_MINUS, plain_table
from lmtransfer.system.printable import printable
from lmtransfer.system.units import in_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The content of a model card.

    Attributes:
        name: name of the model.
        metadata: front matter for the hub; see ``metadata``.
        about: sentences that describe the model.
        facts: data, objective, budget and architecture, one line each, by the name of the fact.
        loading: Python code that loads the model.
        limits: sentences about its use and its limits.
        scores: scores of the model, or of runs that started from it, with their controls.
        notes: notes on what the export left out or changed.
        versions: versions of the software, by name.
    """

    name: str
    metadata: ModelCardData
    about: Sequence[str]
    facts: Mapping[str, str]
    loading: str
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
    """Make the front matter for the hub.

    Args:
        library: library that loads the model: "transformers", "sentence-transformers", "peft", "onnx" or "lmtransfer".
        architecture: its class in Hugging Face transformers; empty if there is none.
        license: an identifier such as ``apache-2.0``; None: not stated.
        languages: codes such as ``en``; empty: not stated.
        base_model: hub name of the model that this one started from; None: none, or none on the hub.
        tags: tags for the hub.
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
    """Render the text of README.md, without control characters that labels or file names of others may have."""
    parts = [f"---\n{card.metadata.to_yaml()}\n---", f"# {_inline(card.name)}", " ".join(card.about)]
    if card.facts:
        rows = [f"| {_cell(name)} | {_cell(text)} |" for name, text in card.facts.items()]
        parts.append("\n".join(["## Training", "", "| | |", "| --- | --- |", *rows]))
    scored = [entry for entry in card.scores if entry.score is not None and entry.metric]
    if scored:
        parts += ["## Scores", _scores(scored), _SCORES_ARE]
    parts += [f"## Loading\n\n```python\n{card.loading.strip()}\n```", "## Use and limits", " ".join(card.limits)]
    if card.notes:
        parts.append("\n".join(["## Notes of the export", "", *(f"- {_inline(note)}" for note in card.notes)]))
    if card.versions:
        version_list = ", ".join(f"{name} {version}" for name, version in card.versions.items())
        parts.append(f"## Versions\n\n{version_list}")
    return printable("\n\n".join(part for part in parts if part) + "\n")


_SCORES_ARE = (
    f"Mean {PLUS_MINUS} standard deviation over the seeds; the control is the same training from random "
    "initialisation; the difference to the control is shown with its 95 % interval. Accuracies and F1 are in percent."
)


def _scores(entries: Sequence[Entry]) -> str:
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


def _cell(text: str) -> str:
    return _inline(text).replace("|", "\\|")


def _inline(text: str) -> str:
    """Put a text on one line and escape ``<``, so that Markdown renderers do not read it as HTML."""
    return " ".join(text.split()).replace("<", "&lt;")
