"""Convert published sentencepiece files (``spiece.model``, ``sentencepiece.bpe.model``) to a ``tokenizer.json``.

No file says how a family cleans text before sentencepiece and how it numbers the pieces; only its published code does:
ALBERT's and XLNet's (tokenization.py of google-research/albert, prepro_utils.py of zihangdai/xlnet), and fairseq's for
XLM-R.

One difference remains: text that contains the name of a control piece becomes that piece if two of its characters are
missing from the vocabulary, which is not the case for any published vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tokenizers import normalizers

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.sentencepiece_library import library_tokenizer
from lmtransfer.interop.tokenizers.sentencepiece_model import Piece, SentencePieceModel, read_sentencepiece_model
from lmtransfer.system.safe_files import LARGEST_BYTES, read_bytes

#: How to save a tokenizer so that one file describes it completely.
AS_JSON: Final = "with `transformers` as tokenizer.json (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
#: The families, and whether they lower-case by default.
_LOWERCASES: Final = {"albert": True, "xlnet": False}


def sentencepiece_json(path: Path, *, family: str, settings: Mapping[str, Any]) -> bytes:
    """Make the ``tokenizer.json`` that gives the same tokens as the family's own tokenizer.

    Args:
        path: the sentencepiece model.
        family: albert, xlnet or xlm-roberta.
        settings: content of ``tokenizer_config.json``; ``do_lower_case`` and ``keep_accents`` are used.

    Raises:
        CheckpointError: the file is damaged.
    """
    content = read_bytes(path, error=CheckpointError, most=LARGEST_BYTES)
    model = read_sentencepiece_model(content, source=str(path))
    if family == "xlm-roberta":
        model = _numbered_as_fairseq(model, path)
    before = cleaning_of(family, settings)
    library = library_tokenizer(model, prefix="always")
    library.normalizer = normalizers.Sequence([*before, library.normalizer])
    return library.to_str().encode("utf-8", "replace")


def cleaning_of(family: str, settings: Mapping[str, Any]) -> list[normalizers.Normalizer]:
    """What a family does to a text before sentencepiece's own rules.

    ALBERT and XLNet replace doubled backticks or apostrophes by a double quote, drop accents unless they are kept, and
    lower-case if set.
    """
    if family not in _LOWERCASES:
        return []
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if settings.get("keep_accents") is not True:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    do_lower_case = settings.get("do_lower_case")
    if do_lower_case if isinstance(do_lower_case, bool) else _LOWERCASES[family]:
        steps.append(normalizers.Lowercase())
    return steps


def _numbered_as_fairseq(model: SentencePieceModel, path: Path) -> SentencePieceModel:
    """Number the pieces like fairseq: its four specials first, a mask last, without sentencepiece's three specials."""
    if [piece.text for piece in model.pieces[:3]] != ["<unk>", "<s>", "</s>"]:
        raise CheckpointError(f"{path}: must begin with the pieces <unk>, <s>, </s>, as XLM-R's does; copy it again")
    first = [Piece(text, 0.0, "control") for text in ("<s>", "<pad>", "</s>")]
    pieces = (*first, Piece("<unk>", 0.0, "unknown"), *model.pieces[3:], Piece("<mask>", 0.0, "control"))
    return replace(model, pieces=pieces, unk_id=len(first))
