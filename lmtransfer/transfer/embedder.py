"""The embedder, which turns texts into vectors, and the functions that build an embedder from any run.

Shape legend: N texts, E width of a vector.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from lmtransfer.config.component import build
from lmtransfer.data.micro_batches import evaluation_batches
from lmtransfer.errors import ConfigError
from lmtransfer.interop.importing import attention_of
from lmtransfer.interop.open_run import open_saved, run_folder, task_run_folders
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.lora import merge_updates
from lmtransfer.objectives.base import Objective
from lmtransfer.randomness import derive_seed
from lmtransfer.runs.saved_run import SavedRun, new_encoder, read_encoder
from lmtransfer.system.validation import Misfit, validate
from lmtransfer.tasks.heads import LabelTargets
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.text.example import TextExample, encode_texts
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import check_not_nan, load_weights
from lmtransfer.transfer.experiment.part_run import open_task_learner, task_of
from lmtransfer.transfer.experiment.settings import with_trained_start
from lmtransfer.transfer.learner import ComposedEncoder, TaskLearner
from lmtransfer.transfer.method import Layers, PoolingName, TransferMethod, VectorMethod
from lmtransfer.transfer.pooling import PairComparison, Pooling
from lmtransfer.transfer.scoring import EVALUATION_TOKENS
from lmtransfer.transfer.standardizer import Standardizer

#: Number of characters to try first for each token needed.
_CHARACTERS_PER_TOKEN = 32
_GROWTH = 4
_SPACE = re.compile(r"[ \t\r\n]")

#: [CLS] and [SEP].
_NUM_SPECIALS = 2


def text_prefix(text: str, tokenizer: Tokenizer, *, num_tokens: int) -> str:
    """Return a prefix with more than ``num_tokens`` tokens, the same as those of the text; or the whole text.

    The prefix ends at white space, which no token crosses. A text of ten million characters thus takes hardly any
    longer than a page.
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
    """The vectors of texts, float32, (N, E), with the number of truncated texts and the number of tokens read."""

    vectors: np.ndarray
    num_cut: int
    num_tokens: int


