"""The addition of the user's words as single tokens to the tokenizer and as rows to the embeddings.

Shape legend: V vocabulary size, E width of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.extended import ExtendedTokenizer, read_words


def add_words(tokenizer: Tokenizer, file: Path) -> tuple[Tokenizer, tuple[str, ...]]:
    """Add the words of a file, one per line, to a tokenizer as single tokens, and return notes for the user."""
    word_list = read_words(file, tokenizer)
    return ExtendedTokenizer(tokenizer, word_list.words), word_list.notes


def extend_weights(
    tensors: Mapping[str, Tensor], *, base: Tokenizer, tokenizer: Tokenizer, module_of: Callable[[int], nn.Module]
) -> dict[str, Tensor]:
    """Extend the weights of a checkpoint by rows for the words that were added to its tokenizer.

    Args:
        module_of: function that builds the module with these tensor names for a vocabulary size.
    """
    if tokenizer.fingerprint == base.fingerprint:
        return dict(tensors)
    assert isinstance(tokenizer, ExtendedTokenizer), "made by add_words"
    return extend_tensors(tensors, vocabulary_tensors(module_of), base=base, extended=tokenizer)


def extend_rows(tensor_VE: Tensor, base: Tokenizer, extended: ExtendedTokenizer) -> Tensor:
    """Extend a tensor with one row per token (an embedding, or part of an output layer) by rows for the added words.

    The rows of existing pieces do not change. The row of a new word is the mean of its pieces' rows. An output bias is
    extended in the same way, so that the logit of a new word is the mean of its pieces' logits; a bias of 0 next to
    trained biases would make a new word far too probable, or almost impossible. Rows without a token, which exist if
    the vocabulary size is rounded up, are set to the mean row of all pieces, so that each of them receives no more
    softmax probability than an ordinary token.
    """
    if tensor_VE.shape[:1] != (base.vocab_size,) or extended.base.fingerprint != base.fingerprint:
        raise CheckpointError(
            f"a tensor of shape {tuple(tensor_VE.shape)} cannot be extended by rows for {len(extended.words)} added "
            f"words: it must have {base.vocab_size} rows, one for each token of the tokenizer without these words"
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


def extend_tensors(
    tensors: Mapping[str, Tensor], names: Collection[str], *, base: Tokenizer, extended: ExtendedTokenizer
) -> dict[str, Tensor]:
    """Extend the tensors in ``names``, which have one row per token, by rows for added words; see ``extend_rows``."""
    return {name: extend_rows(tensor, base, extended) if name in names else tensor for name, tensor in tensors.items()}


def vocabulary_tensors(module_of: Callable[[int], nn.Module]) -> frozenset[str]:
    """Find the tensors with one row per token: those whose number of rows changes with the vocabulary size."""
    sizes = (128, 192)
    with torch.device("meta"):
        small, large = (
            {name: tuple(tensor.shape) for name, tensor in module_of(size).state_dict().items()} for size in sizes
        )
    names = {name for name, shape in small.items() if shape != large.get(name)}
    other = [name for name in sorted(names) if small[name][:1] != sizes[:1] or small[name][1:] != large[name][1:]]
    if other:
        raise CheckpointError(
            f"words cannot be added to this model, because {', '.join(other)} depends on the vocabulary size but does "
            "not have one row per token; leave out tokenizer.add"
        )
    return frozenset(names)
