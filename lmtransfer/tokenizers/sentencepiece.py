"""A tokenizer with a vocabulary trained by sentencepiece (unigram or BPE).

Kudo and Richardson, "SentencePiece: A simple and language independent subword tokenizer and detokenizer for Neural
Text Processing", EMNLP 2018. Ids 0 to 3 are ``[UNK]``, ``[CLS]``, ``[SEP]`` and ``[MASK]``. The last three are
control symbols; text is never encoded as them: ``"[MASK]"`` in a document becomes about five ordinary pieces.

Words are separated by white space. A word starts at a piece with the meta symbol (U+2581). If the meta symbol is a
separate piece, that piece starts the word after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import sentencepiece
from typing_extensions import override

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.base import (
    SPECIALS,
    Encoding,
    Tokenizer,
    padded_size,
    read_model,
    replace_surrogates,
    special_flags,
    trim_spans,
)
from lmtransfer.tokenizers.charsmap import read_sentencepiece

META: Final = "\u2581"

_VERSION = 1  # increase it when the same spm.model would give other ids or word starts


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer that runs a sentencepiece model."""

    kind = "sentencepiece"
    model_file = "spm.model"

    def __init__(self, model: bytes, training: Mapping[str, Any] | None = None) -> None:
        self._model = model
        self.training: dict[str, Any] = dict(training or {})
        try:
            read_sentencepiece(model)
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except Exception as error:  # the libraries raise errors of several classes
            raise CheckpointError(
                f"the sentencepiece model is damaged ({error}); copy the tokenizer again, or train a new one"
            ) from None
        processor = self._processor
        self.num_pieces: int = processor.get_piece_size()
        first = tuple(processor.id_to_piece(i) for i in range(min(len(SPECIALS), self.num_pieces)))
        if first != SPECIALS:
            raise CheckpointError(
                f"the sentencepiece model begins with the pieces {', '.join(first)}, but lmtransfer needs "
                f"{', '.join(SPECIALS)} as ids 0 to 3: train a vocabulary with `lmtransfer prepare`"
            )
        self.vocab_size = padded_size(self.num_pieces)
        self.is_special = special_flags(self.num_pieces, self.vocab_size)
        self.starts_word = np.zeros(self.vocab_size, dtype=bool)
        # [UNK] replaces a sequence of unknown characters; the meta symbol before it is a separate piece.
        self.starts_word[[self.cls_id, self.sep_id, self.mask_id]] = True
        for i in range(len(SPECIALS), self.num_pieces):
            self.starts_word[i] = processor.id_to_piece(i).startswith(META)
        self.fingerprint: str = sha256(b"%s %d " % (self.kind.encode(), _VERSION) + model).hexdigest()
        self._blank: dict[str, bool] = {}

    def __reduce__(self) -> tuple[type[SentencePieceTokenizer], tuple[bytes, dict[str, Any]]]:
        return type(self), (self._model, self.training)

    @classmethod
    def load(cls, folder: Path) -> SentencePieceTokenizer:
        """Load a tokenizer written by ``save``."""
        model, description = read_model(folder, cls.model_file)
        return cls(model, description.get("training"))

    def encode(self, text: str) -> Encoding:
        """Encode one text, with offsets.

        Characters that normalization drops or turns into white space (no-break and zero-width spaces, control
        characters) count as white space: spans never begin or end with them. A meta symbol that is a separate piece has
        an empty span. If a character is split into several byte pieces (``byte_fallback``), the last of these pieces
        has the character's span.
        """
        mapping = self._processor.encode(replace_surrogates(text), return_type="offset_mapping")
        spans = trim_spans(text, mapping["offsets"], is_blank=self._is_blank)
        ids = np.array(mapping["ids"], dtype=np.int32)
        word_starts = self.starts_word[ids]
        word_starts[:1] = True
        return Encoding(ids, spans, word_starts)

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode many texts, ids only (int32), in one thread, because several processes prepare corpora."""
        clean = [replace_surrogates(text) for text in texts]
        return self._processor.encode(clean, return_type="numpy", num_threads=1)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to normalized text; special tokens are written in brackets."""
        return self._decode_runs(
            ids,
            is_text=lambda i: i == self.unk_id or len(SPECIALS) <= i < self.num_pieces,
            decode=self._processor.decode,
        )

    @override
    def _piece(self, token_id: int) -> str:
        return self._processor.id_to_piece(token_id)

    @property
    @override
    def unknown_advice(self) -> str:
        return "increase tokenizer.character_coverage, or set tokenizer.byte_fallback=true"

    @override
    def model_bytes(self) -> bytes:
        return self._model

    def _is_blank(self, character: str) -> bool:
        blank = self._blank.get(character)
        if blank is None:
            plain = replace_surrogates(character)
            blank = plain.isspace() or not self._processor.normalize(plain).strip(META + " ")
            self._blank[character] = blank
        return blank