class Embedder:
    """Turns each text into one vector that does not depend on the other texts.

    A text is read as "[CLS] text [SEP]" and truncated if it has too many tokens. An empty text is "[CLS] [SEP]".

    Args:
        model: encoder, reading and composition, on the device and in evaluation mode.
        max_length: maximum number of tokens per text, including special tokens; None for the encoder's maximum.
        standardizer: mean and deviation of such vectors over the run's training examples; None if unknown.
        normalise: whether to scale each vector to length 1.
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
                f"{method.prefix}max_length={max_length} must be between {_NUM_SPECIALS + 1} (one token between two "
                f"special tokens) and {limit} (the run's model.max_length), or null for {limit}"
            )
        self.model, self.tokenizer, self.hardware = model, tokenizer, hardware
        self.max_length = max_length or limit
        self.standardizer, self.method, self.normalise = standardizer, method, normalise
        self.batch_tokens = batch_tokens

    @property
    def dim(self) -> int:
        """Width of a vector, E."""
        return self.model.output_dim

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> TextVectors:
        """Return the vectors of the texts, all in memory."""
        room = self.max_length - _NUM_SPECIALS
        prefixes = [text_prefix(text, self.tokenizer, num_tokens=room) for text in texts]
        examples = [TextExample(id=str(index), text=text) for index, text in enumerate(prefixes)]
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
        check_not_nan(vectors, what="the model's vectors")
        vectors = scale_vectors(vectors, standardizer=None, normalise=self.normalise)
        return TextVectors(vectors, encoded.num_truncated, int(encoded.lengths.sum()))


def scale_vectors(vectors_NE: np.ndarray, *, standardizer: Standardizer | None, normalise: bool) -> np.ndarray:
    """Standardize the vectors if there is a standardizer, then normalize them to length 1 if requested (0 stays 0)."""
    scaled_NE = torch.from_numpy(vectors_NE)
    if standardizer is not None:
        scaled_NE = standardizer(scaled_NE)
    return (functional.normalize(scaled_NE, dim=1) if normalise else scaled_NE).numpy()


@dataclass(frozen=True, slots=True)
class VectorChoice:
    """The user's choice of layers and pooling.

    None stands for the choice of the run's head or of the model's publisher; if there is neither, for the last layer
    and the mean.
    """

    layers: Layers | None = None
    pooling: PoolingName | None = None
    prefix: str = ""

    @classmethod
    def of(cls, *, layers: Any, pooling: Any, prefix: str = "") -> VectorChoice:
        """Build a choice from plain values."""
        try:
            pooling_choice: PoolingName | None = validate(pooling, PoolingName | None)
        except Misfit:
            raise ConfigError(
                f"{prefix}pooling={pooling} must be mean, max, cls, last_token, family, bilstm, attention or null"
            ) from None
        try:
            layers_choice: Layers | None = validate(layers, Layers | None)
        except Misfit:
            raise ConfigError(
                f"{prefix}layers={layers} must be last, a layer index (0: embeddings), a list such as [0,last], mix "
                "or null"
            ) from None
        return cls(layers_choice, pooling_choice, prefix)


@dataclass(frozen=True, slots=True)
class _TaskRun:
    method: TransferMethod
    learner: TaskLearner

    @property
    def pooling(self) -> Pooling | None:
        """The module that turns the tokens of a text into one vector; None if the head reads tokens."""
        composition = self.learner.composition
        if self.learner.head.per == "token":
            return None
        return composition.each if isinstance(composition, PairComparison) else composition

    def reads_like(self, method: VectorMethod) -> bool:
        """Whether the head reads one vector per text, from the same layers and with the same pooling."""
        own = self.method
        is_same = (method.layers_text, method.pooling) == (own.layers_text, own.pooling)
        return is_same and self.pooling is not None

    def standardizer(self, method: VectorMethod) -> Standardizer | None:
        """Return the mean and deviation of a method's vectors over the training examples; None if unknown."""
        is_whole = self.learner.composition is self.pooling
        return self.learner.standardising if is_whole and self.reads_like(method) else None


def open_run_to_embed(path: str, *, trust: bool = False) -> SavedRun:
    """Open the run that the user named; if a task run has several seeds, open the first one."""
    config = run_folder(path, key="run").read_config()
    folder = task_run_folders(path)[0] if _is_of_task(config) else path
    return open_saved(folder, key="run", trust=trust)


def open_embedder(
    saved: SavedRun, choice: VectorChoice, *, hardware: Hardware, max_length: int | None = None
) -> Embedder:
    """Open a run's encoder with the chosen layers and pooling, on the device and in evaluation mode.

    If neither layers nor pooling is set, an imported model builds vectors as its publisher does.
    """
    trained = _open_task_run(saved, hardware) if _is_of_task(saved.config) else None
    encoder = pretrained_encoder(saved) if trained is None else trained.learner.encoder
    published = _published_vectors(saved, choice)
    if published:
        choice = VectorChoice.of(layers="last", pooling=published.get("pooling"), prefix=choice.prefix)
        limit = published.get("max_length")
        max_length = max_length or (limit if isinstance(limit, int) else None)
    method = _method(choice, trained)
    _check_modules(method, encoder, saved, trained, choice.prefix)
    model = method.compose(encoder)
    if trained is not None and method.layers == "mix":
        model.reading = trained.learner.reading
    if trained is not None and trained.pooling is not None and trained.reads_like(method):
        model.composition = trained.pooling
    return Embedder(
        model=model.to(hardware.device).eval(),
        method=method,
        tokenizer=saved.tokenizer,
        hardware=hardware,
        max_length=max_length,
        standardizer=None if trained is None else trained.standardizer(method),
        normalise=published.get("normalise") is True,
    )


