"""A folder with the model of a run: its files in the chosen format, and its card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmtransfer.exporting.card.content import card_of
from lmtransfer.exporting.card.page import write_card
from lmtransfer.exporting.card.settings import CardSettings
from lmtransfer.exporting.forms import ADAPTER, FORMS, Exported, adapter_form, fitting_texts
from lmtransfer.exporting.logits import Text
from lmtransfer.exporting.place import export_folder
from lmtransfer.exporting.run import OpenRun, open_run
from lmtransfer.exporting.texts import texts_of
from lmtransfer.runs.saved import CheckpointName
from lmtransfer.system.printable import short_path

#: The format that holds how texts become vectors.
VECTORS = "sentence_transformers"
#: The library that loads a format, for formats of one library.
_LIBRARIES = {"onnx": "onnx", ADAPTER: "peft", VECTORS: "sentence-transformers"}


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
