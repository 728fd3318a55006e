"""Examples as token ids in flat arrays, with their targets.

Shape legend: N examples, S sequences (several if an example is cut into windows), T tokens of all sequences, R rows of
targets, K columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmtransfer.errors import ConfigError
from lmtransfer.tasks.heads import Targets
from lmtransfer.tokenizers.base import CharacterTokenizer, Tokenizer
from lmtransfer.tokenizers.words import character_ids


def text_capacity(num_specials: int, *, max_length: int) -> int:
    """Return how many text tokens fit in an input of ``max_length`` tokens."""
    if max_length <= num_specials:
        raise ConfigError(
            f"task.max_length={max_length} leaves no room for text beside the {num_specials} special tokens; set "
            f"{num_specials + 1} or more, or null for the encoder's maximum (its model.max_length)"
        )
    return max_length - num_specials


@dataclass(frozen=True, slots=True)
class CharacterTable:
    """The spelling of the examples' words, including words outside the vocabulary; four bytes per token."""

    table: np.ndarray  # character ids, int16, shape (W, 50): the vocabulary's words first, then each other word once
    rows_T: np.ndarray  # row of each token in the table, int32


class TokenRows:
    """Maps the tokens of examples to rows of a table of spellings, which gains a row per word outside the vocabulary.

    A token's row is its id, except that an [UNK] token of a whole-word tokenizer has the row of its word.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer if isinstance(tokenizer, CharacterTokenizer) else None
        self._added: dict[str, int] = {}

    def rows(self, ids: np.ndarray, text: str) -> np.ndarray:
        """Return the row of each token, int32; ``ids`` are the first tokens of ``text``."""
        if self._tokenizer is None or not (ids == self._tokenizer.unk_id).any():
            return ids
        num_unknown = int((ids == self._tokenizer.unk_id).sum())
        return self.rows_of(ids, self._tokenizer.unknown_words(text)[:num_unknown])

    def rows_of(self, ids: np.ndarray, unknown: Sequence[str]) -> np.ndarray:
        """Return the row of each token, int32, given the words of the [UNK] tokens in order."""
        assert self._tokenizer is not None
        rows = ids.astype(np.int32)
        size, added = self._tokenizer.vocab_size, self._added
        rows[ids == self._tokenizer.unk_id] = [added.setdefault(word, size + len(added)) for word in unknown]
        return rows

    def join(self, pieces: Iterable[np.ndarray]) -> tuple[np.ndarray, CharacterTable | None]:
        """Concatenate pieces of rows, and return their token ids and spellings, or None if there are no spellings."""
        rows_T = np.concatenate([np.zeros(0, np.int32), *pieces]).astype(np.int32, copy=False)
        if self._tokenizer is None:
            return rows_T, None
        tokens_T = np.where(rows_T < self._tokenizer.vocab_size, rows_T, np.int32(self._tokenizer.unk_id))
        table = np.concatenate([self._tokenizer.characters, character_ids(list(self._added))])
        return tokens_T, CharacterTable(table, rows_T)


@dataclass(frozen=True, slots=True)
class EncodedExamples:
    """Examples ready to be packed; five bytes per token, or nine if the words have spellings.

    Attributes:
        owners: index of each sequence's example, ascending, int64, shape (S,).
        offsets: sequence s is ``tokens_T[offsets[s]:offsets[s + 1]]``, int64, shape (S + 1,).
        target_offsets: target rows of sequence s: ``target_offsets[s]`` to ``target_offsets[s + 1]``, int64, (S + 1,).
        num_truncated: number of examples truncated to ``max_length``.
        first_lengths: number of tokens in the first text of each pair, int64, shape (S,); None if the examples are
            single texts.
        character_table: the spellings of the tokens, if the tokenizer spells words.
        unreachable_ids: ids of the examples whose gold answer cannot be represented exactly by these tokens.
    """

    examples: tuple[Any, ...]
    owners: np.ndarray
    tokens_T: np.ndarray
    segments_T: np.ndarray
    offsets: np.ndarray
    targets: Targets[np.ndarray]
    target_offsets: np.ndarray
    num_truncated: int
    first_lengths: np.ndarray | None = None
    character_table: CharacterTable | None = None
    unreachable_ids: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return S."""
        return len(self.owners)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens in each sequence, including special tokens, int64, shape (S,)."""
        return np.diff(self.offsets)

    def sequences_of(self, examples: np.ndarray) -> np.ndarray:
        """Return the indices of all sequences of these examples, concatenated, int64."""
        return ragged_places(np.searchsorted(self.owners, np.arange(len(self.examples) + 1)), examples)

    def target_rows(self, sequences: np.ndarray) -> np.ndarray:
        """Return the indices of all target rows of these sequences, concatenated, int64."""
        return ragged_places(self.target_offsets, sequences)

    def targets_of(self, sequences: np.ndarray) -> Targets[np.ndarray]:
        """Return the targets of these sequences, in the given order."""
        rows = self.target_rows(sequences)
        targets: Targets[np.ndarray] = self.targets.map(lambda values: values[rows])
        return targets

    def select(self, examples: np.ndarray) -> EncodedExamples:
        """Return the examples at these indices, in the given order (``num_truncated`` still counts all examples)."""
        sequences = self.sequences_of(examples)
        where = ragged_places(self.offsets, sequences)
        per_example = np.bincount(self.owners, minlength=len(self.examples))[examples]
        selection = tuple(self.examples[i] for i in examples)
        ids = {example.id for example in selection} if self.unreachable_ids else set()
        return EncodedExamples(
            examples=selection,
            owners=np.repeat(np.arange(len(examples)), per_example),
            tokens_T=self.tokens_T[where],
            segments_T=self.segments_T[where],
            offsets=ragged_offsets(self.lengths[sequences]),
            targets=self.targets_of(sequences),
            target_offsets=ragged_offsets(np.diff(self.target_offsets)[sequences]),
            num_truncated=self.num_truncated,
            first_lengths=None if self.first_lengths is None else self.first_lengths[sequences],
            character_table=None
            if self.character_table is None
            else CharacterTable(self.character_table.table, self.character_table.rows_T[where]),
            unreachable_ids=tuple(name for name in self.unreachable_ids if name in ids),
        )


def ragged_offsets(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    """Return the start of each piece when the pieces are concatenated, and then the total length, int64."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def ragged_places(offsets: np.ndarray, pieces: np.ndarray) -> np.ndarray:
    """Return the indices of all elements of some pieces, concatenated, int64 (``offsets``: see ``ragged_offsets``)."""
    lengths = np.diff(offsets)[pieces]
    new_offsets = ragged_offsets(lengths)
    return np.repeat(offsets[pieces] - new_offsets[:-1], lengths) + np.arange(new_offsets[-1])
