"""The screening of a run's corpus against the texts of the tasks that it names, and messages about the results."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from rich import box
from rich.table import Table

from lmtransfer.config.component import build
from lmtransfer.data.corpora.mixture import MixtureCorpus
from lmtransfer.data.documents import Corpus
from lmtransfer.data.screening.findings import list_path
from lmtransfer.data.screening.screening import ScreenedCorpus, Screening
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.system.optional import import_optional

if TYPE_CHECKING:
    from lmtransfer.tasks.base import Task

#: Number of characters of a text shown in a terminal line.
_MAX_CHARACTERS = 60


def build_screening(cfg: DictConfig, *, cache_dir: Path) -> Screening | None:
    """Build ``cfg.screening`` with the evaluation texts that it names; None without screening."""
    node = cfg.get("screening")
    if node is None:
        return None
    if node.get("min_jaccard") is not None:  # fail before all the texts are read
        import_optional("datasketch", work="screening.min_jaccard", error=ConfigError)
    texts: dict[str, list[str]] = {}
    for name, source_node in (node.get("overlap_with") or {}).items():
        source = build(source_node, data_root=cfg.data_root, cache_dir=str(cache_dir))
        texts |= {str(name): _lines(source)} if isinstance(source, Corpus) else _held_out_texts(str(name), source)
    screening: Screening = build(node, overlap_with=texts, cache_dir=str(cache_dir))
    return screening


def _lines(corpus: Corpus) -> list[str]:
    return [document.text for document in corpus.documents()]


def _held_out_texts(name: str, task: Task) -> dict[str, list[str]]:
    """Return the texts of every split but the training split; unavailable splits are skipped with a message."""
    texts: dict[str, list[str]] = {}
    missing: dict[str, DataError] = {}
    for split in task.splits:
        if split == "train":
            continue
        try:
            examples = task.examples(split)
        except DataError as error:
            missing[split] = error
        else:
            texts[f"{name} {split}"] = [text for example in examples for text in task.texts(example)]
    if not texts:
        why = next(iter(missing.values()), f"it has only the splits {', '.join(task.splits)}")
        raise DataError(f"screening.overlap_with: task {name} has no dev or test texts here: {why}")
    for split, reason in missing.items():
        print(f"screening: texts of {name} {split} are not searched for: {reason}", file=sys.stderr)
    return texts


def screened_parts(corpus: Corpus) -> Mapping[str, ScreenedCorpus]:
    """Return the screened corpora by name: the corpus itself, or the parts of a mixture."""
    parts = corpus.parts if isinstance(corpus, MixtureCorpus) else {corpus.name: corpus}
    return {name: part for name, part in parts.items() if isinstance(part, ScreenedCorpus)}


def notes_on(corpus: Corpus) -> Iterator[str]:
    """Yield one line on each screened corpus."""
    for name, part in screened_parts(corpus).items():
        findings = part.findings
        what = "removed" if part.screening.action == "drop" else "found (but kept)"
        yield (
            f"screening of {name}: {what} {findings.near_duplicates:,} near-duplicates and {findings.overlapping:,} "
            f"documents with evaluation texts, of {findings.documents:,} documents"
        )


def findings_table(name: str, corpus: ScreenedCorpus) -> Table:
    """Build a table with the findings of a corpus's screening."""
    screening, findings = corpus.screening, corpus.findings
    action = "removed" if screening.action == "drop" else "kept (screening=report)"
    table = Table(
        title=f"screening of {name}", title_justify="left", title_style="bold", box=box.SIMPLE, show_header=False
    )
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    table.add_row("documents", f"{findings.documents:,}", f"{findings.words:,} words")
    if screening.min_jaccard is not None:
        limit = f"Jaccard similarity of {screening.shingle_words}-word shingles at least {screening.min_jaccard:g}"
        table.add_row("near-duplicates", f"{findings.near_duplicates:,}", f"of earlier documents: {limit}")
        table.add_row("", f"{findings.same_shingles:,}", "with the same shingles")
        table.add_row("", f"{findings.across_split:,}", "of which one document is held out for validation")
    for set_name, overlap in findings.overlaps.items():
        short = f"; {overlap.texts - overlap.searched:,} of {overlap.texts:,} texts are too short to search for"
        table.add_row(set_name, f"{overlap.found:,}", f"texts in {overlap.documents:,} documents{short}")
    share = findings.found_words / max(1, findings.words)
    table.add_row("together", f"{findings.num_matches:,}", f"documents, {share:.2%} of the words: {action}")
    return table


def examples_of(corpus: ScreenedCorpus) -> Iterator[str]:
    """Yield lines with the first matching documents, and the location of the whole list."""
    for line in corpus.findings.examples:
        yield f"  {line['key']}: {_reason(line)}: {line['text'][:_MAX_CHARACTERS]!r}"
    if corpus.findings.num_matches:
        yield f"all of them: {list_path(corpus.findings_folder)}"


def _reason(line: Mapping[str, Any]) -> str:
    if "near_duplicate_of" in line:
        return f"Jaccard {line['jaccard']:.2f} with {line['near_duplicate_of']}"
    more = f" and {len(line['holds']) - 1} more" if len(line["holds"]) > 1 else ""
    return f"contains {line['holds'][0]['text'][:_MAX_CHARACTERS]!r} from {line['holds'][0]['set']}{more}"