def _published_vectors(saved: SavedRun, choice: VectorChoice) -> dict[str, Any]:
    """Return how an imported model's publisher builds vectors; empty if unknown or overridden by the user."""
    published = saved.config.get("vectors")
    if not isinstance(published, dict) or choice.layers is not None or choice.pooling is not None:
        return {}
    if published.get("lacks"):
        raise ConfigError(
            f"{choice.prefix}pooling: the publisher of run={saved.path} builds vectors with {published['lacks']}, "
            f"which lmtransfer does not support; set {choice.prefix}pooling to mean, cls, max or last_token for "
            "vectors without this step"
        )
    return published


def with_random_encoder(embedder: Embedder, saved: SavedRun) -> Embedder:
    """Return the control of an embedder: identical, but with random encoder weights."""
    model = embedder.model
    encoder = new_encoder(saved.model_node, saved.tokenizer, seed=derive_seed(0, "control"))
    encoder.attend(model.encoder.attention)
    composed = ComposedEncoder(
        encoder=encoder, reading=model.reading, composition=model.composition, use_pooler=model.use_pooler
    )
    control = copy(embedder)
    control.model, control.standardizer = composed.to(embedder.hardware.device).eval(), None
    return control


def _is_of_task(config: dict[str, Any]) -> bool:
    return "transfer" in config and "task" in config


def _open_task_run(saved: SavedRun, hardware: Hardware) -> _TaskRun:
    method: TransferMethod = build(saved.component("transfer"))
    learner = open_task_learner(saved, task_of(saved), hardware)
    merge_updates(learner.encoder)  # same outputs, and parameter names that every export expects
    return _TaskRun(method, learner)


def pretrained_encoder(saved: SavedRun) -> Encoder:
    """Return the encoder of a run without a task, with the attention that it was last trained with, on the CPU."""
    weights = read_encoder(saved)
    encoder = new_encoder(saved.model_node, saved.tokenizer, seed=0)
    encoder.attend(attention_of(saved, encoder))
    load_weights(encoder, with_trained_start(weights, encoder, saved.tokenizer, saved.config), source=str(saved.path))
    return encoder


def _method(choice: VectorChoice, trained: _TaskRun | None) -> VectorMethod:
    if trained is None:
        default = choice.layers if choice.layers is not None else "last"
        return VectorMethod(layers=default, pooling=choice.pooling or "mean", prefix=choice.prefix)
    own = trained.method
    return VectorMethod(
        layers=own.layers if choice.layers is None else choice.layers,
        pooling=choice.pooling or ("mean" if trained.pooling is None else own.pooling),
        mix_layer_norm=own.mix_layer_norm,
        lstm_dim=own.lstm_dim,
        attention_dim=own.attention_dim,
        prefix=choice.prefix,
    )


def _check_modules(
    method: VectorMethod, encoder: Encoder, saved: SavedRun, trained: _TaskRun | None, prefix: str
) -> None:
    """Raise an error if a module of the method would have random weights."""
    if method.layers == "mix" and (trained is None or trained.method.layers != "mix"):
        raise ConfigError(
            f"{prefix}layers=mix: run={saved.path} has no mix weights, which only training on a task with "
            "transfer.layers=mix creates; set last, a layer index, or a list such as [0,last]"
        )
    if method.pooling in ("bilstm", "attention") and (trained is None or not trained.reads_like(method)):
        raise ConfigError(
            f"{prefix}pooling={method.pooling} with {prefix}layers={method.layers_text}: run={saved.path} has no "
            "weights for this pooling, which only training on a task with these settings creates; set mean, max, cls, "
            "last_token or family"
        )
    if method.uses_pooler(encoder) and trained is None and not _has_trained_pooler(saved):
        raise ConfigError(
            f"{prefix}pooling=family: no objective of run={saved.path} has trained the encoder's pooler, so the "
            "pooler's weights are random; set mean, max, cls or last_token"
        )


def _has_trained_pooler(saved: SavedRun) -> bool:
    """Whether an objective trained the pooler, or the weights come from another run or a published model."""
    if saved.config.get("init") or saved.config.get("source"):
        return True
    losses = (saved.config.get("objective") or {}).get("losses") or {}
    kinds = [saved.component(f"objective.losses.{name}", "tokenizer").cls for name in losses]
    return any(issubclass(kind, Objective) and kind.uses_pooler for kind in kinds)
