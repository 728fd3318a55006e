"""A run in memory: its encoder and tokenizer, vectors of texts, nearest tokens, and answers.

Shape legend: N texts, E width of a vector, D width of the encoder, V vocabulary.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional

from lmtransfer.api.settings import checked
from lmtransfer.config.types import Count, TopK
from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.answering import FilledMasks, MaskedTexts, TaskAnswers, answering_runs
from lmtransfer.interop.importing.opening import open_saved, run_folder
from lmtransfer.models.base import Encoder
from lmtransfer.runs.saved import SavedRun
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.input_files import Reader
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.hardware import Hardware, setup
from lmtransfer.training.precision import PrecisionName
from lmtransfer.transfer.embedder import Embedder
from lmtransfer.transfer.experiment.trained import task_of
from lmtransfer.transfer.opening import VectorChoice, embedder_of, pretrained_encoder
from lmtransfer.transfer.vector_method import Layers, PoolingName


class LoadedRun:
    """A run in memory.

    Args:
        saved: the run.
        encoder: its encoder, on the device and in evaluation mode.
        hardware: device and precision.
        task: the task that it was trained on; None for a run without a task.
        answers: answers the task; None for a run without a task.
        notes: where ``answers`` counts inputs that were cut.

    Attributes:
        path: the run directory.
        encoder: a ``torch.nn.Module`` over packed batches; see ``lmtransfer.models.base.Encoder``.
        tokenizer: turns text into ids with offsets; see ``lmtransfer.tokenizers.base.Tokenizer``.
        task: the task with its labels; None for a run without a task.
    """

    def __init__(
        self,
        *,
        saved: SavedRun,
        encoder: Encoder,
        hardware: Hardware,
        task: Task | None = None,
        answers: TaskAnswers | None = None,
        notes: Notes | None = None,
    ) -> None:
        self.path: Path = saved.path
        self.encoder: Encoder = encoder
        self.tokenizer: Tokenizer = saved.tokenizer
        self.task = task
        self._saved, self._hardware, self._answers = saved, hardware, answers
        self._notes = notes or Notes()
        self._filled: dict[int, FilledMasks] = {}
        self._embedders: dict[str, Embedder] = {}

    def __repr__(self) -> str:
        task = "" if self.task is None else f", task={self.task.name!r}"
        return f"LoadedRun({str(self.path)!r}, encoder={type(self.encoder).__name__}{task})"

    @checked
    def predict(self, texts: str | Sequence[str], *, top_k: TopK = 5) -> list[dict[str, Any]]:
        """Answer texts, or fill in each [MASK] with a run without a task.

        Args:
            texts: one text or several, as ``text=`` of ``lmtransfer predict``: two texts, or a question and its
                passage, have [SEP] between them.
            top_k: number of candidates for each [MASK].

        Returns:
            One dictionary for each text, as ``lmtransfer predict`` writes it in JSON.

        Raises:
            DataError: a text cannot be answered.
            ConfigError: the run cannot answer texts: its objective cannot fill a [MASK], or it has no head at all.
        """
        reader = self._reader()
        examples = list(_examples([texts] if isinstance(texts, str) else texts, reader))
        if self._answers is not None:
            return self._answered(self._answers, examples)
        if top_k not in self._filled:
            self._filled[top_k] = FilledMasks(self._saved, top_k, self._hardware)
        return self._filled[top_k].lines(examples)

    def _answered(self, answers: TaskAnswers, examples: Sequence[Any]) -> list[dict[str, Any]]:
        self._notes.clear()
        lines = answers.lines(examples)
        for kind, count in self._notes.counts.items():
            warnings.warn(f"{count:,} {kind}", stacklevel=4)
        return lines

    @checked
    def vectors(
        self, texts: str | Sequence[str], *, layers: Layers | None = None, pooling: PoolingName | None = None
    ) -> np.ndarray:
        """One vector for each text, as ``lmtransfer embed`` writes them.

        The first call with a choice of layers and pooling loads its modules.

        Args:
            texts: one text or several; tokens beyond the longest input of the encoder are not read.
            layers: ``last``, the number of a layer (0: embeddings), or a list such as ``[0, "last"]``, whose vectors
                are concatenated; None: as the run's head reads them, or the last layer.
            pooling: ``mean``, ``max``, ``cls``, ``last_token`` or ``family``; None: as for the run's head, or the mean.

        If both are None, an imported model makes vectors as its publisher's files for sentence-transformers say: their
        pooling, longest text and normalisation.

        Returns:
            float32, shape (N, E): E is the width of the encoder, times the number of layers in a list.

        Raises:
            ConfigError: the choice does not fit the encoder, or needs weights that the run does not have.
        """
        choice = VectorChoice.of(layers=layers, pooling=pooling)
        if str(choice) not in self._embedders:
            self._embedders[str(choice)] = embedder_of(self._saved, choice, hardware=self._hardware)
        return self._embedders[str(choice)].embed([texts] if isinstance(texts, str) else texts).vectors

    @checked
    @torch.inference_mode()
    def nearest(self, text: str, num: Count = 10) -> list[tuple[str, float]]:
        """The tokens whose embeddings (layer 0) are nearest to that of a token, with their cosine, the nearest first.

        Args:
            text: a token; of a text with several tokens the mean of their embeddings is used.
            num: number of tokens; the tokens of ``text`` and special tokens are not among them.

        Raises:
            ConfigError: the encoder has no token embeddings, or the text has no token.
        """
        table = self.encoder.token_embedding
        if table is None:
            raise ConfigError(f"{type(self.encoder).__name__} reads words as characters and has no token embeddings")
        ids = self.tokenizer.encode(text).ids.tolist()
        if not ids:
            raise ConfigError(f"{text!r}: has no token; give a word")
        vectors_VD = table.weight.float()
        cosines_V = functional.cosine_similarity(vectors_VD[ids].mean(0, keepdim=True), vectors_VD, dim=1)
        others_V = torch.from_numpy(~self.tokenizer.is_special)
        others_V[ids] = False
        cosines_V = cosines_V.cpu().masked_fill(~others_V, -torch.inf)
        best = cosines_V.topk(min(num, int(others_V.sum())))
        return [
            (self.tokenizer.piece(token), cosine)
            for token, cosine in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def _reader(self) -> Reader:
        """The reader of texts to answer.

        Raises:
            ConfigError: the run has neither a task nor an objective, or the task takes no texts.
        """
        if self.task is not None:
            return self.task.reader()
        if "objective" not in self._saved.config:
            raise ConfigError(
                f"{self.path}: holds an encoder without a head, so it cannot answer texts; train one: "
                f"finetune(init={str(self.path)!r}, task=...)"
            )
        return MaskedTexts()


@checked
def load(
    run: str | os.PathLike[str],
    *,
    ensemble: bool = False,
    trust: bool = False,
    device: str = "auto",
    precision: PrecisionName | Literal["auto"] = "fp32",
) -> LoadedRun:
    """Load a run: its encoder and tokenizer, and the head of its task if it has one.

    Args:
        run: run directory of any command that trains, or a published model as ``hf:<folder or name on the hub>``. Of a
            task's run with several seeds, the first seed is loaded.
        ensemble: answer with the mean over all seeds of a task's run.
        trust: read files that the run names, although you did not make the run.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:<number>`` or ``mps``.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto`` (the fastest format of the hardware).

    Raises:
        RunDirectoryError: there is no such run, or it has no checkpoint.
        CheckpointError: its weights do not fit its configuration.
        ConfigError: the device or the precision does not exist here.
    """
    path = os.fspath(run)
    try:
        hardware = setup(device=device, precision=precision, compile=False, keep_threads=True)
    except ConfigError as error:  # names the settings of a command
        raise ConfigError([problem.replace("hardware.", "") for problem in error.problems]) from error
    if "task" in run_folder(path, key="run").read_config():
        runs = answering_runs(path, ensemble=ensemble, trust=trust)
        task = task_of(runs[0])
        notes = Notes()
        answers = TaskAnswers(runs, task, hardware, notes)
        return LoadedRun(
            saved=runs[0], encoder=answers.encoder, hardware=hardware, task=task, answers=answers, notes=notes
        )
    saved = open_saved(path, key="run", trust=trust)
    return LoadedRun(saved=saved, encoder=pretrained_encoder(saved).to(hardware.device).eval(), hardware=hardware)


def _examples(texts: Sequence[str], reader: Reader) -> Any:
    for number, text in enumerate(texts):
        try:
            yield reader.of_line(text, f"text {number}", str(number), Notes())
        except ValueError as problem:
            raise DataError(f"{text[:60]!r}: {problem}") from None
