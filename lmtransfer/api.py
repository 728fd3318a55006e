"""The commands as Python functions, and ``load``, which opens a run in memory.

Each function takes the settings of its command. A string is a word of the command line, and a keyword is a top-level
key: ``pretrain("corpus=text", "corpus.path=my/texts", name="mine", train={"steps": 200})``. A dictionary holds the keys
of a node, and ``config_dir`` is a folder with your own configs. ``help(pretrain)`` and ``lmtransfer pretrain --help``
show all keys. Keyword values are taken literally: a string is text, None is null, and a path or a ``Run`` stands for
its path. A function performs one run and returns when it is finished. It raises an error of ``lmtransfer.errors`` with
the message of the command line, and prints what the command prints.

Functions can be called any number of times, even in a notebook. Hydra's state is restored after each call. Calls from
several threads run one after another, because Hydra supports one running command per process; to run several at once,
start several processes. In the main thread, Ctrl-C finishes the current training step, saves, and raises
``Interrupted``.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import os
import re
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import numpy as np
import torch
from torch.nn import functional

from lmtransfer.config.settings import key_of
from lmtransfer.config.sources import named_by_user
from lmtransfer.config.types import Count, TopK
from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError, RunDirectoryError
from lmtransfer.inference.fill_mask import MaskFiller, open_mask_filler
from lmtransfer.inference.prediction import MaskedTexts, TaskPredictor, open_runs
from lmtransfer.interop.open_run import open_saved, run_folder
from lmtransfer.launch import overrides
from lmtransfer.launch.command_line import call_command
from lmtransfer.launch.overrides import CommandLine
from lmtransfer.models.base import Encoder
from lmtransfer.reporting.records import load_records as load_records
from lmtransfer.reporting.runs.collect import read_metrics
from lmtransfer.runs.result import JointResult, RunResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.runs.trust import is_trusted
from lmtransfer.system import door
from lmtransfer.system.validation import Misfit, join, validate
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.input_files import Reader
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.hardware import Hardware, setup
from lmtransfer.training.precision import PrecisionName
from lmtransfer.transfer.embedder import Embedder, VectorChoice, open_embedder, pretrained_encoder
from lmtransfer.transfer.experiment.part_run import task_of
from lmtransfer.transfer.method import Layers, PoolingName

#: A setting's value: a string is always text, and a dictionary holds the keys of a node.
Setting: TypeAlias = (
    "str | float | bool | os.PathLike[str] | Sequence[Setting] | Mapping[str, Setting] | None"  # float includes int
)
#: A file system path.
Folder: TypeAlias = str | os.PathLike[str]
#: Text that Hydra reads literally, unless it is a word with a special meaning.
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_WITH_MEANING = frozenset({"null", "true", "false", "inf", "nan"})
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Run(os.PathLike[str]):
    """A run directory."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def result(self) -> RunResult:
        """Metrics, durations and sizes, from ``result.json``."""
        return RunResult.read(self.path / "result.json")

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the run, from ``config.yaml``."""
        return RunDirectory.open(self.path).read_config()

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """The logged steps: ``step``, ``tokens``, ``seconds``, ``loss``, ``validation/loss`` and other named values.

        Unreadable lines are skipped. If a run has several seeds, the steps are in the seeds' folders.
        """
        return list(read_metrics(self.path / "metrics.jsonl", [])[0])


class TransferRun(Run):
    """The run directory of ``probe`` or ``finetune``, with a folder for each seed if there are several."""

    @property
    def result(self) -> JointResult:
        """Mean, deviation, control and difference over all seeds, from ``result.json``.

        Raises:
            RunDirectoryError: the run has only a final model, which was not measured.
        """
        path = self.path / "result.json"
        if not RunResult.read(path).metrics:
            raise RunDirectoryError(
                f"{path}: nothing was measured, because the run has only a final model; set task.dev=<file> or "
                "task.folds=5 in a new run"
            )
        return JointResult.read(path)


@dataclass(frozen=True)
class Report(os.PathLike[str]):
    """The folder of a report."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def page(self) -> Path:
        """The complete HTML page."""
        return self.path / "report.html"

    @property
    def content(self) -> dict[str, Any]:
        """The ``answer`` in words, the ``rows`` of the table and the ``sweeps``, in plain units."""
        loaded: dict[str, Any] = json.loads((self.path / "report.json").read_text(encoding="utf-8"))
        return loaded

    @property
    def figures(self) -> dict[str, Path]:
        """The figures as SVG files, keyed by name."""
        return {path.stem: path for path in sorted((self.path / "figures").glob("*.svg"))}


