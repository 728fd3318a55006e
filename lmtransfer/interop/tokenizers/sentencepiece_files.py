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
from lmtransfer.untrusted.files import LARGEST_BYTES, read_bytes

#: Names of the files; the first one that exists is read.
FILES: Final = ("spiece.model", "sentencepiece.bpe.model")
#: How to save a tokenizer so that one file describes it completely.
AS_JSON: Final = "with `transformers` as tokenizer.json (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
#: ``model_type`` of config.json, and whether the family lower-cases by default.
_CLEANED: Final = {"albert": True, "xlnet": False}
_FAIRSEQ: Final = ("xlm-roberta",)


def sentencepiece_json(path: Path, *, model_type: str, settings: Mapping[str, Any]) -> bytes:
    """Make the ``tokenizer.json`` that gives the same tokens as the family's own tokenizer.

    Args:
        path: the sentencepiece model.
        model_type: ``model_type`` of config.json.
        settings: content of ``tokenizer_config.json``; ``do_lower_case`` and ``keep_accents`` are used.

    Raises:
        CheckpointError: the file is damaged, or the text cleaning of its family is not known here.
    """
    content = read_bytes(path, error=CheckpointError, most=LARGEST_BYTES)
    model = read_sentencepiece_model(content, source=str(path))
    before: list[normalizers.Normalizer] = []
    if model_type in _CLEANED:
        before = _cleaning(settings, lowercase=_CLEANED[model_type])
    elif model_type in _FAIRSEQ:
        model = _numbered_as_fairseq(model, path)
    else:
        known = ", ".join([*_CLEANED, *_FAIRSEQ])
        raise CheckpointError(
            f"{path}: this file does not describe how model_type={model_type or 'none'} cleans text, and lmtransfer "
            f"knows this only for {known}: save the tokenizer {AS_JSON}"
        )
    library = library_tokenizer(model, prefix="always")
    library.normalizer = normalizers.Sequence([*before, library.normalizer])
    return library.to_str().encode("utf-8", "replace")


def _cleaning(settings: Mapping[str, Any], *, lowercase: bool) -> list[normalizers.Normalizer]:
    """Replace doubled backticks or apostrophes by a double quote, drop accents unless kept, lower-case if set."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if settings.get("keep_accents") is not True:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    do_lower_case = settings.get("do_lower_case")
    if do_lower_case if isinstance(do_lower_case, bool) else lowercase:
        steps.append(normalizers.Lowercase())
    return steps


def _numbered_as_fairseq(model: SentencePieceModel, path: Path) -> SentencePieceModel:
    """Number the pieces like fairseq: its four specials first, a mask last, without sentencepiece's three specials."""
    if [piece.text for piece in model.pieces[:3]] != ["<unk>", "<s>", "</s>"]:
        raise CheckpointError(f"{path}: must begin with the pieces <unk>, <s>, </s>, as XLM-R's does; copy it again")
    first = [Piece(text, 0.0, "control") for text in ("<s>", "<pad>", "</s>")]
    pieces = (*first, Piece("<unk>", 0.0, "unknown"), *model.pieces[3:], Piece("<mask>", 0.0, "control"))
    return replace(model, pieces=pieces, unk_id=len(first))
