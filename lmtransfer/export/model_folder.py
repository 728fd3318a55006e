"""A folder with the model of a run: its files in the chosen format, and its card."""

from __future__ import annotations

from pathlib import Path

from lmtransfer.export.card import CardSettings, card_of
from lmtransfer.export.forms import FORMS, fitting_texts
from lmtransfer.export.model_card import write_card
from lmtransfer.export.place import export_folder
from lmtransfer.export.run import open_run
from lmtransfer.export.texts import texts_of
from lmtransfer.runs.saved import CheckpointName
from lmtransfer.system.printable import short_path


def write_model(
    run: str,
    folder: Path,
    *,
    form: str,
    checkpoint: CheckpointName | None,
    overwrite: bool,
    data_root: str | None,
    card: CardSettings,
) -> list[str]:
    """Write the model of a run and check it against the run.

    Args:
        run: the run as the user gave it.
        folder: where to; made, or replaced with ``overwrite``.
        form: one of ``FORMS``.
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
        exported = FORMS[form](opened, staged, texts)
        content = card_of(
            opened,
            library="onnx" if form == "onnx" else "transformers" if exported.architecture else "lmtransfer",
            architecture=exported.architecture,
            notes=exported.notes,
            checked_with=exported.checked_with,
            settings=card,
        )
        (staged / "README.md").write_text(write_card(content), encoding="utf-8")
    what = exported.architecture or ("ONNX" if form == "onnx" else "tensors, described in layout.json")
    return [
        *(f"note: {note}" for note in exported.notes),
        *exported.checked,
        f"exported {short_path(opened.checkpoint)} as {what}",
    ]
