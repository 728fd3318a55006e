"""The export of a run's model in a format for other tools, and the comparison of the result with the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lmtransfer.config.component import build
from lmtransfer.data.files import find_file
from lmtransfer.errors import CheckpointError, LmtransferError
from lmtransfer.interop.exporting.adapter import write_adapter
from lmtransfer.interop.exporting.card import CardSettings, card_of, write_card
from lmtransfer.interop.exporting.folder import (
    heads_with_other_epsilon,
    read_folder,
    read_tensors,
    select_equal_texts,
    use_family_attention,
    write_folder,
    write_tensors,
)
from lmtransfer.interop.exporting.logits import LogitModel, OurModel, TextInput, compare
from lmtransfer.interop.exporting.onnx import OnnxFile, export_onnx
from lmtransfer.interop.exporting.place import empty, export_folder
from lmtransfer.interop.exporting.run import OpenRun, open_run
from lmtransfer.interop.exporting.sentence_folder import (
    compare_vectors,
    drop_heads,
    embedder_to_export,
    write_modules,
)
from lmtransfer.interop.exporting.transformers_check import (
    Adapter,
    TransformersHead,
    TransformersModel,
    installed_version,
)
from lmtransfer.interop.families.family import NotInTransformers
from lmtransfer.interop.writing import PublishedFiles
from lmtransfer.objectives.base import Objective
from lmtransfer.runs.saved import CheckpointName
from lmtransfer.system.optional import install_hint
from lmtransfer.system.printable import short_path
from lmtransfer.transfer.experiment.part_run import task_of
from lmtransfer.transfer.learner import TaskLearner

#: Maximum number of lines from the run's corpus or task, and maximum number of characters of each line.
OWN_LINES, OWN_CHARACTERS = 40, 400

_STORY = (
    "the river carried old paper boats past a red mill while seven children counted slowly and nobody asked why it was "
    "so quiet until the bell rang again over the wet roofs of that small town where we had once been young"
)
_WORDS = _STORY.split()

SENTENCES = (
    "Yes.",
    "A quiet street.",
    "It was not bad at all!",
    "Who wrote this, and why?",
    "Numbers: 3.14, 1,000,000 and 2026-11-21.",
    "He said: \"It's fine, isn't it?\" (It was not.)",
    "e-mail me at nobody@example.org; see https://example.org/a?b=c#d",
    "Na\u00efve fa\u00e7ade, \u00c5ngstr\u00f6m, stra\u00dfe, \u0130stanbul.",
    "Cafe\u0301 with an accent of its own",
    "\u65e5\u672c\u8a9e\u306e\u6587\u3067\u3059\u3002",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5",
    "smile \U0001f642 and go",
    "two  spaces,\ta tab and a\u00a0no-break space",
    "zero\u200bwidth",
    "UPPER lower MiXeD",
    "x",
    "...",
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    *(" ".join(_WORDS[:size]).capitalize() + "." for size in range(4, len(_WORDS), 3)),
    " ".join([*_WORDS, *reversed(_WORDS)] * 2),
)

PAIRS = (
    ("Is it raining?", "No."),
    ("A man plays a guitar.", "Somebody makes music."),
    ("Short", " ".join(_WORDS[:17])),
    (" ".join(_WORDS[:11]), "Nothing follows from that."),
    ("Which river?", "The river carried old paper boats past a red mill."),
)

#: The format that needs settings of its own; see ``write_adapter_form``.
ADAPTER = "adapter"
#: The format that includes a pooling, which turns texts into vectors.
VECTORS = "sentence_transformers"
#: The library of a format that a single library loads.
_LIBRARIES = {"onnx": "onnx", ADAPTER: "peft", VECTORS: "sentence-transformers"}


def texts_of(run: OpenRun, *, data_root: str | None) -> list[TextInput]:
    """Return the built-in texts and pairs, and some texts of the run's data if the data is on this machine."""
    trusted = run.saved.trusted  # files that an untrusted run names must not be read
    own_texts = _own(run.saved.config, data_root or run.saved.data_root, run) if trusted else iter(())
    return [*((text, None) for text in SENTENCES), *PAIRS, *islice(own_texts, OWN_LINES)]


def _own(config: Mapping[str, Any], data_root: str | None, run: OpenRun) -> Iterator[TextInput]:
    """Yield texts of the run's corpus or task from local files; files that are missing are skipped."""
    try:
        if "task" in config:
            yield from _of_task(config["task"], data_root, run)
        elif isinstance(config.get("corpus"), Mapping):
            yield from ((text, None) for text in _of_corpus(config["corpus"], data_root))
    except (LmtransferError, OSError):
        return


