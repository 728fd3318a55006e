"""Small stand-ins for tests of objectives and streams: numbers as tokens, and stores of random documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fakes.texts import write_store
from lmtransfer.data.batch import PackedBatch
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.models.base import EncoderOutput, OutputPositions
from lmtransfer.models.bert import BertEncoder
from lmtransfer.models.electra import ElectraEncoder
from lmtransfer.models.elmo import ElmoSubwordEncoder
from lmtransfer.models.gpt import GptEncoder
from lmtransfer.models.modern import ModernEncoder
from lmtransfer.objectives.rows.base import Row
from lmtransfer.randomness import Uniforms
from lmtransfer.tokenizers.base import Encoding

NUM_PIECES = 90


class NumberTokenizer:
    """Ids 0-3 are special, 4-89 occur (even ones begin words), 90-95 pad the vocabulary; text is numbers."""

    vocab_size, num_pieces = 96, NUM_PIECES
    unk_id, cls_id, sep_id, mask_id = 0, 1, 2, 3
    fingerprint = "numbers"

    def __init__(self) -> None:
        ids = np.arange(self.vocab_size)
        self.is_special = (ids < 4) | (ids >= NUM_PIECES)
        self.starts_word = (ids % 2 == 0) & ~self.is_special

    def encode(self, text: str) -> Encoding:
        ids = self.encode_ids([text])[0]
        spans = np.array([match.span() for match in re.finditer(r"\S+", text)], dtype=np.int32).reshape(-1, 2)
        return Encoding(ids, spans, self.starts_word[ids])

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([int(word) for word in text.split()], dtype=np.int32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.piece(i) for i in ids)

    def piece(self, token_id: int) -> str:
        return ["[UNK]", "[CLS]", "[SEP]", "[MASK]"][token_id] if token_id < 4 else str(token_id)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)


class CasedTokenizer(NumberTokenizer):
    """The same with letters: even ids begin words, those below 44 with a capital (``Ab``), and odd ones go on."""

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("cd" if i % 2 else "Ab" if i < 44 else "ab" for i in ids)


TOKENIZER = NumberTokenizer()


def row_of(tokens: Sequence[int] | np.ndarray) -> Row:
    array = np.asarray(tokens, dtype=np.int32)
    return Row(array, np.zeros(len(array), dtype=np.int8), "tokens 0:0")


def random_row(rng: np.random.Generator, length: int) -> Row:
    """Ordinary tokens in a frame, with an unknown token and a separator inside."""
    tokens = rng.integers(4, NUM_PIECES, length)
    tokens[[0, length // 2, length // 3, -1]] = [1, 2, 0, 2]
    return row_of(tokens)


def perturbed(learner: Any, deviation: float = 0.1, seed: int = 1) -> Any:
    """The same learner, away from where all begins."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(torch.randn_like(parameter) * deviation)
    return learner


def random_documents(
    num: int, *, seed: int = 0, most_sentences: int = 12, longest: int = 20, least_sentences: int = 1
) -> list[list[list[int]]]:
    """Documents of random sentences of ordinary tokens."""
    rng = np.random.default_rng(seed)
    return [
        [
            rng.integers(4, NUM_PIECES, rng.integers(1, longest + 1)).tolist()
            for _ in range(rng.integers(least_sentences, most_sentences + 1))
        ]
        for _ in range(num)
    ]


def store_of(folder: Path, documents: list[list[list[int]]]) -> TokenStore:
    """A store of several shards."""
    return write_store(folder, documents, vocab_size=96, shard_documents=7)


#: A transformer of 2 layers x 16.
_SMALL: dict[str, object] = {
    "vocab_size": 96,
    "dim": 16,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 32,
    "max_length": 64,
}


def bert(seed: int = 0, **changes: object) -> BertEncoder:
    """A BERT of 2 layers x 16 without dropout."""
    torch.manual_seed(seed)
    return BertEncoder(**{**_SMALL, "dropout": 0.0, **changes})  # type: ignore[arg-type]


def gpt(seed: int = 0) -> GptEncoder:
    """A GPT of the same size."""
    torch.manual_seed(seed)
    return GptEncoder(**_SMALL, dropout=0.0)  # type: ignore[arg-type]


def elmo(seed: int = 0, **changes: object) -> ElmoSubwordEncoder:
    """An ELMo over ids of the same size: 2 layers x 16 both ways."""
    torch.manual_seed(seed)
    arguments: dict[str, object] = {"vocab_size": 96, "dim": 32, "num_layers": 2, "cell_dim": 32, "max_length": 64}
    return ElmoSubwordEncoder(**{**arguments, "dropout": 0.0, **changes})  # type: ignore[arg-type]


class BackwardElmo(ElmoSubwordEncoder):
    """The backward half of it alone."""

    attention = "backward"

    def __init__(self) -> None:
        super().__init__(vocab_size=96, dim=32, num_layers=2, cell_dim=32, max_length=64, dropout=0.0)
        self.dim = 16

    def forward(
        self, batch: PackedBatch, recurrent_state: object = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        layers = super().forward(batch, output_positions=output_positions).layers
        return EncoderOutput(tuple(layer[:, 16:] for layer in layers))


def backward_elmo(seed: int = 0) -> BackwardElmo:
    """Such an encoder."""
    torch.manual_seed(seed)
    return BackwardElmo()


def electra(seed: int = 0, **changes: object) -> ElectraEncoder:
    """An ELECTRA of the same size, with embeddings of half its width."""
    torch.manual_seed(seed)
    return ElectraEncoder(**{**_SMALL, "embedding_dim": 8, "dropout": 0.0, **changes})  # type: ignore[arg-type]


def modern(seed: int = 0, **changes: object) -> ModernEncoder:
    """A modern encoder of the same size, whose second layer sees four tokens to each side."""
    torch.manual_seed(seed)
    return ModernEncoder(**{**_SMALL, "window": 8, **changes})  # type: ignore[arg-type]


def numbers_of(index: int, purpose: str, seed: int, epoch: int) -> list[float]:
    """The random numbers of a sentence or a document."""
    uniform = Uniforms(seed, purpose, epoch)
    return [float(uniform.at(np.array([index]), draw)[0]) for draw in range(4)]


def target_of(document: int, capacity: int, short_seq_prob: float, seed: int, epoch: int) -> int:
    """The number of tokens up to which the sentences of a document are collected."""
    uniform = numbers_of(document, "targets", seed, epoch)
    return 2 + int(uniform[1] * (capacity - 1)) if uniform[0] < short_seq_prob else capacity
