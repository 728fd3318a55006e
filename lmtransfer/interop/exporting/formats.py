"""The export of a run's model in a format for other tools, and the comparison of the result with the run."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from lmtransfer.config.component import build
from lmtransfer.data.files import find_file
from lmtransfer.errors import CheckpointError, ConfigError, LmtransferError
from lmtransfer.interop.exporting.adapter import write_adapter
from lmtransfer.interop.exporting.card import CardSettings, card_of
from lmtransfer.interop.exporting.comparison import (
    LogitModel,
    OurModel,
    TextInput,
    TransformersModel,
    compare,
    installed_version,
)
from lmtransfer.interop.exporting.folder import (
    compare_vectors,
    drop_heads,
    embedder_to_export,
    heads_with_other_epsilon,
    read_folder,
    read_tensors,
    select_equal_texts,
    use_family_attention,
    write_folder,
    write_modules,
    write_tensors,
)
from lmtransfer.interop.exporting.onnx import write_onnx
from lmtransfer.interop.exporting.run import OpenRun, open_run
from lmtransfer.interop.families.family import NotInTransformers
from lmtransfer.interop.writing import PublishedFiles
from lmtransfer.runs.saved import CheckpointName
from lmtransfer.system.durable import staged_folder
from lmtransfer.system.optional import install_hint
from lmtransfer.system.printable import short_path
from lmtransfer.transfer.experiment.part_run import task_of

_CARD = "README.md"
#: The line in an export's card that lists its files, so that files added later are recognized.
_RECORD = re.compile(r"^<!-- files of this export: (.*) -->$", re.MULTILINE)


@contextmanager
def export_folder(folder: Path, *, overwrite: bool, source: Path | None = None) -> Iterator[Path]:
    """Yield a staging folder, which becomes ``folder`` if the block ends without an error and is deleted otherwise.

    Args:
        source: the folder that the model was imported from, if any; this folder is never replaced.
    """
    folder = folder.expanduser().resolve()
    check_place(folder, overwrite=overwrite, source=source)
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        with staged_folder(folder) as staged:
            yield staged
            names = [path.relative_to(staged).as_posix() for path in sorted(staged.rglob("*")) if not path.is_dir()]
            with (staged / _CARD).open("a", encoding="utf-8") as card:
                card.write(f"\n<!-- files of this export: {json.dumps(sorted({*names, _CARD}))} -->\n")
            mode = folder.parent.stat().st_mode & 0o666
            for path in staged.rglob("*.safetensors"):  # safetensors writes files that only the owner may read
                path.chmod(mode)
    except OSError as error:
        raise ConfigError(f"to={folder}: cannot be written ({error.strerror or error}); give another folder") from error
    finally:
        if not folder.exists():
            for parent in missing:
                if parent.is_dir() and not any(parent.iterdir()):
                    parent.rmdir()


def check_place(folder: Path, *, overwrite: bool, source: Path | None = None) -> None:
    """Check that an export may be written to a folder; see ``export_folder``."""
    problem = _problem(folder, overwrite=overwrite)
    if source is not None and source.expanduser().resolve() == folder:
        problem = "is the folder that the model was imported from; give another folder"
    if problem:
        raise ConfigError(f"to={folder}: {problem}")


def empty(folder: Path) -> None:
    """Delete the content of a folder."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _problem(folder: Path, *, overwrite: bool) -> str | None:
    if not folder.exists():
        return None
    if not folder.is_dir():
        return "is a file; give a folder"
    if not any(folder.iterdir()):
        return None
    names = _names_on_card(folder)
    if names is None:
        return "holds files that are not an export, or an export that does not list its files; give a new folder"
    others = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    others = [path for path in others if path.relative_to(folder).as_posix() not in names]
    if others:
        return f"holds {others[0].relative_to(folder)}, which is not part of the export; give a new folder"
    return None if overwrite else "already holds an export; replace it with overwrite=true, or give a new folder"