def _of_corpus(node: Mapping[str, Any], data_root: str | None) -> Iterator[str]:
    """Yield lines of local documents, at most three from each document."""
    parts = node.get("parts")
    for part in parts.values() if isinstance(parts, Mapping) else (node,):
        yield from _of_files(part, data_root)


def _of_files(node: Mapping[str, Any], data_root: str | None) -> Iterator[str]:
    if "path" not in node and "files" not in node:  # a hub corpus, or generated text
        return
    settings = {**node, "hub_dataset": None} if "hub_dataset" in node else node
    corpus = build(settings, data_root=data_root, cache_dir=None)
    for document in corpus.documents():
        lines = [line for line in document.text.split("\n") if line.strip()]
        yield from (line[:OWN_CHARACTERS] for line in lines[:3])


def _of_task(node: Mapping[str, Any], data_root: str | None, run: OpenRun) -> Iterator[TextInput]:
    files = node.get("files")
    if not isinstance(files, Mapping):
        return
    folders = [*([Path(data_root)] if data_root else []), Path.cwd()]
    for split in sorted(files, key=lambda split: split != "dev"):  # training files are long
        names: Sequence[str] = [files[split]] if isinstance(files[split], str) else files[split] or []
        if any(find_file(folder / name) for folder in folders for name in names):
            task = task_of(run.saved, data_root=data_root)
            yield from (_text_of(example.content, is_words=run.kind == "tagging") for example in task.examples(split))
            return


def _text_of(content: Sequence[str], *, is_words: bool) -> TextInput:
    """Return the text or the two texts of an example."""
    first, *more = (" ".join(content),) if is_words else content
    return first[:OWN_CHARACTERS], more[0][:OWN_CHARACTERS] if more else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSettings:
    """The format of an export.

    Attributes:
        pooling: for ``VECTORS``, how the tokens of a text become a vector; None for the pooling of the run's head, or
            the mean if it has none.
    """

    name: str
    base: str | None  #: for an adapter, the folder of its exported base; None if the export is to include the base
    pooling: str | None
    normalise: bool
    export_name: str  #: name of the export for its users: a folder, or ``owner/name`` on the hub


def write_model(
    run: str,
    folder: Path,
    *,
    form: FormSettings,
    checkpoint: CheckpointName | None,
    overwrite: bool,
    data_root: str | None,
    card: CardSettings,
) -> list[str]:
    """Write the model of a run, compare it with the run, and return lines for the user."""
    opened = open_run(run, checkpoint=checkpoint)
    texts = select_fitting_texts(opened, texts_of(opened, data_root=data_root))
    source = opened.saved.config.get("source")
    with export_folder(folder, overwrite=overwrite, source=Path(str(source)) if source else None) as staged:
        exported = _write_form(opened, staged, texts, form)
        content = card_of(
            opened,
            library=_LIBRARIES.get(form.name) or ("transformers" if exported.architecture else "lmtransfer"),
            architecture=exported.architecture,
            notes=exported.notes,
            transformers_version=exported.transformers_version,
            settings=card,
        )
        (staged / "README.md").write_text(write_card(content), encoding="utf-8")
    what = exported.architecture or ("ONNX" if form.name == "onnx" else "tensors, described in layout.json")
    what = f"an adapter for {what}" if form.name == ADAPTER else what
    return [
        *(f"note: {note}" for note in exported.notes),
        *exported.checks,
        f"exported {short_path(opened.checkpoint)} as {what}",
    ]


def _write_form(opened: OpenRun, folder: Path, texts: Sequence[TextInput], form: FormSettings) -> ExportResult:
    if form.name == ADAPTER:
        return write_adapter_form(opened, folder, texts, base=form.base, export_name=form.export_name)
    vectors = {"pooling": form.pooling, "normalise": form.normalise} if form.name == VECTORS else {}
    return FORMS[form.name](opened, folder, texts, **vectors)


