"""A folder with the model of a run: its files in the chosen format, and its card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from lmtransfer.config.component import build
from lmtransfer.data.files import find_file
from lmtransfer.errors import LmtransferError
from lmtransfer.exporting.card import CardSettings, card_of, write_card
from lmtransfer.exporting.forms import ADAPTER, FORMS, Exported, adapter_form, fitting_texts
from lmtransfer.exporting.logits import Text
from lmtransfer.exporting.place import export_folder
from lmtransfer.exporting.run import OpenRun, open_run
from lmtransfer.runs.saved import CheckpointName
from lmtransfer.system.printable import short_path
from lmtransfer.transfer.experiment.trained import task_of

#: At most this many lines of the run's corpus or task, and at most this many characters of each.
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

#: The format that holds how texts become vectors.
VECTORS = "sentence_transformers"
#: The library that loads a format, for formats of one library.
_LIBRARIES = {"onnx": "onnx", ADAPTER: "peft", VECTORS: "sentence-transformers"}


def texts_of(run: OpenRun, *, data_root: str | None) -> list[Text]:
    """Return the built-in texts and pairs, and some texts of the run's data if it is on this machine.

    Args:
        run: the run.
        data_root: the data folder; None: the folder at the time of the run.
    """
    trusted = run.saved.trusted  # files that an untrusted run names are not read
    found = _own(run.saved.config, data_root or run.saved.data_root, run) if trusted else iter(())
    return [*((text, None) for text in SENTENCES), *PAIRS, *islice(found, OWN_LINES)]


def _own(config: Mapping[str, Any], data_root: str | None, run: OpenRun) -> Iterator[Text]:
    """Yield texts of the run's corpus or task from local files; missing files do not make the export fail."""
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
    known = {**node, "hub_dataset": None} if "hub_dataset" in node else node
    corpus = build(known, data_root=data_root, cache_dir=None)
    for document in corpus.documents():
        lines = [line for line in document.text.split("\n") if line.strip()]
        yield from (line[:OWN_CHARACTERS] for line in lines[:3])


def _of_task(node: Mapping[str, Any], data_root: str | None, run: OpenRun) -> Iterator[Text]:
    files = node.get("files")
    if not isinstance(files, Mapping):
        return
    folders = [*([Path(data_root)] if data_root else []), Path.cwd()]
    for split in sorted(files, key=lambda split: split != "dev"):  # training files are long
        given: Sequence[str] = [files[split]] if isinstance(files[split], str) else files[split] or []
        if any(find_file(folder / name) for folder in folders for name in given):
            task = task_of(run.saved, data_root=data_root)
            yield from (_shown(example.content, is_words=run.kind == "tagging") for example in task.examples(split))
            return


def _shown(content: Sequence[str], *, is_words: bool) -> Text:
    """The text or the two texts of an example."""
    first, *more = (" ".join(content),) if is_words else content
    return first[:OWN_CHARACTERS], more[0][:OWN_CHARACTERS] if more else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSettings:
    """The format of an export.

    Attributes:
        name: one of ``FORMS``, or ``ADAPTER``.
        base: of an adapter, the folder of the exported base; None: the base is written too.
        pooling: of ``VECTORS``, how the tokens of a text become a vector; None: as the run's head, or the mean.
        normalise: of ``VECTORS``, whether each vector is divided by its length.
        named: the export as others name it: a folder, or ``owner/name`` on the hub.
    """

    name: str
    base: str | None
    pooling: str | None
    normalise: bool
    named: str


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
    """Write the model of a run and check it against the run.

    Args:
        run: the run as the user gave it.
        folder: where to; made, or replaced with ``overwrite``.
        form: the format.
        checkpoint: which checkpoint; None: ``best`` if it exists, else ``last``.
        overwrite: whether an existing export may be replaced.
        data_root: folder with data, for texts to compare on.
        card: what the user says in the model card.

    Returns:
        Lines for the user: notes, comparisons, and what was exported.

    Raises:
        RunDirectoryError: there is no such run, or it has no model.
        CheckpointError: the format cannot hold the run's model, or the export does not reproduce the run.
        ConfigError: the folder holds other files, or cannot be written.
    """
    opened = open_run(run, checkpoint=checkpoint)
    texts = fitting_texts(opened, texts_of(opened, data_root=data_root))
    source = opened.saved.config.get("source")
    with export_folder(folder, overwrite=overwrite, source=Path(str(source)) if source else None) as staged:
        exported = _exported(opened, staged, texts, form)
        content = card_of(
            opened,
            library=_LIBRARIES.get(form.name) or ("transformers" if exported.architecture else "lmtransfer"),
            architecture=exported.architecture,
            notes=exported.notes,
            checked_with=exported.checked_with,
            settings=card,
        )
        (staged / "README.md").write_text(write_card(content), encoding="utf-8")
    what = exported.architecture or ("ONNX" if form.name == "onnx" else "tensors, described in layout.json")
    what = f"an adapter for {what}" if form.name == ADAPTER else what
    return [
        *(f"note: {note}" for note in exported.notes),
        *exported.checked,
        f"exported {short_path(opened.checkpoint)} as {what}",
    ]


def _exported(opened: OpenRun, folder: Path, texts: Sequence[Text], form: FormSettings) -> Exported:
    if form.name == ADAPTER:
        return adapter_form(opened, folder, texts, base=form.base, named=form.named)
    vectors = {"pooling": form.pooling, "normalise": form.normalise} if form.name == VECTORS else {}
    return FORMS[form.name](opened, folder, texts, **vectors)
