"""The text of a pretraining run: screened, and read as token ids from a corpus or a mixture."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from lmtransfer.config.component import Node
from lmtransfer.config.settings import PretrainSettings
from lmtransfer.config.sources import named_sources, with_absolute_paths
from lmtransfer.data.corpora.mixture import MixtureCorpus
from lmtransfer.data.documents import Corpus
from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.data.screening import ScreenedCorpus, Screening, list_path
from lmtransfer.data.token_cache import PreparedCorpus, prepare, tokenizer_for
from lmtransfer.errors import ConfigError, DataError, LmtransferError, RunDirectoryError
from lmtransfer.interop.added_tokens import add_words
from lmtransfer.interop.open_run import open_saved
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.runs.trust import check_named, refusal
from lmtransfer.system import door
from lmtransfer.system.machine import cache_folder, default_cache_dir
from lmtransfer.system.optional import import_optional
from lmtransfer.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from lmtransfer.tasks.base import Task


#: Maximum number of characters of a text in a line on the terminal.
_MAX_CHARACTERS = 60


def _build_screening(node: Node[Screening], *, data_root: str | None, cache_dir: Path) -> Screening:
    """Build a screening and read its evaluation texts."""
    if node.get("min_jaccard") is not None:  # fail before all the texts are read
        import_optional("datasketch", work="screening.min_jaccard", error=ConfigError)
    texts: dict[str, list[str]] = {}
    sources: Mapping[str, Node[Any]] = node.get("overlap_with") or {}
    for name, source_node in sources.items():
        source = source_node.build(data_root=data_root, cache_dir=str(cache_dir))
        texts |= {name: _lines(source)} if isinstance(source, Corpus) else _held_out_texts(name, source)
    return node.build(overlap_with=texts, cache_dir=str(cache_dir))


def _lines(corpus: Corpus) -> list[str]:
    return [document.text for document in corpus.documents()]


def _held_out_texts(name: str, task: Task) -> dict[str, list[str]]:
    """Return the texts of all splits except the training split; unavailable splits are skipped with a message."""
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
        print(f"screening: the texts of {name} {split} are not searched for: {reason}", file=sys.stderr)
    return texts


def screened_parts(corpus: Corpus) -> Mapping[str, ScreenedCorpus]:
    """Return the screened corpora, keyed by name: the corpus itself, or the screened parts of a mixture."""
    return {name: part for name, part in _parts_of(corpus).items() if isinstance(part, ScreenedCorpus)}


def _parts_of(corpus: Corpus) -> Mapping[str, Corpus]:
    return corpus.parts if isinstance(corpus, MixtureCorpus) else {corpus.name: corpus}


def notes_on(corpus: Corpus) -> Iterator[str]:
    """Yield lines on what was left out of each corpus, and on the findings of each screened one."""
    for name, part in _parts_of(corpus).items():
        for kind, note in part.left_out.as_dict().items():
            yield f"corpus {name}: {kind}: {note['count']:,} (first at {note['first']})"
    for name, part in screened_parts(corpus).items():
        findings = part.findings
        what = "removed" if part.screening.action == "drop" else "found (but kept)"
        yield (
            f"screening of {name}: {what} {findings.near_duplicates:,} near-duplicates and {findings.overlapping:,} "
            f"documents with evaluation texts, of {findings.documents:,} documents"
        )


def findings_table(name: str, corpus: ScreenedCorpus) -> Table:
    """Build a table with the findings of the screening of a corpus."""
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
    """Yield lines with the first matching documents, and the path of the complete list."""
    for line in corpus.findings.examples:
        yield f"  {line['key']}: {_reason(line)}: {line['text'][:_MAX_CHARACTERS]!r}"
    if corpus.findings.num_matches:
        yield f"complete list: {list_path(corpus.findings_folder)}"


def _reason(line: Mapping[str, Any]) -> str:
    if "near_duplicate_of" in line:
        return f"Jaccard {line['jaccard']:.2f} with {line['near_duplicate_of']}"
    more = f" and {len(line['holds']) - 1} more" if len(line["holds"]) > 1 else ""
    return f"contains {line['holds'][0]['text'][:_MAX_CHARACTERS]!r} from {line['holds'][0]['set']}{more}"


@dataclass(frozen=True, slots=True)
class Text:
    """A corpus as token ids.

    Attributes:
        notes: messages about words added to the tokenizer, and about the screening.
    """

    corpus: Corpus
    tokenizer: Tokenizer
    prepared: PreparedCorpus
    notes: tuple[str, ...] = ()

    def tokens_per_word(self, stream: PlannedStream) -> float:
        """Return the number of tokens, including special tokens, per word of the training text."""
        if self.prepared.parts:
            raise ConfigError(
                f"train.words and train.save_at_words need a single corpus, but corpus={self.corpus.name} is a "
                "mixture: set train.tokens and train.save_at, or put the text into one corpus"
            )
        statistics = self.prepared.statistics
        return stream.tokens_per_epoch / max(1, statistics.words - statistics.validation_words)


def read_training_text(settings: PretrainSettings) -> Text:
    """Read the text of a pretraining; its tokenizer comes from ``init``, or is trained on the corpus."""
    cache_dir = cache_folder(settings.cache_dir)
    corpus = build_corpus(settings.corpus, settings.screening, data_root=settings.data_root, cache_dir=cache_dir)
    if settings.init:
        tokenizer = open_saved(settings.init, key="init").tokenizer
    else:
        tokenizer = tokenizer_for(corpus, settings.tokenizer.trainer.build(), cache_dir=cache_dir)
    notes: list[str] = []
    if settings.tokenizer.add is not None:
        tokenizer, notes = add_words(tokenizer, Path(settings.tokenizer.add).expanduser().absolute())
    text = read_text(corpus, tokenizer, cache_dir=cache_dir, max_length=settings.objective.max_length)
    return replace(text, notes=(*notes, *text.notes))


def read_text(corpus: Corpus, tokenizer: Tokenizer, *, cache_dir: Path, max_length: int) -> Text:
    """Tokenize a corpus, or read the tokens from the cache.

    Args:
        max_length: maximum row length in tokens.
    """
    prepared = prepare(corpus, tokenizer, cache_dir=cache_dir, min_tokens=max_length)
    return Text(corpus, tokenizer, prepared, tuple(notes_on(corpus)))


def build_corpus(
    node: Node[Corpus], screening_node: Node[Screening] | None, *, data_root: str | None, cache_dir: Path
) -> Corpus:
    """Build a corpus; with a screening, screen the corpus, or each part of a mixture separately."""
    screening = None
    if screening_node is not None:
        screening = _build_screening(screening_node, data_root=data_root, cache_dir=cache_dir)

    def screened(part: Node[Corpus]) -> Corpus:
        corpus = part.build(data_root=data_root, cache_dir=str(cache_dir))
        return corpus if screening is None else ScreenedCorpus(corpus, screening)

    parts: Mapping[str, Node[Corpus]] = node.get("parts") or {}
    if not parts:
        return screened(node)
    corpora, missing = {}, []
    for name, part in parts.items():
        try:
            corpora[name] = screened(part)
        except DataError as error:
            missing.append(f"corpus.parts.{name}: {error}")
    if missing:
        raise DataError("\n".join(missing))
    return node.build(parts=corpora)


def check_same_text(run: SavedRun, *, data_root: str | None) -> None:
    """Check that the text of someone else's run may be read, and is the text that the run was trained on."""
    where, config = run.directory.config_path, run.config
    if (config.get("screening") or {}).get("action") == "drop":
        raise RunDirectoryError(
            f"{where}: screening.action=drop: the run was not produced here, or was changed since, and its text could "
            "only be checked by a screening that reads the files named in the run. Choose a corpus of your own "
            f"(corpus=<name>){door.way_out()}"
        )
    named = list(named_sources(config["corpus"], "corpus"))
    if not named:
        return  # the corpus uses only what is installed
    check_named(config["corpus"], "corpus", run.path, data_root=data_root)
    try:
        own = Node[Corpus](config["corpus"], "corpus")
        fingerprint = build_corpus(own, None, data_root=data_root, cache_dir=default_cache_dir()).fingerprint()
    except (LmtransferError, OSError, TypeError, ValueError):
        raise refusal(named[0].key, named[0].value, run.path) from None
    if fingerprint != (run.directory.read_versions().get("data") or {}).get("corpus"):
        raise RunDirectoryError(
            f"{where}: {named[0].key} names {named[0].value[:200]!r}, but this is not the text that the run was "
            f"trained on. Set the corpus yourself (corpus=<name>){door.way_out()}"
        )


def absolute_settings(settings: PretrainSettings) -> PretrainSettings:
    """Return the settings with absolute paths, which do not depend on the current folder."""
    paths = {key: _absolute(path) for key, path in settings.chosen("init", "data_root", "output_root").items() if path}
    tokenizer = settings.tokenizer
    if tokenizer.add:
        tokenizer = tokenizer.model_copy(update={"add": _absolute(tokenizer.add)})
    corpus = replace(settings.corpus, values=with_absolute_paths(settings.corpus.values))
    return settings.model_copy(update={**paths, "corpus": corpus, "tokenizer": tokenizer})


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
