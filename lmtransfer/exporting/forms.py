"""The formats of an export (transformers, sentence-transformers, tensors, ONNX), each compared with the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from lmtransfer.errors import CheckpointError
from lmtransfer.exporting.adapter import write_adapter
from lmtransfer.exporting.folder import (
    heads_of_other_epsilon,
    read_as_published,
    read_equally,
    read_folder,
    write_folder,
)
from lmtransfer.exporting.logits import OurModel, Speaker, Text, compare
from lmtransfer.exporting.place import empty
from lmtransfer.exporting.run import OpenRun
from lmtransfer.exporting.seen_by_transformers import (
    Adapter,
    TransformersHead,
    TransformersModel,
    installed_version,
)
from lmtransfer.exporting.sentence_folder import (
    compared_vectors,
    embedder_to_export,
    encoder_alone,
    write_modules,
)
from lmtransfer.exporting.tensors import read_tensors, write_tensors
from lmtransfer.interop.families.base import NotInTransformers
from lmtransfer.interop.onnx.export import OnnxFile, export_onnx
from lmtransfer.interop.writing import PublishedFiles
from lmtransfer.objectives.base import Objective
from lmtransfer.system.optional import missing
from lmtransfer.transfer.learner import TaskLearner

#: The format with settings of its own; see ``adapter_form``.
ADAPTER = "adapter"


def write_onnx(run: OpenRun, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write ``model.onnx`` and the tokenizer's files.

    Args:
        run: the run.
        folder: an existing folder.

    Returns:
        Notes for the user, and one line for each check.

    Raises:
        CheckpointError: the model or its head has no ONNX form, a package is missing, or the comparison failed.
    """
    notes = list(run.notes)
    try:
        words = run.write_tokenizer(folder)
        notes += words.notes
        if words.pad_id == run.encoder.vocab_size:
            _add_row_of_padding(run)
    except CheckpointError as error:
        run.saved.tokenizer.save(folder / "tokenizer")
        notes.append(
            "the tokenizer is written to tokenizer/ in the format of lmtransfer, because transformers has none for "
            f"this model: {error}"
        )
    written = _graph(run, folder, notes)
    what = f"{written.path.name}: inputs {', '.join(written.inputs)}; outputs {', '.join(written.outputs)}"
    if written.difference is None:
        return (*notes, *written.notes), (what,)
    checked = f"verified with onnxruntime on batches of mixed lengths, largest difference {written.difference:.0e}"
    return (*notes, *written.notes), (what, checked)


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
        for name in objective.vocabulary_sized:
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
    chosen = next((objective for objective in run.objectives if objective.token_logits(state_TD) is not None), None)
    left = [objective.name for objective in run.objectives if objective is not chosen]
    if left:
        notes.append(f"the graph has no head of {', '.join(left)}")
    return export_onnx(encoder=run.encoder, folder=folder, objective=chosen)


@dataclass(frozen=True, slots=True)
class Exported:
    """The content of the exported folder.

    Attributes:
        architecture: class of transformers that loads the folder; empty if transformers cannot load it.
        notes: notes on what was left out or changed.
        checked: one line for each comparison that was made.
        checked_with: version of transformers that the export was compared with, or None.
    """

    architecture: str
    notes: tuple[str, ...]
    checked: tuple[str, ...]
    checked_with: str | None = None


def _transformers(opened: OpenRun, folder: Path, texts: Sequence[Text]) -> Exported:
    """Write the format of transformers."""
    notes = read_as_published(opened)
    ours = _ours(opened)
    written = write_folder(opened, folder)
    texts = read_equally(opened, folder, texts)
    read = read_folder(opened, folder, written)
    changed = heads_of_other_epsilon(opened, compare(ours, read, texts).other_heads)
    if changed:
        empty(folder)
        written = write_folder(opened, folder, without=changed)
        read = read_folder(opened, folder, written)
    checked = [_compared("read back", ours, read, texts)]
    version = installed_version()
    if version is None:
        checked.append(f"not compared with transformers: {missing('transformers')}, then export again")
    else:
        for place, files, heads in _loaded(opened, folder, written.files):
            theirs = TransformersModel(
                place,
                architecture=files.architecture,
                max_length=opened.encoder.max_length,
                has_pooler=opened.encoder.pooler is not None,
                heads=heads,
            )
            what = f"verified with transformers {version} as {files.architecture}"
            checked.append(_compared(what, ours, theirs, texts))
    return Exported(written.files.architecture, (*notes, *written.notes), tuple(checked), version)


def _loaded(
    opened: OpenRun, folder: Path, files: PublishedFiles
) -> Iterator[tuple[Path, PublishedFiles, dict[str, TransformersHead]]]:
    """Yield each folder that transformers loads, with its heads under our names."""
    objectives = {objective.name: objective for objective in opened.objectives}
    yield folder, files, {name: _head(objectives[name], output) for name, output in files.outputs.items()}
    inner = {name: inner for objective in opened.objectives for name, inner in objective.inner().items()}
    for place, more in files.more.items():
        heads = {n: _head(o, more.outputs[o.name]) for n, o in inner.items() if o.name in more.outputs}
        yield folder / place, more, heads


