"""Compare a written tokenizer with the tokenizer of the run, text by text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import tokenizers

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.tokenizers.written_tokenizer import TOKENIZER_FILE
from lmtransfer.tokenizers.base import Tokenizer

_BLOCK = 256
_SINGLE_ROUNDING = 2.0**-24  # relative error of one float32 operation


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """A text for which two tokenizers give different ids.

    Attributes:
        line: the text.
        ours: the ids of our tokenizer, [CLS] and [SEP] included.
        written: the ids of the written files.
    """

    line: str
    ours: tuple[int, ...]
    written: tuple[int, ...]

    def __str__(self) -> str:
        place = next((i for i, (a, b) in enumerate(zip(self.ours, self.written, strict=False)) if a != b), None)
        place = min(len(self.ours), len(self.written)) if place is None else place
        around = slice(max(0, place - 2), place + 4)
        return (
            f"{self.line[:80]!r}: token {place} differs: the run's tokenizer gives {list(self.ours[around])}, "
            f"{TOKENIZER_FILE} gives {list(self.written[around])}"
        )


def tokens_differ(tokenizer: Tokenizer, folder: Path, lines: Iterable[str]) -> TokenDifference | None:
    """Return the first text whose ids from the files differ from ours, or None.

    Texts that contain a special token or have no UTF-8 form are skipped. For a unigram vocabulary, another split of
    the same text is not a difference if it is equally likely within float32 rounding.

    Args:
        tokenizer: the tokenizer that was written.
        folder: folder with the files from ``write_tokenizer``.
        lines: texts.

    Raises:
        CheckpointError: ``folder`` holds no such file.
    """
    path = Path(folder) / TOKENIZER_FILE
    try:
        text = path.read_text(encoding="utf-8")
        library, content = tokenizers.Tokenizer.from_str(text), json.loads(text)
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{path}: cannot be read ({error})") from None
    specials = [entry["content"] for entry in content["added_tokens"] if entry["special"]]
    model = content["model"]
    is_unigram = model["type"] == "Unigram"
    scores = [0.0 if piece in specials else score for piece, score in model["vocab"]] if is_unigram else []
    remaining = (line for line in lines if _is_comparable(line, specials))
    while block := list(islice(remaining, _BLOCK)):
        encodings = library.encode_batch(block)
        for line, ids, encoding in zip(block, tokenizer.encode_ids(block), encodings, strict=True):
            ours, theirs = (tokenizer.cls_id, *ids.tolist(), tokenizer.sep_id), tuple(encoding.ids)
            if ours != theirs and not (scores and _are_tied(library, scores, ours, theirs)):
                return TokenDifference(line, ours, theirs)
    return None


def _is_comparable(line: str, specials: Iterable[str]) -> bool:
    if any(special in line for special in specials):
        return False
    return line.isascii() or not any("\ud800" <= character <= "\udfff" for character in line)


def _are_tied(
    library: tokenizers.Tokenizer, scores: list[float], ours: tuple[int, ...], theirs: tuple[int, ...]
) -> bool:
    """Whether both stand for the same text, and their scores differ only by the rounding of partial sums."""
    joined_pieces, again = ("".join(library.id_to_token(i) or "" for i in ids) for ids in (ours, theirs))
    total, other = (sum(scores[i] for i in ids if i < len(scores)) for ids in (ours, theirs))
    return joined_pieces == again and abs(total - other) <= _SINGLE_ROUNDING * len(ours) * abs(total)
