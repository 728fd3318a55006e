"""A folder with the model of a run: its files in the chosen format, and its card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lmtransfer.export.card import CardSettings, card_of
from lmtransfer.export.forms import ADAPTER, FORMS, OF_VECTORS, adapter_form, fitting_texts
from lmtransfer.export.model_card import write_card
from lmtransfer.export.place import export_folder
from lmtransfer.export.run import open_run
from lmtransfer.export.texts import texts_of
from lmtransfer.runs.saved import CheckpointName
from lmtransfer.system.printable import short_path

#: The library that loads a format, for formats of one library.
_LIBRARIES = {"onnx": "onnx", ADAPTER: "peft", OF_VECTORS: "sentence-transformers"}


def write_model(
    run: str,
    folder: Path,
    *,
    form: str,
    checkpoint: CheckpointName | None,
    overwrite: bool,
    data_root: str | None,
    card: CardSettings,
    base: str | None = None,
    pooling: str | None = None,
    normalise: bool = False,
) -> list[str]:
    """Write the model of a run and check it against the run.

    Args:
        run: the run as the user gave it.
        folder: where to; made, or replaced with ``overwrite``.
        form: one of ``FORMS``, or ``ADAPTER``.
        checkpoint: which checkpoint; None: ``best`` if it exists, else ``last``.
        overwrite: whether an existing export may be replaced.
        data_root: folder with data, for texts to compare on.
        card: what the user says in the model card.
        base: with an adapter: folder of the exported base; None: the base is written, too.
        pooling: with vectors: how tokens become one vector; None: as the head of the run.
        normalise: with vectors: whether their length is 1.

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
        if form == ADAPTER:
            exported = adapter_form(opened, staged, texts, base=base, named=str(folder))
            card = replace(card, base=base or f"{folder.name}/base")
        else:
            vectors = {"pooling": pooling, "normalise": normalise} if form == OF_VECTORS else {}
            exported = FORMS[form](opened, staged, texts, **vectors)
        content = card_of(
            opened,
            library=_LIBRARIES.get(form) or ("transformers" if exported.architecture else "lmtransfer"),
            architecture=exported.architecture,
            notes=exported.notes,
            checked_with=exported.checked_with,
            settings=card,
        )
        (staged / "README.md").write_text(write_card(content), encoding="utf-8")
    what = exported.architecture or ("ONNX" if form == "onnx" else "tensors, described in layout.json")
    what = f"an adapter for {what}" if form == ADAPTER else what
    return [
        *(f"note: {note}" for note in exported.notes),
        *exported.checked,
        f"exported {short_path(opened.checkpoint)} as {what}",
    ]