def _head(objective: Objective, output: str) -> TransformersHead:
    return TransformersHead(output, of_texts=objective.head_reads == "starts")


def _tensors(opened: OpenRun, folder: Path, texts: Sequence[Text]) -> Exported:
    """Write plain tensors under our own names."""
    write_tensors(opened, folder)
    line = _compared("read back", _ours(opened), read_tensors(opened, folder), texts)
    return Exported("", opened.notes, (line,))


def _transformers_or_tensors(opened: OpenRun, folder: Path, texts: Sequence[Text]) -> Exported:
    """Write the format of transformers, or plain tensors if transformers has no such model."""
    try:
        return _transformers(opened, folder, texts)
    except NotInTransformers as error:
        exported = _tensors(opened, folder, texts)
        note = f"{error}: its tensors are written unchanged, and layout.json describes each of them"
        return Exported("", (note, *exported.notes), exported.checked)


def _sentence_transformers(
    opened: OpenRun, folder: Path, texts: Sequence[Text], *, pooling: str | None = None, normalise: bool = False
) -> Exported:
    """Write the format of sentence-transformers: the encoder for transformers, and how its tokens are pooled."""
    embedder = embedder_to_export(opened, pooling=pooling)
    alone = encoder_alone(opened, embedder)
    exported = _transformers(alone, folder, texts)
    normalise = normalise or embedder.normalise
    write_modules(folder, embedder, normalise=normalise)
    texts = read_equally(alone, folder, texts)
    line = compared_vectors(folder, embedder, texts, normalise=normalise)
    return replace(exported, checked=(*exported.checked, line))


def _onnx(opened: OpenRun, folder: Path, texts: Sequence[Text]) -> Exported:
    """Write the format of onnxruntime."""
    notes, checked = write_onnx(opened, folder)
    return Exported("", notes, checked)


def adapter_form(opened: OpenRun, folder: Path, texts: Sequence[Text], *, base: str | None, named: str) -> Exported:
    """Write the format of peft; see ``write_adapter``."""
    notes = read_as_published(opened)
    written = write_adapter(opened, folder, base=base, named=named)
    texts = read_equally(opened, folder, texts)
    checked = [written.checked]
    version = installed_version()
    absent = [message for package in ("transformers", "peft") if (message := missing(package))]
    if absent:
        checked.append(f"not compared with peft: {absent[0]}, then export again")
    else:
        theirs = TransformersModel(
            written.base,
            architecture=written.architecture,
            max_length=opened.encoder.max_length,
            adapter=Adapter(folder, written.num_labels),
        )
        what = f"verified with peft {installed_version('peft')} on {written.architecture}"
        checked.append(_compared(what, _ours(opened), theirs, texts))
    return Exported(written.architecture, (*notes, *written.notes), tuple(checked), version)


#: The function that writes each format, by the name of the format: the run, the folder, texts to compare; and for
#: sentence_transformers the keywords ``pooling`` and ``normalise``.
FORMS: dict[str, Callable[..., Exported]] = {
    "auto": _transformers_or_tensors,
    "transformers": _transformers,
    "sentence_transformers": _sentence_transformers,
    "tensors": _tensors,
    "onnx": _onnx,
}


def _ours(opened: OpenRun) -> OurModel:
    return OurModel(opened.learner, opened.saved.tokenizer)


def _compared(what: str, ours: Speaker, theirs: Speaker, texts: Sequence[Text]) -> str:
    """Compare two forms of the model and describe the result in one line.

    Raises:
        CheckpointError: token ids or logits differ, or there was nothing to compare.
    """
    found = compare(ours, theirs, texts)
    if found.other_ids is not None:
        raise CheckpointError(f"{what}: the token ids of {found.other_ids[:60]!r} differ; nothing was exported")
    if not found.differences:
        raise CheckpointError(f"{what}: there was nothing to compare; nothing was exported")
    if found.other_heads and isinstance(theirs, TransformersModel):
        found.rounding = theirs.rounding(texts)
    for head in found.other_heads:
        raise CheckpointError(
            f"{what}: {head} differs by {found.differences[head]:.1e}, but rounding explains at most "
            f"{found.allowed(head):.0e}; nothing was exported"
        )
    largest = max(found.differences.values())
    shown = f"{largest:.0e}" if largest else "0"
    return f"{what}: {found.num_texts} texts, largest difference {shown} ({', '.join(found.differences)})"


def fitting_texts(opened: OpenRun, texts: Sequence[Text]) -> list[Text]:
    """Return all single texts, and the pairs that fit without truncation, because tokenizers cut pairs differently."""
    ours = _ours(opened)
    pairs = [text for text in texts if text[1] is not None]
    lengths = ours.encode(pairs).lengths if ours.max_length > 4 else [ours.max_length] * len(pairs)
    whole = [pair for pair, length in zip(pairs, lengths, strict=True) if length < ours.max_length]
    return [*(text for text in texts if text[1] is None), *whole]
