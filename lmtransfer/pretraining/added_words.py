"""Words of the user's as tokens of their own: in the tokenizer, and as rows of the embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor, nn

from lmtransfer.interop.grown import grown, vocabulary_tensors
from lmtransfer.tokenizers.added_words import read_words
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.extended import ExtendedTokenizer


def with_words(tokenizer: Tokenizer, file: Path) -> tuple[Tokenizer, tuple[str, ...]]:
    """The tokenizer with the words of a file, one a line, each as one token; and what there is to say of them.

    Raises:
        DataError: the file cannot be read, or a line is no word.
        CheckpointError: the tokenizer can have no further words.
    """
    found = read_words(file, tokenizer)
    return ExtendedTokenizer(tokenizer, found.words), found.notes


def grown_weights(
    tensors: Mapping[str, Tensor], *, base: Tokenizer, tokenizer: Tokenizer, module_of: Callable[[int], nn.Module]
) -> dict[str, Tensor]:
    """The weights of a checkpoint, with rows for the words that the tokenizer has beyond that of the checkpoint.

    Args:
        tensors: by name.
        base: the checkpoint's tokenizer.
        tokenizer: the same, or with words added.
        module_of: makes the module, with those names, for a vocabulary of so many rows.

    Raises:
        CheckpointError: the model depends on the vocabulary in another way than by a row a token.
    """
    if tokenizer.fingerprint == base.fingerprint:
        return dict(tensors)
    assert isinstance(tokenizer, ExtendedTokenizer), "made by with_words"
    return grown(tensors, vocabulary_tensors(module_of), base=base, extended=tokenizer)