def _names_on_card(folder: Path) -> set[str] | None:
    """Read the names of an export's files from its card; None if the card does not list them."""
    try:
        records = _RECORD.findall((folder / _CARD).read_text(encoding="utf-8"))
        names = json.loads(records[-1]) if records else None
    except (OSError, ValueError):
        return None
    return set(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


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

#: The format of peft.
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
            for example in task.examples(split):
                first, *more = (" ".join(example.content),) if run.kind == "tagging" else example.content
                yield first[:OWN_CHARACTERS], more[0][:OWN_CHARACTERS] if more else None
            return


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
        exported = _FORMS[form.name](opened, staged, texts, form)
        content = card_of(
            opened,
            library=_LIBRARIES.get(form.name) or ("transformers" if exported.architecture else "lmtransfer"),
            architecture=exported.architecture,
            notes=exported.notes,
            transformers_version=exported.transformers_version,
            settings=card,
        )
        (staged / "README.md").write_text(content, encoding="utf-8")
    what = exported.architecture or ("ONNX" if form.name == "onnx" else "tensors, described in layout.json")
    what = f"an adapter for {what}" if form.name == ADAPTER else what
    return [
        *(f"note: {note}" for note in exported.notes),
        *exported.checks,
        f"exported {short_path(opened.checkpoint)} as {what}",
    ]


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Facts on an exported folder."""

    architecture: str  #: class of transformers that loads the folder; empty if transformers cannot load it
    notes: tuple[str, ...]
    checks: tuple[str, ...]
    transformers_version: str | None = None  #: version of transformers that the export was compared with, or None


def _transformers(opened: OpenRun, folder: Path, texts: Sequence[TextInput], form: FormSettings) -> ExportResult:
    notes = use_family_attention(opened)
    ours = _ours(opened)
    files = write_folder(opened, folder)
    texts = select_equal_texts(opened, folder, texts)
    copy = read_folder(opened, folder, files)
    unpublishable = heads_with_other_epsilon(opened, compare(ours, copy, texts).differing_heads)
    if unpublishable:
        empty(folder)
        files = write_folder(opened, folder, without=unpublishable)
        copy = read_folder(opened, folder, files)
    checks = [_compare_forms("read back", ours, copy, texts)]
    version = installed_version()
    if version is None:
        checks.append(f"not compared with transformers: {install_hint('transformers')}, then export again")
    else:
        for place, written, heads in _loadable_folders(opened, folder, files):
            theirs = TransformersModel(
                place,
                architecture=written.architecture,
                max_length=opened.encoder.max_length,
                has_pooler=opened.encoder.pooler is not None,
                heads=heads,
            )
            what = f"verified with transformers {version} as {written.architecture}"
            checks.append(_compare_forms(what, ours, theirs, texts))
    return ExportResult(files.architecture, (*notes, *files.notes), tuple(checks), version)


def _loadable_folders(
    opened: OpenRun, folder: Path, files: PublishedFiles
) -> Iterator[tuple[Path, PublishedFiles, dict[str, tuple[str, bool]]]]:
    """Yield each folder that transformers can load, with its files and its heads under our names."""
    objectives = {objective.name: objective for objective in opened.objectives}
    yield folder, files, {n: (output, objectives[n].head_reads == "starts") for n, output in files.outputs.items()}
    inner = {name: inner for objective in opened.objectives for name, inner in objective.inner().items()}
    for place, more in files.more.items():
        heads = {
            n: (more.outputs[o.name], o.head_reads == "starts") for n, o in inner.items() if o.name in more.outputs
        }
        yield folder / place, more, heads


def _tensors(opened: OpenRun, folder: Path, texts: Sequence[TextInput], form: FormSettings) -> ExportResult:
    write_tensors(opened, folder)
    line = _compare_forms("read back", _ours(opened), read_tensors(opened, folder), texts)
    return ExportResult("", opened.notes, (line,))


def _transformers_or_tensors(
    opened: OpenRun, folder: Path, texts: Sequence[TextInput], form: FormSettings
) -> ExportResult:
    """Write the format of transformers, or plain tensors if transformers has no such model."""
    try:
        return _transformers(opened, folder, texts, form)
    except NotInTransformers as error:
        exported = _tensors(opened, folder, texts, form)
        note = f"{error}: its tensors are written as they are, and layout.json describes each of them"
        return ExportResult("", (note, *exported.notes), exported.checks)


def _sentence_transformers(
    opened: OpenRun, folder: Path, texts: Sequence[TextInput], form: FormSettings
) -> ExportResult:
    """Write the format of sentence-transformers: the encoder for transformers, and the pooling of its tokens."""
    embedder = embedder_to_export(opened, pooling=form.pooling)
    alone = drop_heads(opened, embedder)
    exported = _transformers(alone, folder, texts, form)
    normalise = form.normalise or embedder.normalise
    write_modules(folder, embedder, normalise=normalise)
    texts = select_equal_texts(alone, folder, texts)
    line = compare_vectors(folder, embedder, texts, normalise=normalise)
    return replace(exported, checks=(*exported.checks, line))


def _onnx(opened: OpenRun, folder: Path, texts: Sequence[TextInput], form: FormSettings) -> ExportResult:
    notes, checks = write_onnx(opened, folder)
    return ExportResult("", notes, checks)


def _adapter(opened: OpenRun, folder: Path, texts: Sequence[TextInput], form: FormSettings) -> ExportResult:
    notes = use_family_attention(opened)
    written = write_adapter(opened, folder, base=form.base, export_name=form.export_name)
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
            adapter=folder,
            num_labels=written.num_labels,
        )
        what = f"verified with peft {installed_version('peft')} on {written.architecture}"
        checks.append(_compare_forms(what, _ours(opened), theirs, texts))
    return ExportResult(written.architecture, (*notes, *written.notes), tuple(checks), version)


#: The function that writes each format, by the name of the format.
_FORMS: dict[str, Callable[[OpenRun, Path, Sequence[TextInput], FormSettings], ExportResult]] = {
    "auto": _transformers_or_tensors,
    "transformers": _transformers,
    VECTORS: _sentence_transformers,
    "tensors": _tensors,
    "onnx": _onnx,
    ADAPTER: _adapter,
}


def _ours(opened: OpenRun) -> OurModel:
    return OurModel(opened.learner, opened.saved.tokenizer)


def _compare_forms(what: str, ours: LogitModel, theirs: LogitModel, texts: Sequence[TextInput]) -> str:
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