def write_onnx(run: OpenRun, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write ``model.onnx`` and the tokenizer's files."""
    notes = list(run.notes)
    try:
        words = run.write_tokenizer(folder)
        notes += words.notes
        if words.pad_id == run.encoder.vocab_size:
            _add_row_of_padding(run)
    except CheckpointError as error:
        run.saved.tokenizer.save(folder / "tokenizer")
        notes.append(
            "the tokenizer is written to tokenizer/ in the format of lmtransfer, because transformers has no tokenizer "
            f"for this model: {error}"
        )
    written = _graph(run, folder, notes)
    what = f"{written.path.name}: inputs {', '.join(written.inputs)}; outputs {', '.join(written.outputs)}"
    if written.difference is None:
        return (*notes, *written.notes), (what,)
    check = f"verified with onnxruntime on batches of mixed lengths, largest difference {written.difference:.0e}"
    return (*notes, *written.notes), (what, check)


@torch.no_grad()
def _add_row_of_padding(run: OpenRun) -> None:
    """Add one row of zeros for padding to the token embedding and all other tensors with one row per token."""
    encoder = run.encoder
    if encoder.token_embedding is None:
        return
    _grow(encoder.token_embedding, "weight")
    encoder.token_embedding.num_embeddings += 1
    encoder.vocab_size += 1
    for objective in run.objectives:
        for name in objective.vocabulary_tensors:
            path, _, own = name.rpartition(".")
            _grow(objective.get_submodule(path), own)


def _grow(module: nn.Module, name: str) -> None:
    rows = module.get_parameter(name)
    setattr(module, name, nn.Parameter(torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])))


