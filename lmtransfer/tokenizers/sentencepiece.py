"""Text to ids with a vocabulary trained by sentencepiece (unigram or BPE).

Kudo and Richardson, "SentencePiece: A simple and language independent subword tokenizer and detokenizer for Neural
Text Processing", EMNLP 2018. Ids 0 to 3 are ``[UNK]``, ``[CLS]``, ``[SEP]`` and ``[MASK]``. The last three are
control symbols, which no text can spell: ``"[MASK]"`` in a document is five or so ordinary pieces.

A word is what stands between white space: it starts at a piece with the meta symbol (U+2581), and a meta symbol that
is a piece of its own starts the word that follows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import sentencepiece

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.base import Encoding
from lmtransfer.tokenizers.saved import SPECIALS, padded_size, read_model, write_model

KIND: Final = "sentencepiece"
META: Final = "\u2581"
MODEL_FILE: Final = "spm.model"

_VERSION = 1  # raise it when the same spm.model would give other ids or word starts
_SURROGATES = re.compile("[\ud800-\udfff]")


class SentencePieceTokenizer:
    """A sentencepiece model as a ``Tokenizer``.

    Args:
        model: the serialised sentencepiece model (the bytes of ``spm.model``).
        training: what it was trained on, for people: counts and settings; no part of the fingerprint.

    Raises:
        CheckpointError: ``model`` is no sentencepiece model, or its first pieces are not the four specials.
    """

    unk_id, cls_id, sep_id, mask_id = range(len(SPECIALS))

    def __init__(self, model: bytes, training: Mapping[str, Any] | None = None) -> None:
        self._model = model
        self.training: dict[str, Any] = dict(training or {})
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise CheckpointError(f"not a sentencepiece model ({error}); train or copy the tokenizer again") from None
        processor = self._processor
        self.num_pieces: int = processor.get_piece_size()
        first = tuple(processor.id_to_piece(i) for i in range(min(len(SPECIALS), self.num_pieces)))
        if first != SPECIALS:
            raise CheckpointError(
                f"the sentencepiece model begins with the pieces {', '.join(first)}; "
                f"lmtransfer needs {', '.join(SPECIALS)} as ids 0 to 3: train one with `lmtransfer prepare`"
            )
        self.vocab_size = padded_size(self.num_pieces)
        self.is_special = np.ones(self.vocab_size, dtype=bool)
        self.is_special[len(SPECIALS) : self.num_pieces] = False
        self.starts_word = np.zeros(self.vocab_size, dtype=bool)
        # [UNK] stands for a stretch of unknown characters, before which the meta symbol is a piece of its own.
        self.starts_word[[self.cls_id, self.sep_id, self.mask_id]] = True
        for i in range(len(SPECIALS), self.num_pieces):
            self.starts_word[i] = processor.id_to_piece(i).startswith(META)
        self.fingerprint: str = sha256(b"%s %d " % (KIND.encode(), _VERSION) + model).hexdigest()
        self._blank: dict[str, bool] = {}

    def __reduce__(self) -> tuple[type[SentencePieceTokenizer], tuple[bytes, dict[str, Any]]]:
        return type(self), (self._model, self.training)

    @classmethod
    def load(cls, folder: Path) -> SentencePieceTokenizer:
        """Read what ``save`` wrote.

        Raises:
            CheckpointError: a file is missing or unreadable, or ``spm.model`` does not have the recorded checksum.
        """
        model, description = read_model(folder, MODEL_FILE)
        return cls(model, description.get("training"))

    def save(self, folder: Path) -> None:
        """Write ``spm.model`` and ``tokenizer.json`` into ``folder`` (made if missing)."""
        description = {
            "kind": KIND,
            "fingerprint": self.fingerprint,
            "num_pieces": self.num_pieces,
            "vocab_size": self.vocab_size,
            "training": self.training,
        }
        write_model(folder, MODEL_FILE, self._model, description)

    def encode(self, text: str) -> Encoding:
        """One text, with offsets.

        What normalisation turns into white space or drops (no-break and zero-width spaces, control characters) counts
        as white space: spans neither begin nor end with it. A meta symbol that is a piece of its own has an empty
        span; of the bytes of a character (``byte_fallback``), the last one has its span.
        """
        mapping = self._processor.encode(_without_surrogates(text), return_type="offset_mapping")
        spans = []
        for start, end in mapping["offsets"]:
            while start < end and self._is_blank(text[start]):
                start += 1
            while start < end and self._is_blank(text[end - 1]):
                end -= 1
            spans.append((start, end))
        ids = np.array(mapping["ids"], dtype=np.int32)
        word_starts = self.starts_word[ids]
        word_starts[:1] = True
        return Encoding(ids, np.array(spans, dtype=np.int32).reshape(-1, 2), word_starts)

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Many texts, ids only (int32); one thread, since corpora are prepared by several processes."""
        clean = [_without_surrogates(text) for text in texts]
        return self._processor.encode(clean, return_type="numpy", num_threads=1)

    def decode(self, ids: Sequence[int]) -> str:
        """Text for ids, normalised as the tokenizer does it; specials are written in brackets."""
        parts: list[str] = []
        run: list[int] = []
        for token_id in [*map(int, ids), self.cls_id]:  # a special at the end closes the last run
            if token_id == self.unk_id or not self._is_bracketed(token_id):
                run.append(token_id)
                continue
            if run:
                parts.append(self._processor.decode(run))
                run = []
            parts.append(self.piece(token_id))
        return " ".join(parts[:-1])

    def piece(self, token_id: int) -> str:
        """The piece of one id, as people read it; ``[unused9]`` for padding of the vocabulary.

        Raises:
            ValueError: ``token_id`` is not in the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token id {token_id} is outside a vocabulary of {self.vocab_size}")
        return self._processor.id_to_piece(int(token_id)) if token_id < self.num_pieces else f"[unused{token_id}]"

    def _is_bracketed(self, token_id: int) -> bool:
        return not len(SPECIALS) <= token_id < self.num_pieces

    def _is_blank(self, character: str) -> bool:
        blank = self._blank.get(character)
        if blank is None:
            plain = _without_surrogates(character)
            blank = plain.isspace() or not self._processor.normalize(plain).strip(META + " ")
            self._blank[character] = blank
        return blank


def _without_surrogates(text: str) -> str:
    # Lone surrogates have no UTF-8 form; one character for one keeps the offsets.
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)
