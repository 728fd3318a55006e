"""What is said of a published model once it is imported."""

from __future__ import annotations

from pathlib import Path

from lmtransfer.importing.importing import Imported
from lmtransfer.system.printable import short_path
from lmtransfer.tokenizers.extended import ExtendedTokenizer


def imported_lines(imported: Imported) -> list[str]:
    """What came, how large it is, and a line for each note."""
    encoder, tokenizer = imported.encoder, imported.tokenizer
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    heads = f"with the heads of {' + '.join(imported.losses)}" if imported.losses else "without heads of pretraining"
    added = f", {len(tokenizer.words)} of them added" if isinstance(tokenizer, ExtendedTokenizer) else ""
    return [
        f"imported {type(encoder).__name__} ({parameters / 1e6:.1f}M parameters, {encoder.num_layers} layers of width "
        f"{encoder.dim}) from {imported.folder.source}, {heads}",
        f"vocabulary: {tokenizer.num_pieces:,} tokens{added}; max_length: {encoder.max_length}",
        *(f"note: {note}" for note in imported.notes),
    ]


def next_lines(path: Path, imported: Imported) -> list[str]:
    """Where the run lies, and what to do with it."""
    run = short_path(path)
    lines = [
        f"run: {path}",
        f"\nnext, does it help?  lmtransfer finetune init={run} task=python_docs task.num_train=100 seeds=5 "
        f"control=true",
    ]
    if "mlm" in imported.losses:
        lines.append(f'                     lmtransfer predict run={run} text="The ice cream was [MASK] ."')
    lines.append(
        f"go on pretraining:   lmtransfer pretrain experiment=adapt init={run} corpus=text corpus.path=my/texts"
    )
    return lines
