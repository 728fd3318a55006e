"""Exports a run's model to a folder, in one of the formats for other tools, checks it, and writes a model card."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lmtransfer.errors import ConfigError
from lmtransfer.interop.exporting.adapter import write_adapter
from lmtransfer.interop.exporting.card import CardSettings, card_of
from lmtransfer.interop.exporting.comparison import (
    OurModel,
    TextInput,
    TransformersModel,
    check_agreement,
    compare,
    installed_version,
    texts_to_compare,
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
from lmtransfer.runs.saved_run import CheckpointName
from lmtransfer.system.durable import staged_folder
from lmtransfer.system.optional import install_hint
from lmtransfer.system.printable import short_path

ADAPTER = "adapter"
VECTORS = "sentence_transformers"
#: The library that loads a format, where there is only one.
_LIBRARIES = {"onnx": "onnx", ADAPTER: "peft", VECTORS: "sentence-transformers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSettings:
    """The format of an export.

    Attributes:
        base: for ``ADAPTER``, the folder of the exported base; None if the export is to include the base.
        pooling: for ``VECTORS``, how the tokens of a text become a vector; None means the pooling of the run's head, or
            the mean if the run has no head.
        export_name: location of the export for its users: a folder, or ``owner/name`` on the hub.
    """

    name: str
    base: str | None
    pooling: str | None
    normalise: bool
    export_name: str


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
    """Write the model of a run, compare the export with the run, and return lines for the user."""
    opened = open_run(run, checkpoint=checkpoint)
    texts = texts_to_compare(opened, data_root=data_root)
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
        (staged / _CARD).write_text(content, encoding="utf-8")
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

    architecture: str  #: the transformers class that loads the folder; empty if there is none
    notes: tuple[str, ...]
    checks: tuple[str, ...]
    transformers_version: str | None = None  #: the version that the export was compared with, if any


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
    checks = [check_agreement("read back", ours, copy, texts)]
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
            checks.append(check_agreement(what, ours, theirs, texts))
    return ExportResult(files.architecture, (*notes, *files.notes), tuple(checks), version)


def _loadable_folders(
    opened: OpenRun, folder: Path, files: PublishedFiles
) -> Iterator[tuple[Path, PublishedFiles, dict[str, tuple[str, bool]]]]:
    """Yield each folder that transformers can load, with the content of its files, and its heads by our names."""
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
    line = check_agreement("read back", _ours(opened), read_tensors(opened, folder), texts)
    return ExportResult("", opened.notes, (line,))


def _transformers_or_tensors(
    opened: OpenRun, folder: Path, texts: Sequence[TextInput], form: FormSettings
) -> ExportResult:
    """Write the format of transformers, or plain tensors if transformers lacks the model."""
    try:
        return _transformers(opened, folder, texts, form)
    except NotInTransformers as error:
        exported = _tensors(opened, folder, texts, form)
        note = f"{error}, so the export holds the tensors of lmtransfer, which layout.json describes"
        return ExportResult("", (note, *exported.notes), exported.checks)


def _sentence_transformers(
    opened: OpenRun, folder: Path, texts: Sequence[TextInput], form: FormSettings
) -> ExportResult:
    """Write the format of sentence-transformers: the encoder for transformers, and a pooling of tokens."""
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
        checks.append(check_agreement(what, _ours(opened), theirs, texts))
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


_CARD = "README.md"
#: The line in an export's card that lists the files of the export, so that files added later are recognized.
_RECORD = re.compile(r"^<!-- files of this export: (.*) -->$", re.MULTILINE)


@contextmanager
def export_folder(folder: Path, *, overwrite: bool, source: Path | None = None) -> Iterator[Path]:
    """Yield a staging folder, which becomes ``folder`` if the block ends without an error and is deleted otherwise.

    A folder that holds other files than an export is never replaced.

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
            mode = (staged / _CARD).stat().st_mode
            for path in staged.rglob("*.safetensors"):  # safetensors writes files that only the owner may read
                path.chmod(mode)
    except OSError as error:
        raise ConfigError(
            f"to={folder}: the folder cannot be written ({error.strerror or error}); give another folder"
        ) from error
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
        return "is not empty and holds no complete export; give a new folder"
    others = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    others = [path for path in others if path.relative_to(folder).as_posix() not in names]
    if others:
        return f"holds {others[0].relative_to(folder)}, which is not part of the export; give a new folder"
    return None if overwrite else "already holds an export; replace it with overwrite=true, or give a new folder"


def _names_on_card(folder: Path) -> set[str] | None:
    """Read the names of an export's files from the card; None if the card does not list them."""
    try:
        records = _RECORD.findall((folder / _CARD).read_text(encoding="utf-8"))
        names = json.loads(records[-1]) if records else None
    except (OSError, ValueError):
        return None
    return set(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
