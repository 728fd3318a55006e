"""Words of the user's as tokens of their own: in the tokenizer, and as rows of the embeddings.

Shape legend: V rows of the vocabulary, E width of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.added_tokens import read_words
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


def resized_weights(
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
    return resized(tensors, vocabulary_tensors(module_of), base=base, extended=tokenizer)


def resized_rows(tensor_VE: Tensor, base: Tokenizer, extended: ExtendedTokenizer) -> Tensor:
    """An embedding, or what an output layer has of each token, with rows for the added words.

    Rows of the base's pieces stay as they are, bit for bit. A new word's row is the mean of its pieces' rows. An output
    bias is treated alike, so that a new word's logit is the mean of its pieces' logits; a bias of 0, beside trained
    ones, would make each of them as likely as what the text is about, or as good as impossible. Rows that no token has
    (where the vocabulary is rounded up) are the mean of all pieces' rows, so that they take no more of the softmax than
    an ordinary token does.

    Args:
        tensor_VE: shape (base.vocab_size, E), or (base.vocab_size,).
        base: the tokenizer before.
        extended: the tokenizer with the words.

    Returns:
        Shape (extended.vocab_size, E), or (extended.vocab_size,), of the same dtype and device.

    Raises:
        CheckpointError: the tensor has another number of rows, or ``extended`` is of another base.
    """
    if tensor_VE.shape[:1] != (base.vocab_size,) or extended.base.fingerprint != base.fingerprint:
        raise CheckpointError(
            f"a tensor of shape {tuple(tensor_VE.shape)} cannot get rows for {len(extended.words)} words more: the "
            f"tokenizer that they were added to has {base.vocab_size} rows"
        )
    filler_E = tensor_VE[: base.num_pieces].mean(0, dtype=torch.float64)
    grown_VE = tensor_VE.new_empty((extended.vocab_size, *tensor_VE.shape[1:]))
    grown_VE[: base.num_pieces] = tensor_VE[: base.num_pieces]
    for place, word in enumerate(extended.words):
        ids = torch.tensor(extended.pieces_of(word), dtype=torch.int64)
        row_E = tensor_VE[ids].mean(0, dtype=torch.float64) if len(ids) else filler_E
        grown_VE[base.num_pieces + place] = row_E.to(tensor_VE.dtype)
    unused = slice(extended.num_pieces, base.vocab_size)
    grown_VE[unused] = tensor_VE[unused]
    grown_VE[max(extended.num_pieces, base.vocab_size) :] = filler_E.to(tensor_VE.dtype)
    return grown_VE


def resized(
    tensors: Mapping[str, Tensor], names: Collection[str], *, base: Tokenizer, extended: ExtendedTokenizer
) -> dict[str, Tensor]:
    """Weights of which those in ``names`` have a row a token, with rows for the added words; see ``resized_rows``."""
    return {name: resized_rows(tensor, base, extended) if name in names else tensor for name, tensor in tensors.items()}


def vocabulary_tensors(module_of: Callable[[int], nn.Module]) -> frozenset[str]:
    """Names of the tensors that have a row a token: those whose number of rows follows the vocabulary's.

    Args:
        module_of: makes the model for a vocabulary of so many rows; nothing is computed or kept in memory.

    Raises:
        CheckpointError: a tensor follows the vocabulary in another dimension.
    """
    sizes = (128, 192)
    with torch.device("meta"):
        small, large = (
            {name: tuple(tensor.shape) for name, tensor in module_of(size).state_dict().items()} for size in sizes
        )
    following = {name for name, shape in small.items() if shape != large.get(name)}
    other = [name for name in sorted(following) if small[name][:1] != sizes[:1] or small[name][1:] != large[name][1:]]
    if other:
        raise CheckpointError(
            f"words cannot be added to this model: {', '.join(other)} depends on the vocabulary in another way than "
            "by a row for each token; leave out tokenizer.add"
        )
    return frozenset(following)
