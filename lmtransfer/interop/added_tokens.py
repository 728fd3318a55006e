"""Adds the user's words to a model: as single tokens to its tokenizer, and as rows to its embeddings.

Shape legend: V vocabulary size, E width of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lmtransfer.errors import CheckpointError
from lmtransfer.models.base import shapes_only
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.extended import ExtendedTokenizer, read_words


def add_words(tokenizer: Tokenizer, file: Path) -> tuple[Tokenizer, list[str]]:
    """Return a tokenizer with the words of a file, one per line, as additional tokens, and notes for the user."""
    words, notes = read_words(file, tokenizer)
    return ExtendedTokenizer(tokenizer, words), notes


def extend_weights(
    tensors: Mapping[str, Tensor], *, base: Tokenizer, tokenizer: Tokenizer, module_of: Callable[[int], nn.Module]
) -> dict[str, Tensor]:
    """Extend the weights of a checkpoint by rows for the words that were added to its tokenizer.

    Args:
        module_of: function that builds the checkpoint's module for a vocabulary size.
    """
    if tokenizer.fingerprint == base.fingerprint:
        return dict(tensors)
    assert isinstance(tokenizer, ExtendedTokenizer), "only add_words changes a tokenizer"
    names = vocabulary_tensors(module_of)
    return {name: extend_rows(tensor, base, tokenizer) if name in names else tensor for name, tensor in tensors.items()}


def extend_rows(tensor_VE: Tensor, base: Tokenizer, extended: ExtendedTokenizer) -> Tensor:
    """Add rows for the added words to a tensor with one row per token (an embedding, or part of an output layer).

    The rows of existing pieces do not change. The row of a new word is the mean of the rows of its pieces. This also
    holds for an output bias, so that the logit of a new word is the mean of the logits of its pieces; a bias of 0 next
    to trained biases would make a new word far too probable or almost impossible. Rows without a token, which exist if
    the vocabulary size is rounded up, are set to the mean row of all pieces, so that each of them receives no more
    softmax probability than an ordinary token.
    """
    if tensor_VE.shape[:1] != (base.vocab_size,) or extended.base.fingerprint != base.fingerprint:
        raise CheckpointError(
            f"rows for {len(extended.words)} added words cannot be added to a tensor of shape "
            f"{tuple(tensor_VE.shape)}: it must have {base.vocab_size} rows, one for each token of the tokenizer "
            "without these words"
        )
    filler_E = tensor_VE[: base.num_pieces].mean(0, dtype=torch.float64)
    resized_VE = tensor_VE.new_empty((extended.vocab_size, *tensor_VE.shape[1:]))
    resized_VE[: base.num_pieces] = tensor_VE[: base.num_pieces]
    for index, word in enumerate(extended.words):
        ids = torch.tensor(extended.pieces_of(word), dtype=torch.int64)
        row_E = tensor_VE[ids].mean(0, dtype=torch.float64) if len(ids) else filler_E
        resized_VE[base.num_pieces + index] = row_E.to(tensor_VE.dtype)
    unused = slice(extended.num_pieces, base.vocab_size)
    resized_VE[unused] = tensor_VE[unused]
    resized_VE[max(extended.num_pieces, base.vocab_size) :] = filler_E.to(tensor_VE.dtype)
    return resized_VE


def vocabulary_tensors(module_of: Callable[[int], nn.Module]) -> frozenset[str]:
    """Return the tensors with one row per token: those whose number of rows changes with the vocabulary size."""
    sizes = (128, 192)
    with shapes_only():
        small, large = (
            {name: tuple(tensor.shape) for name, tensor in module_of(size).state_dict().items()} for size in sizes
        )
    names = {name for name, shape in small.items() if shape != large.get(name)}
    other = [name for name in sorted(names) if small[name][:1] != sizes[:1] or small[name][1:] != large[name][1:]]
    if other:
        raise CheckpointError(
            f"words cannot be added to this model, because the shape of {', '.join(other)} depends on the vocabulary "
            "size without one row per token; leave out tokenizer.add"
        )
    return frozenset(names)
