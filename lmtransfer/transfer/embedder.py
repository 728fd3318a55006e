"""The embedder, which encodes texts, sorts them by length, packs them, computes vectors, and restores the order.

Shape legend: N texts, E width of a vector.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from lmtransfer.data.stream import evaluation_batches
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.targets import LabelTargets
from lmtransfer.tasks.text.example import TextExample, encode_texts
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.hardware import Hardware
from lmtransfer.transfer.learner import ComposedEncoder
from lmtransfer.transfer.scoring import EVALUATION_TOKENS
from lmtransfer.transfer.standardizer import Standardizer
from lmtransfer.transfer.vector_method import VectorMethod

#: Number of characters to try first for each token needed.
_CHARACTERS_PER_TOKEN = 32
_GROWTH = 4
_SPACE = re.compile(r"[ \t\r\n]")

#: [CLS] and [SEP].
_NUM_SPECIALS = 2


def text_prefix(text: str, tokenizer: Tokenizer, *, num_tokens: int) -> str:
    """Return a prefix with the same first tokens and more than ``num_tokens`` tokens, or the whole text.

    The prefix ends before white space, because no token crosses it. So a text of ten million characters costs hardly
    more than a page.

    Args:
        num_tokens: number of tokens needed from the beginning of the text.
    """
    size = _CHARACTERS_PER_TOKEN * num_tokens
    while size < len(text):
        space = _SPACE.search(text, size)
        if space is None:
            return text
        prefix = text[: space.start()].rstrip(" \t\r\n")
        if len(tokenizer.encode_ids([prefix])[0]) > num_tokens:
            return prefix
        size = space.start() * _GROWTH
    return text


@dataclass(frozen=True, slots=True)
class TextVectors:
    """The vectors of some texts.

    Attributes:
        vectors: float32, shape (N, E), in the order of the texts.
        num_cut: number of texts truncated to the maximum length.
        num_tokens: number of tokens that the encoder read, including special tokens.
    """

    vectors: np.ndarray
    num_cut: int
    num_tokens: int


class Embedder:
    """Turns each text into one vector that does not depend on the other texts.

    A text is read as "[CLS] text [SEP]" and truncated if it has too many tokens. An empty text is "[CLS] [SEP]".

    Args:
        model: encoder, reading and composition, on the device and in evaluation mode.
        method: the settings of reading and composition.
        tokenizer: the run's tokenizer.
        hardware: device and precision.
        max_length: maximum number of tokens per text, including special tokens; None for the encoder's maximum.
        standardizer: mean and deviation of such vectors over the training part of the run's task; None if unknown.
        normalise: whether to scale each vector to length 1.
        batch_tokens: maximum number of tokens in a batch.

    Raises:
        ConfigError: ``max_length`` leaves no space for text, or is longer than the encoder can read.
    """

    def __init__(
        self,
        *,
        model: ComposedEncoder,
        method: VectorMethod,
        tokenizer: Tokenizer,
        hardware: Hardware,
        max_length: int | None = None,
        standardizer: Standardizer | None = None,
        normalise: bool = False,
        batch_tokens: int = EVALUATION_TOKENS,
    ) -> None:
        limit = model.encoder.max_length
        if max_length is not None and not _NUM_SPECIALS < max_length <= limit:
            raise ConfigError(
                f"{method.prefix}max_length={max_length}: must be between {_NUM_SPECIALS + 1} (one token between two "
                f"special tokens) and {limit} (the run's model.max_length), or null for {limit}"
            )
        self.model, self.tokenizer, self.hardware = model, tokenizer, hardware
        self.max_length = max_length or limit
        self.standardizer, self.method, self.normalise = standardizer, method, normalise
        self.batch_tokens = batch_tokens

    @property
    def dim(self) -> int:
        """E."""
        return self.model.output_dim

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> TextVectors:
        """Return the vectors of some texts, all in memory."""
        room = self.max_length - _NUM_SPECIALS
        prefixes = [text_prefix(text, self.tokenizer, num_tokens=room) for text in texts]
        examples = [TextExample(id=str(number), text=text) for number, text in enumerate(prefixes)]
        encoded = encode_texts(
            examples,
            LabelTargets(np.zeros(len(examples), dtype=np.int64)),
            self.tokenizer,
            max_length=self.max_length,
            num_segments=self.model.encoder.num_segments,
        )
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for batch in evaluation_batches(TaskSource(encoded), micro_batch_tokens=self.batch_tokens):
            with self.hardware.precision.autocast():
                batch_vectors = self.model.vectors(batch.packed.to(self.hardware.device))
            vectors[list(batch.rows)] = batch_vectors.float().cpu().numpy()
        vectors = scale_vectors(vectors, standardizer=None, normalise=self.normalise)
        return TextVectors(vectors, encoded.num_truncated, int(encoded.lengths.sum()))


def scale_vectors(vectors_NE: np.ndarray, *, standardizer: Standardizer | None, normalise: bool) -> np.ndarray:
    """Return the vectors, optionally standardized and then divided by their Euclidean lengths.

    Args:
        vectors_NE: float32.
        standardizer: subtracts a mean and divides by a deviation; None for no scaling.
        normalise: whether to scale each vector to length 1; a zero vector is unchanged.
    """
    scaled_NE = torch.from_numpy(vectors_NE)
    if standardizer is not None:
        scaled_NE = standardizer(scaled_NE)
    return (functional.normalize(scaled_NE, dim=1) if normalise else scaled_NE).numpy()
