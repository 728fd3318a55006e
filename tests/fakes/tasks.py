"""Small stand-ins for tests of tasks and transfer: a tokenizer with a word a token, tiny encoders, labelled words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lmtransfer.models.bert import BertEncoder
from lmtransfer.models.gpt import GptEncoder
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import ClassificationSpec, HeadSpec, LabelTargets
from lmtransfer.tasks.text.example import TextExample, encode_texts
from lmtransfer.tokenizers.base import Encoding


class WordTokenizer:
    """Words to ids 4, 5, ... in the order in which they are first seen."""

    vocab_size, num_pieces = 128, 128
    unk_id, cls_id, sep_id, mask_id = 0, 1, 2, 3
    fingerprint = "words"

    def __init__(self) -> None:
        self.words: list[str] = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        self.is_special = np.arange(self.vocab_size) < 4
        self.starts_word = ~self.is_special

    def encode(self, text: str) -> Encoding:
        ids = self.encode_ids([text])[0]
        return Encoding(ids, np.zeros((len(ids), 2), np.int32), np.ones(len(ids), bool))

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        rows = []
        for text in texts:
            for word in text.split():
                if word not in self.words:
                    self.words.append(word)
            rows.append(np.array([self.words.index(word) for word in text.split()], dtype=np.int32))
        return rows

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.words[i] for i in ids)

    def piece(self, token_id: int) -> str:
        return self.words[token_id]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)


def bert(seed: int = 0, **changes: object) -> BertEncoder:
    """A BERT of 2 layers x 16, dropout 0.1, with weights large enough to matter."""
    torch.manual_seed(seed)
    arguments = {"vocab_size": 128, "dim": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "max_length": 32}
    encoder = BertEncoder(**{**arguments, **changes})
    _enlarge(encoder)
    return encoder


def gpt(seed: int = 0) -> GptEncoder:
    """A GPT of the same size."""
    torch.manual_seed(seed)
    encoder = GptEncoder(vocab_size=128, dim=16, num_layers=2, num_heads=2, hidden_dim=32, max_length=32)
    _enlarge(encoder)
    return encoder


def _enlarge(encoder: nn.Module) -> None:
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)


def random_examples(num: int, *, seed: int = 0, longest: int = 12) -> EncodedExamples:
    """Random words of ragged length; the label says whether word w0 occurs."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(f"w{i}" for i in rng.integers(0, 20, rng.integers(1, longest))) for _ in range(num)]
    examples = [TextExample(f"train:{i}", text, label=int("w0" in text.split())) for i, text in enumerate(texts)]
    labels = np.array([example.label for example in examples])
    return encode_texts(examples, LabelTargets(labels), WordTokenizer(), max_length=16, num_segments=2)


def labels_head(num_labels: int) -> HeadSpec:
    """One of so many labels."""
    return ClassificationSpec(num_labels)