def check_arguments(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Check the arguments of a function against their annotations at each call.

    The function raises a ``ConfigError`` that lists every argument of the wrong type or out of its range.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def with_check(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        hints = typing.get_type_hints(function, include_extras=True)
        arguments = signature.bind(*args, **kwargs).arguments
        problems = [_misfit(name, value, hints[name]) for name, value in arguments.items() if name in hints]
        if any(problems):
            raise ConfigError([problem for problem in problems if problem])
        return function(*args, **kwargs)

    return with_check


def _misfit(name: str, value: Any, annotation: Any) -> str | None:
    """Return the problem with an argument that does not match its evaluated annotation; None if it matches."""
    try:
        validate(_plain_data(value), annotation)
    except Misfit as misfit:
        place = misfit.value if misfit.where else value
        return f"{join(name, *misfit.where)}={_as_text(place)} must be {misfit.expected}"
    return None


def _plain_data(value: Any) -> Any:
    """Convert other libraries' numbers to Python's, paths to text, and arrays and table columns to lists."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, bytes | Mapping):
        return [_plain_data(item) for item in value]
    return value


def _as_text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def command_line(words: Sequence[Folder], settings: Mapping[str, Setting], *, config_dir: Folder | None) -> CommandLine:
    """Combine the words and keywords of one call into a command line.

    Args:
        words: the words of a command line, such as ``key=value``; a path is never read as ``key=value``.
    """
    line = overrides.read([word for word in words if isinstance(word, str)])
    for word in words:
        if isinstance(word, os.PathLike):
            line.bare.append(os.fspath(word))
        elif not isinstance(word, str):
            raise ConfigError(f"{word!r} is not a setting: write 'key=value', or use the keyword key=value")
    keys = {*map(key_of, line.overrides)}
    for key, value in _dotted(settings):
        if key in keys:
            raise ConfigError(f"{key} is set twice, as '{key}=...' and as a keyword: keep only one")
        line.overrides.append(f"{key}={format_value(value, key)}")
    if problem := _misfit("config_dir", config_dir, Folder | None):
        raise ConfigError(problem)
    if config_dir is not None:
        line.config_dir = os.fspath(config_dir)
    return line


def _dotted(settings: Mapping[str, Setting]) -> Iterator[tuple[str, Setting]]:
    """Flatten nested dictionaries into dotted keys: ``train={"steps": 5}`` is ``train.steps=5``."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield key, value


def format_value(value: Setting, key: str) -> str:
    """Return a value in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Integral):  # includes numpy's
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        return text if _PLAIN.fullmatch(text) and text.lower() not in _WITH_MEANING else overrides.quote(text)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{format_value(inner, f'{key}.{name}')}" for name, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return "[" + ",".join(format_value(inner, key) for inner in value) + "]"
    raise ConfigError(
        f"{key}: a setting must be text, a number, True, False, None, a path, a list or a dictionary, but this one "
        f"has the type {type(value).__name__}"
    )


def _with_settings(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Give a function the settings of its command, in its signature and docstring, as the package's stub states them.

    The function itself accepts any keyword, so that its message about a misspelled setting suggests the right one.
    """
    stated = _stated_functions()[function.__name__]
    parameters = inspect.signature(function).parameters
    settings = [
        inspect.Parameter(argument.arg, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=_source(argument))
        for argument in stated.args.kwonlyargs
        if argument.arg not in parameters
    ]
    kept = [parameter for parameter in parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    signature = inspect.Signature([*kept, *settings], return_annotation=function.__annotations__["return"])
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = ast.get_docstring(stated)
    return function


@functools.cache
def _stated_functions() -> dict[str, ast.FunctionDef]:
    stub = ast.parse(Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8"))
    return {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef)}


def _source(argument: ast.arg) -> str:
    return "" if argument.annotation is None else ast.unparse(argument.annotation)


@_with_settings
def pretrain(*words: str, config_dir: Folder | None = None, **settings: Setting) -> Run:
    """Pretrain an encoder on raw text; see ``lmtransfer pretrain --help``."""
    return Run(_call("pretrain", words, config_dir, settings))


@_with_settings
def probe(*words: str, config_dir: Folder | None = None, **settings: Setting) -> TransferRun:
    """Train a head on a frozen encoder; see ``lmtransfer probe --help``."""
    return TransferRun(_call("probe", words, config_dir, settings))


@_with_settings
def finetune(*words: str, config_dir: Folder | None = None, **settings: Setting) -> TransferRun:
    """Train a pretrained encoder and a new head on a task; see ``lmtransfer finetune --help``."""
    return TransferRun(_call("finetune", words, config_dir, settings))


@_with_settings
def evaluate(*words: str, config_dir: Folder | None = None, **settings: Setting) -> Run:
    """Score a run on a split, or measure the losses of a pretraining run; see ``lmtransfer evaluate --help``."""
    return Run(_call("evaluate", words, config_dir, settings))


@_with_settings
def predict(*words: str, config_dir: Folder | None = None, **settings: Setting) -> list[dict[str, Any]]:
    """Predict for a text, a file or a split, or fill in masks; see ``lmtransfer predict --help``.

    Returns one dictionary per input, like the command's JSON, or an empty list if ``output`` names a file. To
    process many texts without loading the run each time, use ``load``.
    """
    answers: list[dict[str, Any]] = []
    _call("predict", words, config_dir, settings, write=answers.extend)
    return answers


@_with_settings
def export(*words: str, config_dir: Folder | None = None, **settings: Setting) -> Path | None:
    """Export a run for other libraries or unchanged, and push it to the hub; see ``lmtransfer export --help``.

    Returns None if the export was only pushed.
    """
    folder: Path | None = _call("export", words, config_dir, settings)
    return folder


@_with_settings
def report(*words: Folder, config_dir: Folder | None = None, **settings: Setting) -> Report:
    """Compare all results in tables and figures; see ``lmtransfer report --help``."""
    return Report(_call("report", words, config_dir, settings))


def _call(
    command: str,
    words: tuple[Folder, ...],
    config_dir: Folder | None,
    settings: Mapping[str, Setting],
    **arguments: Any,
) -> Any:
    return call_command(command, command_line(words, settings, config_dir=config_dir), **arguments)


class LoadedRun:
    """A run in memory.

    Attributes:
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
        predictor: TaskPredictor | None = None,
        notes: Notes | None = None,
    ) -> None:
        self.path: Path = saved.path
        self.encoder: Encoder = encoder
        self.tokenizer: Tokenizer = saved.tokenizer
        self.task = task
        self._saved, self._hardware, self._predictor = saved, hardware, predictor
        self._notes = notes or Notes()
        self._filled: dict[int, MaskFiller] = {}
        self._embedders: dict[str, Embedder] = {}

    def __repr__(self) -> str:
        task = "" if self.task is None else f", task={self.task.name!r}"
        return f"LoadedRun({str(self.path)!r}, encoder={type(self.encoder).__name__}{task})"

    @contextmanager
    def _handling(self) -> Iterator[None]:
        """Close the door inside the block if someone else produced the run; see ``system.door``."""
        with _handling(str(self.path)):
            is_trusted(self.path, trust=self._saved.trusted)
            yield

    @check_arguments
    def predict(self, texts: str | Sequence[str], *, top_k: TopK = 5) -> list[dict[str, Any]]:
        """Predict for each text, or fill in each [MASK] if the run has no task.

        Args:
            texts: one text or several, in the form of ``text=`` in ``lmtransfer predict``: [SEP] separates two texts,
                or a question from its passage.

        Raises:
            DataError: a text has the wrong form for the run.
            ConfigError: the run makes no predictions: it has no head, or an objective that cannot fill a [MASK].
        """
        with self._handling():
            return self._predictions([texts] if isinstance(texts, str) else texts, top_k)

    def _predictions(self, texts: Sequence[str], top_k: int) -> list[dict[str, Any]]:
        reader = self._reader()
        examples = list(_examples(texts, reader))
        if self._predictor is not None:
            return self._predict(self._predictor, examples)
        if top_k not in self._filled:
            self._filled[top_k] = open_mask_filler(self._saved, top_k, self._hardware)
        return self._filled[top_k].lines(examples)

    def _predict(self, predictor: TaskPredictor, examples: Sequence[Any]) -> list[dict[str, Any]]:
        self._notes.clear()
        lines = predictor.lines(examples)
        for kind, count in self._notes.counts.items():
            warnings.warn(f"{count:,} {kind}", stacklevel=5)
        return lines

    @check_arguments
    def vectors(
        self, texts: str | Sequence[str], *, layers: Layers | None = None, pooling: PoolingName | None = None
    ) -> np.ndarray:
        """Embed each text as one vector, as ``lmtransfer embed`` does.

        The first call with a new choice of layers and pooling loads the modules for it.

        Args:
            layers: ``last``, a layer index (0 for the embeddings), or a list such as ``[0, "last"]``, whose vectors
                are concatenated; None for the layers of the run's head, or the last layer if it has no head.
            pooling: ``mean``, ``max``, ``cls``, ``last_token`` or ``family``; None for the pooling of the run's head,
                or mean pooling if it has no head.

        If both are None, an imported model uses the pooling, maximum length and normalization of its publisher's
        sentence-transformers files.

        Returns:
            float32, shape (N, E): E is the width of the encoder, times the number of listed layers.
        """
        choice = VectorChoice.of(layers=layers, pooling=pooling)
        with self._handling():
            if str(choice) not in self._embedders:
                self._embedders[str(choice)] = open_embedder(self._saved, choice, hardware=self._hardware)
        return self._embedders[str(choice)].embed([texts] if isinstance(texts, str) else texts).vectors

    @check_arguments
    @torch.inference_mode()
    def nearest(self, text: str, num: Count = 10) -> list[tuple[str, float]]:
        """Return the tokens whose embeddings (layer 0) are nearest to that of ``text``, with their cosines.

        Args:
            num: number of tokens to return, excluding special tokens and those of ``text``.
        """
        table = self.encoder.token_embedding
        if table is None:
            raise ConfigError(f"{type(self.encoder).__name__} reads words as characters, so it has no token embeddings")
        ids = self.tokenizer.encode(text).ids.tolist()
        if not ids:
            raise ConfigError(f"{text!r} contains no token: give a word")
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
        """Return the object that turns texts into examples."""
        if self.task is not None:
            return self.task.reader()
        if "objective" not in self._saved.config:
            raise ConfigError(
                f"{self.path} has an encoder without a head, so it makes no predictions: train a head with "
                f"finetune(init={str(self.path)!r}, task=...)"
            )
        return MaskedTexts()


@check_arguments
def load(
    run: str | os.PathLike[str],
    *,
    ensemble: bool = False,
    trust: bool = False,
    device: str = "auto",
    precision: PrecisionName | Literal["auto"] = "fp32",
) -> LoadedRun:
    """Load a run: its encoder, its tokenizer, and its task head if it has one.

    Args:
        run: the run directory of any command that trains, or a published model as ``hf:<folder or name on the hub>``.
            If a task run has several seeds, the first seed is loaded.
        ensemble: whether predictions are means over all seeds of a task run.
        trust: whether to read files that the run names even if someone else produced the run.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:<index>`` or ``mps``.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto`` (the hardware's fastest dtype).
    """
    path = os.fspath(run)
    try:
        hardware = setup(device=device, precision=precision, compile=False, keep_threads=True)
    except ConfigError as error:  # its message names the settings of a command
        raise ConfigError([problem.replace("hardware.", "") for problem in error.problems]) from error
    with _handling(path):
        return _load(path, hardware, ensemble=ensemble, trust=trust)


def _handling(path: str) -> AbstractContextManager[None]:
    """Open a door for the run that the user named; see ``system.door``."""
    return door.command(named_by_user({"run": path}, "load"), has_trust=True)


def _load(path: str, hardware: Hardware, *, ensemble: bool, trust: bool) -> LoadedRun:
    if "task" in run_folder(path, key="run").read_config():
        runs = open_runs(path, ensemble=ensemble, trust=trust)
        task = task_of(runs[0])
        notes = Notes()
        predictor = TaskPredictor(runs, task, hardware, notes)
        return LoadedRun(
            saved=runs[0], encoder=predictor.encoder, hardware=hardware, task=task, predictor=predictor, notes=notes
        )
    saved = open_saved(path, key="run", trust=trust)
    return LoadedRun(saved=saved, encoder=pretrained_encoder(saved).to(hardware.device).eval(), hardware=hardware)


def _examples(texts: Sequence[str], reader: Reader) -> Any:
    for index, text in enumerate(texts):
        try:
            yield reader.parse_line(text, f"text {index}", str(index), Notes())
        except ValueError as problem:
            raise DataError(f"{text[:60]!r}: {problem}") from None
