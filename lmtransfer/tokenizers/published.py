"""Text to ids with the tokenizers of published checkpoints, by the ``tokenizers`` library.

It supports WordPiece (a piece inside a word is written ``##ing``), WordLevel, byte-level BPE (GPT-2, RoBERTa) and BPE
or Unigram with Metaspace (ALBERT, XLNet, XLM-R). All ids, also of the special tokens, are those of the published file.
Text never encodes to a special token.

A byte-level vocabulary may have different ids for the first word of a text and the same word after a space. Text is
encoded without changes, so that predictions are those of the published model. A text that continues another text begins
with a space.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.base import Encoding, Tokenizer
from lmtransfer.tokenizers.byte_bpe import META, readable
from lmtransfer.tokenizers.published_model import MAX_PIECES, read_published_model
from lmtransfer.tokenizers.saved import read_model
from lmtransfer.tokenizers.spans import covering_spans, trimmed_spans, without_surrogates

ROLES: Final = ("cls", "sep", "mask", "unk", "pad")

_VERSION = 1  # increase it when the same file would give other ids or word starts
_RESERVED = re.compile(r"\[(?:PAD|UNK|CLS|SEP|MASK|unused\d+)\]|<unused\d+>|<extra_id_\d+>|madeupword\d+")


class PublishedTokenizer(Tokenizer):
    """A tokenizer of the ``tokenizers`` library as a ``Tokenizer``.

    ``pad_id`` is None if the vocabulary has no pad token. ``missing_roles`` has the roles among cls, sep, mask and unk
    without a separate token. These roles share the token of another role: GPT-2 has only ``<|endoftext|>``
    for all four.

    Args:
        model: the bytes of a ``tokenizer.json``.
        specials: the token of each role that has one: "cls", "sep", "mask", "unk", "pad". Roles may share a token.
        vocab_size: rows of the embedding; None: the number of ids. It is not rounded up, so that exported tensors have
            the published shapes.
        training: information on its origin; not part of the fingerprint.

    Raises:
        CheckpointError: ``model`` cannot be read, lacks a token of ``specials``, or has more ids than ``vocab_size``.
    """

    kind = "published"
    model_file = "published.json"

    def __init__(
        self,
        model: bytes,
        *,
        specials: Mapping[str, str],
        vocab_size: int | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.training = model, dict(training or {})
        # Otherwise the library starts a thread for each core in each of the worker processes that prepare corpora.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.specials = _checked(specials)
        read = read_published_model(model, self.specials.values())
        if "unk" not in self.specials and read.unk is not None:
            self.specials["unk"] = read.unk
        self._library, self._piece_kind = read.library, read.piece_kind
        normalizer = self._library.normalizer
        self.splits_chinese = normalizer is not None and normalizer.normalize_str("a\u6771a").count(" ") == 2
        self.num_pieces = max(read.pieces) + 1
        self.vocab_size = self.num_pieces if vocab_size is None else vocab_size
        if not self.num_pieces <= self.vocab_size <= MAX_PIECES:
            raise CheckpointError(
                f"the tokenizer has ids up to {self.num_pieces - 1}, but the model embeds {self.vocab_size} tokens: "
                "they do not belong together; copy both from one checkpoint"
            )
        self._set_roles({piece: token_id for token_id, piece in read.pieces.items()})
        self._pieces = [read.pieces.get(i, f"[unused{i}]") for i in range(self.num_pieces)]
        self._texts = [read.texts.get(i) for i in range(self.num_pieces)]
        self.is_special = np.ones(self.vocab_size, dtype=bool)
        self.starts_word = np.zeros(self.vocab_size, dtype=bool)
        for i, (piece, text) in enumerate(zip(self._pieces, self._texts, strict=True)):
            self.is_special[i] = text is None or _RESERVED.fullmatch(piece) is not None
            self.starts_word[i] = text is None or text[:1].isspace() or i in read.added
        if read.piece_kind == "meta" and "unk" in self.specials:
            # It replaces a sequence of unknown characters; U+2581 before it is a separate token.
            self.starts_word[self.unk_id] = False
        self._marks = self.starts_word & np.array(
            [text is not None and not text.strip() for text in self._texts]
            + [False] * (self.vocab_size - self.num_pieces)
        )
        described = b"%s %d %d %r " % (self.kind.encode(), _VERSION, self.vocab_size, sorted(self.specials.items()))
        self.fingerprint: str = sha256(described + model).hexdigest()
        self._normalises = read.strips
        self._blank: dict[str, bool] = {META: read.piece_kind == "meta"}

    def _set_roles(self, ids: Mapping[str, int]) -> None:
        absent = [f"{role} {token!r}" for role, token in self.specials.items() if token not in ids]
        if absent:
            raise CheckpointError(
                f"the tokenizer does not have these tokens: {', '.join(absent)}; copy all its files from one checkpoint"
            )
        own = {role: ids[token] for role, token in self.specials.items()}
        spare = next((own[role] for role in ("sep", "cls", "unk", "mask") if role in own), None)
        if spare is None:
            raise CheckpointError(
                "the tokenizer has no special token to put before and after a text: name such tokens in "
                "special_tokens_map.json (cls_token, sep_token, mask_token, unk_token)"
            )
        self.cls_id, self.sep_id = own.get("cls", spare), own.get("sep", spare)
        self.mask_id, self.unk_id = own.get("mask", spare), own.get("unk", spare)
        self.pad_id = own.get("pad")
        self.missing_roles = tuple(role for role in ROLES[:4] if role not in own)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.model, self.specials, self.vocab_size, self.training)

    @classmethod
    def load(cls, folder: Path) -> PublishedTokenizer:
        """Read what ``save`` wrote.

        Raises:
            CheckpointError: a file is missing or unreadable, or ``published.json`` does not have the recorded checksum.
        """
        model, description = read_model(folder, cls.model_file)
        specials, size = description.get("specials"), description.get("vocab_size")
        if not isinstance(specials, dict) or not isinstance(size, int):
            raise CheckpointError(f"{folder}: tokenizer.json has no specials or no vocab_size; copy it again")
        return cls(model, specials=specials, vocab_size=size, training=description.get("training"))

    def encode(self, text: str) -> Encoding:
        """Encode one text, with offsets; the first token always begins a word, whatever its id.

        If a character is several tokens, each token has the span of the whole character. Characters that normalisation
        drops or turns into white space count as white space, but an accent belongs to the token before it. A token that
        only marks the beginning of a word has an empty span there.
        """
        encoding = self._library.encode(without_surrogates(text), add_special_tokens=False)
        ids = np.array(encoding.ids, dtype=np.int32)
        spans: list[tuple[int, int]] = encoding.offsets
        if self._piece_kind in ("meta", "bytes"):
            is_mark = self._marks[ids].tolist()
            spans = [
                (start, start) if mark and start < end and not self._is_blank(text[start]) else (start, end)
                for (start, end), mark in zip(spans, is_mark, strict=True)
            ]
        trimmed = trimmed_spans(text, spans, is_blank=self._is_blank)
        word_starts = self.starts_word[ids]
        word_starts[:1] = True
        return Encoding(ids, covering_spans(text, trimmed, is_blank=self._is_blank), word_starts)

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode many texts, ids only (int32)."""
        clean = [without_surrogates(text) for text in texts]
        encodings = self._library.encode_batch_fast(clean, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens are written as in the vocabulary, invalid bytes as U+FFFD."""
        parts: list[str] = []
        run = bytearray()
        for token_id in map(int, ids):
            text = self._texts[token_id] if 0 <= token_id < self.num_pieces else None
            if text is not None:
                run += text
                continue
            if run:
                parts.append(run.decode(errors="replace").removeprefix(" "))
                run = bytearray()
            parts.append(self.piece(token_id))
        if run:
            parts.append(run.decode(errors="replace").removeprefix(" "))
        return " ".join(parts)

    def _piece(self, token_id: int) -> str:
        """The piece of the vocabulary; a byte-level piece is made readable."""
        text = self._texts[token_id]
        return self._pieces[token_id] if text is None or self._piece_kind != "bytes" else readable(text)

    def _described(self) -> dict[str, Any]:
        return {"specials": self.specials, **super()._described()}

    def model_bytes(self) -> bytes:  # noqa: D102
        return self.model

    @property
    def is_exact(self) -> bool:
        """Always True: the rows are those of the published embedding."""
        return True

    def _is_blank(self, character: str) -> bool:
        blank = self._blank.get(character)
        if blank is None:
            blank = character.isspace()
            if not blank and self._normalises and self._piece_kind == "meta":
                normalised = self._library.normalizer.normalize_str(without_surrogates(character))
                blank = not normalised.strip(META + " ")
            self._blank[character] = blank
        return blank


def _checked(specials: Mapping[str, str]) -> dict[str, str]:
    wrong = [f"{role}={token!r}" for role, token in specials.items() if role not in ROLES or not isinstance(token, str)]
    if wrong:
        raise CheckpointError(
            f"special tokens {', '.join(wrong)}: the roles must be among {', '.join(ROLES)}, each with a token"
        )
    return {role: specials[role] for role in ROLES if role in specials}


def _made(
    model: bytes, specials: Mapping[str, str], vocab_size: int, training: Mapping[str, Any]
) -> PublishedTokenizer:
    return PublishedTokenizer(model, specials=specials, vocab_size=vocab_size, training=training)
