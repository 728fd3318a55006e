"""Published sentencepiece files (``spiece.model``, ``sentencepiece.bpe.model``) as a ``tokenizer.json``.

What a family does to text before, and how it numbers the pieces, is in no file but in its published code: ALBERT's and
XLNet's (tokenization.py of google-research/albert, prepro_utils.py of zihangdai/xlnet), and fairseq's for XLM-R.

Where we differ: text that spells a control piece becomes it where two of its characters are unknown to the vocabulary,
which no published one's are.
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

#: The files, the first that is there.
FILES: Final = ("spiece.model", "sentencepiece.bpe.model")
#: How a tokenizer whose files do not say everything is saved so that they do.
AS_JSON: Final = "with `transformers` as tokenizer.json (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
#: ``model_type`` of config.json, and whether the family lower-cases where the folder does not say.
_CLEANED: Final = {"albert": True, "xlnet": False}
_FAIRSEQ: Final = ("xlm-roberta",)


def sentencepiece_json(path: Path, *, model_type: str, settings: Mapping[str, Any]) -> bytes:
    """The ``tokenizer.json`` that computes like the family's own tokenizer.

    Args:
        path: the sentencepiece model.
        model_type: of config.json.
        settings: of ``tokenizer_config.json``: ``do_lower_case``, ``keep_accents``.

    Raises:
        CheckpointError: the file is torn, or of a family whose treatment of text is not known here.
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
            f"{path}: what model_type={model_type or 'none'} does to text before is not in this file, and known here "
            f"for {known} only: save the tokenizer {AS_JSON}"
        )
    library = library_tokenizer(model, prefix="always")
    library.normalizer = normalizers.Sequence([*before, library.normalizer])
    return library.to_str().encode("utf-8", "replace")


def _cleaning(settings: Mapping[str, Any], *, lowercase: bool) -> list[normalizers.Normalizer]:
    """Double quotes are one character; accents are dropped unless kept; the case is folded if so set."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if settings.get("keep_accents") is not True:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    said = settings.get("do_lower_case")
    if said if isinstance(said, bool) else lowercase:
        steps.append(normalizers.Lowercase())
    return steps


def _numbered_as_fairseq(model: SentencePieceModel, path: Path) -> SentencePieceModel:
    """Four specials of a dictionary of its own come first, a mask comes last; sentencepiece's three are left out."""
    if [piece.text for piece in model.pieces[:3]] != ["<unk>", "<s>", "</s>"]:
        raise CheckpointError(f"{path}: must begin with the pieces <unk>, <s>, </s>, as XLM-R's does; copy it again")
    first = [Piece(text, 0.0, "control") for text in ("<s>", "<pad>", "</s>")]
    pieces = (*first, Piece("<unk>", 0.0, "unknown"), *model.pieces[3:], Piece("<mask>", 0.0, "control"))
    return replace(model, pieces=pieces, unk_id=len(first))