def _graph(run: OpenRun, folder: Path, notes: list[str]) -> OnnxFile:
    """Write the graph, with the head of the first objective that has logits for each token."""
    if isinstance(run.learner, TaskLearner):
        return export_onnx(encoder=run.encoder, folder=folder, task=run.learner, labels=run.labels)
    state_TD = torch.zeros(1, run.encoder.dim)
    exportable = [objective for objective in run.objectives if objective.token_logits(state_TD) is not None]
    first = exportable[0] if exportable else None
    rest = [objective.name for objective in run.objectives if objective is not first]
    if rest:
        notes.append(f"the graph does not include the head of {', '.join(rest)}")
    return export_onnx(encoder=run.encoder, folder=folder, objective=first)


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Facts on an exported folder."""

    architecture: str  #: class of transformers that loads the folder; empty if transformers cannot load it
    notes: tuple[str, ...]
    checks: tuple[str, ...]
    transformers_version: str | None = None  #: version of transformers that the export was compared with, or None


def _transformers(opened: OpenRun, folder: Path, texts: Sequence[TextInput]) -> ExportResult:
    """Write the format of transformers."""
    notes = use_family_attention(opened)
    ours = _ours(opened)
    written = write_folder(opened, folder)
    texts = select_equal_texts(opened, folder, texts)
    copy = read_folder(opened, folder, written)
    unpublishable = heads_with_other_epsilon(opened, compare(ours, copy, texts).differing_heads)
    if unpublishable:
        empty(folder)
        written = write_folder(opened, folder, without=unpublishable)
        copy = read_folder(opened, folder, written)
    checks = [_compare_forms("read back", ours, copy, texts)]
    version = installed_version()
    if version is None:
        checks.append(f"not compared with transformers: {install_hint('transformers')}, then export again")
    else:
        for place, files, heads in _loadable_folders(opened, folder, written.files):
            theirs = TransformersModel(
                place,
                architecture=files.architecture,
                max_length=opened.encoder.max_length,
                has_pooler=opened.encoder.pooler is not None,
                heads=heads,
            )
            what = f"verified with transformers {version} as {files.architecture}"
            checks.append(_compare_forms(what, ours, theirs, texts))
    return ExportResult(written.files.architecture, (*notes, *written.notes), tuple(checks), version)


def _loadable_folders(
    opened: OpenRun, folder: Path, files: PublishedFiles
) -> Iterator[tuple[Path, PublishedFiles, dict[str, TransformersHead]]]:
    """Yield each folder that transformers can load, with its files and its heads under our names."""
    objectives = {objective.name: objective for objective in opened.objectives}
    yield folder, files, {name: _head(objectives[name], output) for name, output in files.outputs.items()}
    inner = {name: inner for objective in opened.objectives for name, inner in objective.inner().items()}
    for place, more in files.more.items():
        heads = {n: _head(o, more.outputs[o.name]) for n, o in inner.items() if o.name in more.outputs}
        yield folder / place, more, heads


def _head(objective: Objective, output: str) -> TransformersHead:
    return TransformersHead(output, is_per_text=objective.head_reads == "starts")


def _tensors(opened: OpenRun, folder: Path, texts: Sequence[TextInput]) -> ExportResult:
    """Write plain tensors under our own names."""
    write_tensors(opened, folder)
    line = _compare_forms("read back", _ours(opened), read_tensors(opened, folder), texts)
    return ExportResult("", opened.notes, (line,))


def _transformers_or_tensors(opened: OpenRun, folder: Path, texts: Sequence[TextInput]) -> ExportResult:
    """Write the format of transformers, or plain tensors if transformers has no such model."""
    try:
        return _transformers(opened, folder, texts)
    except NotInTransformers as error:
        exported = _tensors(opened, folder, texts)
        note = f"{error}: its tensors are written as they are, and layout.json describes each of them"
        return ExportResult("", (note, *exported.notes), exported.checks)


def _sentence_transformers(
    opened: OpenRun, folder: Path, texts: Sequence[TextInput], *, pooling: str | None = None, normalise: bool = False
) -> ExportResult:
    """Write the format of sentence-transformers: the encoder for transformers, and the pooling of its tokens."""
    embedder = embedder_to_export(opened, pooling=pooling)
    alone = drop_heads(opened, embedder)
    exported = _transformers(alone, folder, texts)
    normalise = normalise or embedder.normalise
    write_modules(folder, embedder, normalise=normalise)
    texts = select_equal_texts(alone, folder, texts)
    line = compare_vectors(folder, embedder, texts, normalise=normalise)
    return replace(exported, checks=(*exported.checks, line))


def _onnx(opened: OpenRun, folder: Path, texts: Sequence[TextInput]) -> ExportResult:
    """Write the format of onnxruntime."""
    notes, checks = write_onnx(opened, folder)
    return ExportResult("", notes, checks)


def write_adapter_form(
    opened: OpenRun, folder: Path, texts: Sequence[TextInput], *, base: str | None, export_name: str
) -> ExportResult:
    """Write the format of peft; see ``write_adapter``."""
    notes = use_family_attention(opened)
    written = write_adapter(opened, folder, base=base, export_name=export_name)
    texts = select_equal_texts(opened, folder, texts)
    checks = [written.verification]
    version = installed_version()
    absent = [message for package in ("transformers", "peft") if (message := install_hint(package))]
    if absent:
        checks.append(f"not compared with peft: {absent[0]}, then export again")
    else:
        theirs = TransformersModel(
            written.base,
            architecture=written.architecture,
            max_length=opened.encoder.max_length,
            adapter=Adapter(folder, written.num_labels),
        )
        what = f"verified with peft {installed_version('peft')} on {written.architecture}"
        checks.append(_compare_forms(what, _ours(opened), theirs, texts))
    return ExportResult(written.architecture, (*notes, *written.notes), tuple(checks), version)


#: The function that writes each format, by the name of the format. Its arguments are the run, the folder and the texts
#: to compare; for sentence_transformers also the keywords ``pooling`` and ``normalise``.
FORMS: dict[str, Callable[..., ExportResult]] = {
    "auto": _transformers_or_tensors,
    "transformers": _transformers,
    "sentence_transformers": _sentence_transformers,
    "tensors": _tensors,
    "onnx": _onnx,
}


def _ours(opened: OpenRun) -> OurModel:
    return OurModel(opened.learner, opened.saved.tokenizer)


def _compare_forms(what: str, ours: LogitModel, theirs: LogitModel, texts: Sequence[TextInput]) -> str:
    """Compare two forms of the model and describe the result in one line."""
    comparison = compare(ours, theirs, texts)
    if comparison.differing_text is not None:
        raise CheckpointError(
            f"{what}: the token ids of {comparison.differing_text[:60]!r} differ; nothing was exported"
        )
    if not comparison.differences:
        raise CheckpointError(f"{what}: the two forms have no head in common to compare; nothing was exported")
    if comparison.differing_heads and isinstance(theirs, TransformersModel):
        comparison.rounding = theirs.rounding(texts)
    for head in comparison.differing_heads:
        raise CheckpointError(
            f"{what}: {head} differs by {comparison.differences[head]:.1e}, but rounding explains at most "
            f"{comparison.tolerance(head):.0e}; nothing was exported"
        )
    largest = max(comparison.differences.values())
    difference = f"{largest:.0e}" if largest else "0"
    return (
        f"{what}: {comparison.num_texts} texts, largest difference {difference} ({', '.join(comparison.differences)})"
    )


def select_fitting_texts(opened: OpenRun, texts: Sequence[TextInput]) -> list[TextInput]:
    """Select all single texts, and the pairs that need no truncation, because tokenizers truncate pairs differently."""
    ours = _ours(opened)
    pairs = [text for text in texts if text[1] is not None]
    lengths = ours.encode(pairs).lengths if ours.max_length > 4 else [ours.max_length] * len(pairs)
    short_pairs = [pair for pair, length in zip(pairs, lengths, strict=True) if length < ours.max_length]
    return [*(text for text in texts if text[1] is None), *short_pairs]
