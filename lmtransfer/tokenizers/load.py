"""Load a tokenizer from a folder, whatever its kind."""

from __future__ import annotations

from pathlib import Path

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.sentencepiece import DESCRIPTION_FILE, KIND, SentencePieceTokenizer, read_description


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer saved in ``folder`` (such as ``tokenizer/`` in a run directory).

    Raises:
        CheckpointError: ``folder`` holds no tokenizer, a torn one, or one of a kind that this version cannot read.
    """
    kind = read_description(folder).get("kind")
    if kind == KIND:
        return SentencePieceTokenizer.load(folder)
    raise CheckpointError(f"{Path(folder) / DESCRIPTION_FILE}: kind is {kind!r}; this version can read '{KIND}'")
